"""Flags with impossible sizes end every script with an error that names the flag."""

import pytest

from tests.examples.scripts import load

for package in ("optax", "sklearn"):
    pytest.importorskip(package, reason="needs the extra `language`")

FLAGS = {
    "bags": ("--seeds=0", "--steps=0", "--max_size=9", "--test_bags=1"),
    "classify_text": ("--length=0", "--epochs=0"),
    "long_regression_nnx": ("--length=0", "--steps=0", "--batch_size=0"),
    "swap_attention": ("--lengths=0", "--num_landmarks=0", "--embed_dim=0", "--embed_dim=130"),
}


@pytest.mark.parametrize("script", FLAGS)
def test_rejects_impossible_sizes(capsys, script):
    main = load(script).main
    for flag in FLAGS[script]:
        with pytest.raises(SystemExit):
            main([flag])
        assert flag.partition("=")[0] in capsys.readouterr().err
