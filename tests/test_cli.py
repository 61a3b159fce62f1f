"""Config files, and the folder of a run with and without --workdir."""

from pathlib import Path

import pytest

from cli import configs, training
from cli.configs import Given
from tests.programs import assert_refused, call


def test_the_default_folder_has_the_config_and_the_seed(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    given = Given("configs/glue.py", "mrpc,max_len=64", {"train": {"seed": 3}}, {}, {})
    assert training.folder_of_run(None, given) == Path("runs/glue-mrpc-max-len-64-seed3")
    assert training.folder_of_run("~/x", given) == tmp_path / "x"
    with pytest.raises(ValueError, match="user"):
        training.folder_of_run("~nobody-of-that-name/x", given)


RETURN = "from ml_collections import ConfigDict\ndef get_config(argument): return ConfigDict"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("def get_config(argument): return {}['task']", "KeyError: 'task'"),
        ("def get_config(argument): int(argument)", "invalid literal"),
        ("def get_config(argument)", "SyntaxError"),
        ("def get_config(argument): return {}", "not {}"),
        (RETURN + "({'data': 3})", "data must be"),
        (RETURN + "({'data': {}, 'attention': {}})", "train must be"),
        ("get_confg = None", "get_config"),
    ],
)
def test_an_invalid_config_file_is_one_sentence(in_repository, tmp_path, body, word):
    file = tmp_path / "my own.py"  # a path may contain a space
    file.write_text(body)
    assert_refused(call("run_lra", f"--config={file}:nystrom"), "run_lra", str(file), word)


def test_the_seed_is_that_of_the_config_or_zero():
    assert configs.seed_of({"train": {"seed": 5}}) == 5
    assert configs.seed_of({"train": {"epochs": 20}}) == 0
    for wrong in ("one", True):
        with pytest.raises(ValueError, match=r"train\.seed"):
            configs.seed_of({"train": {"seed": wrong}})


def test_a_value_may_replace_none(in_repository):
    value, text = "configs/listops_short.py:reformer", {"attention.num_buckets": "4"}
    given = configs.read(value, text, "run_lra.py", "")
    assert given.default["attention"]["num_buckets"] is None
    assert given.sections["attention"]["num_buckets"] == 4
