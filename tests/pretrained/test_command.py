"""python -m nystromformer_jax.pretrained, without torch."""

import errno
import json
import os

import pytest

from nystromformer_jax.pretrained import files, from_pretrained
from nystromformer_jax.pretrained.__main__ import main
from tests.pretrained import tiny
from tests.pretrained.tiny import same_bits

pytest.importorskip("safetensors", reason="needs the extra `language`")


def test_show_describes_a_folder_and_its_attention(tmp_path, capsys):
    tiny.published(tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "attention upstream: exact, in O(n²)" in shown
    assert "attention here: softmax, exact, convolution of 5" in shown
    # By hand: embeddings, two layers of attention, convolution, MLP and norms, and the head.
    backbone = (11 + 13 + 2 + 2) * 6 + 2 * (4 * 42 + 2 * 5 + 6 * 5 + 5 + 5 * 6 + 6 + 4 * 6)
    assert f"{backbone + 42 + 12 + 11:,} parameters" in shown


def test_convert_writes_model_tokenizer_and_labels(tmp_path, capsys):
    tiny.folder_of(tmp_path / "bert", "bert", "ForTokenClassification")
    (tmp_path / "bert" / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    (tmp_path / "bert" / "README.md").write_text("not to be copied")
    dest = tmp_path / "new" / "ours"
    arguments = ["--attention=nystrom", "--max_len=26", "--num_landmarks=4", "--conv_kernel_size=3"]
    assert main(["convert", str(tmp_path / "bert"), str(dest), *arguments]) == 0
    assert "NystromformerForTokenClassification; 2 layers of 6" in capsys.readouterr().out
    names = {path.name for path in dest.iterdir()}
    assert names == {"config.json", "model.safetensors", "vocab.txt"}
    config = json.loads((dest / "config.json").read_text())
    assert config["model_type"] == "nystromformer"
    assert config["pad_token_id"] == 0
    assert config["id2label"] == {str(i): f"label {i}" for i in range(tiny.LABELS)}
    assert config["label2id"] == {f"label {i}": i for i in range(tiny.LABELS)}
    changes = {"attention": "nystrom", "max_len": 26, "num_landmarks": 4, "conv_kernel_size": 3}
    expected, variables = from_pretrained(tmp_path / "bert", **changes)
    model, read = from_pretrained(dest)
    assert model == expected
    assert same_bits(read, variables)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "{}/none"], "{}/none/config.json does not exist"),
        (["convert", "{}/none", "{}/ours"], "{}/none does not exist"),
        (["convert", "{}/bert", "{}/bert"], "another destination"),
        (["convert", "{}/bert/empty", "{}/ours"], "no weights"),
        (["convert", "{}/bert/two", "{}/ours"], "a.pt, b.model"),
        (["convert", "{}/alone/a.pt", "{}/ours"], "config.json"),
        (["convert", "{}/run", "{}/ours"], "pass {}/run/model"),
        (["convert", "{}/bert", "{}/ours", "--model_class=Bert"], "'Bert'"),
        (["convert", "{}/bert", "{}/ours", "--attention=nys"], "attention"),
        (["convert", "{}/bert", "{}/ours", "--max_len=26"], "tokenizer_config.json"),
    ],
)
def test_errors_print_one_line_and_write_nothing(
    tmp_path, capsys, no_annotations, arguments, words
):
    tiny.folder_of(tmp_path / "bert", "bert", "ForMaskedLM")
    (tmp_path / "bert/tokenizer_config.json").write_text("{,}")
    for name in ("bert/empty", "bert/two", "alone", "run"):
        (tmp_path / name).mkdir()
    for name in ("bert/two/a.pt", "bert/two/b.model", "alone/a.pt"):
        (tmp_path / name).touch()
    sections = {name: {} for name in ("data", "model", "optimizer", "train")}
    (tmp_path / "run/config.json").write_text(json.dumps(sections))
    assert main([argument.format(tmp_path) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("nystromformer_jax.pretrained: ")
    assert said.count("\n") == 1
    assert words.format(tmp_path) in said
    assert not (tmp_path / "ours").exists()


def test_tokenizer_of_a_longer_model_truncates_later(tmp_path):
    """A tokenizer without a length is copied unchanged."""
    tiny.folder_of(tmp_path / "bert", "bert", "ForMaskedLM", max_text_len=5)
    tokenizer = {"version": "1.0", "truncation": {"max_length": 13, "stride": 0}, "model": {}}
    (tmp_path / "bert" / "tokenizer.json").write_text(json.dumps(tokenizer))
    file = tmp_path / "bert" / "tokenizer_config.json"

    def converted(config, max_len):
        file.write_text(config)
        dest = tmp_path / f"{max_len} {len(config)}"
        assert main(["convert", str(tmp_path / "bert"), str(dest), f"--max_len={max_len}"]) == 0
        written = json.loads((dest / "tokenizer.json").read_text())
        assert written["truncation"] == {"max_length": max_len, "stride": 0}
        assert "max_text_len" not in json.loads((dest / "config.json").read_text())
        return (dest / "tokenizer_config.json").read_text()

    config = {"do_lower_case": False, "model_max_length": 13, "max_len": 13}
    for max_len in (26, 13):
        written = json.loads(converted(json.dumps(config), max_len))
        assert written == {**config, "model_max_length": max_len, "max_len": max_len}
    without = '{"do_lower_case":   false}'
    assert converted(without, 26) == without


def test_a_full_disk_ends_the_conversion_with_exit_code_1(tmp_path, capsys, monkeypatch):
    def write_files(written):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tiny.folder_of(tmp_path / "bert", "bert", "ForMaskedLM")
    monkeypatch.setattr(files, "write_files", write_files)
    assert main(["convert", str(tmp_path / "bert"), str(tmp_path / "ours")]) == 1
    assert "No space left" in capsys.readouterr().err
