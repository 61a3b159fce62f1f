"""Config files, and the folder of a run with and without --workdir."""

from pathlib import Path

import pytest

from cli import configs, training
from cli.configs import Given
from tests.programs import assert_refused, call

GIVEN = Given("configs/listops.py", "", {}, {}, {})


def test_run_folders_of_several_seeds_have_suffixes(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for flag, path in (("runs/x", "runs/x"), ("runs/x/", "runs/x"), ("~/x", f"{tmp_path}/x")):
        assert training.run_folder(flag, GIVEN, "-seed3", alone=True) == Path(path)
        assert training.run_folder(flag, GIVEN, "-seed3", alone=False) == Path(f"{path}-seed3")
    for alone in (True, False):
        folder = training.run_folder(None, GIVEN, "-seed3", alone=alone)
        assert folder == Path("runs/listops-seed3")
    for flag in (".", "..", "a/..", "/"):  # no name to which a suffix can be added
        assert training.run_folder(flag, GIVEN, "-seed3", alone=True) == Path(flag)
        with pytest.raises(ValueError, match="-seed3"):
            training.run_folder(flag, GIVEN, "-seed3", alone=False)
    with pytest.raises(ValueError, match="user"):
        training.run_folder("~nobody-of-that-name/x", GIVEN, "-seed3", alone=True)


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


def test_the_first_seed_is_that_of_the_config_or_zero():
    assert configs.first_seed({"train": {"seed": 5}}) == 5
    assert configs.first_seed({"train": {"epochs": 20}}) == 0
    for wrong in ("one", True):
        with pytest.raises(ValueError, match=r"train\.seed"):
            configs.first_seed({"train": {"seed": wrong}})


def test_a_value_may_replace_none(in_repository):
    value, text = "configs/listops_short.py:reformer", {"attention.num_buckets": "4"}
    given = configs.read(value, text, "run_lra.py", "")
    assert given.default["attention"]["num_buckets"] is None
    assert given.sections["attention"]["num_buckets"] == 4
