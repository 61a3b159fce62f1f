"""Config files, and the folder of a run with and without --workdir."""

from pathlib import Path

import pytest

from cli import configs, training
from cli.configs import Given
from tests.programs import assert_refused, call

GIVEN = Given("configs/listops.py", "", {}, {}, {})


@pytest.fixture(autouse=True)
def default(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_run_folders_of_several_seeds_have_suffixes(tmp_path):
    assert training.run_folder("runs/x", GIVEN, "-seed3", alone=True) == Path("runs/x")
    assert training.run_folder("runs/x", GIVEN, "-seed3", alone=False) == Path("runs/x-seed3")
    assert training.run_folder("runs/x/", GIVEN, "-seed3", alone=False) == Path("runs/x-seed3")
    for flag in (None, ""):
        for alone in (True, False):
            folder = training.run_folder(flag, GIVEN, "-seed3", alone=alone)
            assert folder == Path("runs/listops-seed3")


def test_tilde_is_expanded(tmp_path):
    assert training.run_folder("~/x", GIVEN, "-seed3", alone=True) == tmp_path / "x"
    assert training.run_folder("~/x", GIVEN, "-seed3", alone=False) == tmp_path / "x-seed3"
    with pytest.raises(ValueError, match="this user does not exist"):
        training.run_folder("~nobody-of-that-name/x", GIVEN, "-seed3", alone=True)


@pytest.mark.parametrize("flag", [".", "..", "a/..", "/"])
def test_rejects_a_folder_without_a_name_for_several_seeds(flag):
    assert training.run_folder(flag, GIVEN, "-seed3", alone=True) == Path(flag)
    with pytest.raises(
        ValueError, match=r"no folder name to which -seed3 can be added: pass a path such as "
    ):
        training.run_folder(flag, GIVEN, "-seed3", alone=False)


RETURN = "from ml_collections import ConfigDict\ndef get_config(argument): return ConfigDict"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def get_config(argument): return {}['task']", "cannot be loaded: KeyError: 'task'"),
        ("def get_config(argument): int(argument)", "invalid literal for int()"),
        ("def get_config(argument): open('missing')", "cannot be loaded: FileNotFoundError:"),
        ("def get_config(): pass", "cannot be loaded: TypeError: get_config() takes 0"),
        ("def get_config(argument)", "cannot be loaded: SyntaxError: expected ':'"),
        ("def get_config(argument): return {}", "must return a ConfigDict, not {}"),
        (RETURN + "({'data': 3})", "data must be a ConfigDict, not 3"),
        (RETURN + "({'data': {}, 'attention': {}})", "train must be a ConfigDict"),
        ("get_confg = None", "a config file needs the function get_config."),
    ],
)
def test_an_invalid_config_file_is_one_sentence(in_repository, tmp_path, body, words):
    file = tmp_path / "own.py"
    file.write_text(body)
    answer = call("run_lra", f"--config={file}:nystrom")
    assert_refused(answer, "run_lra")
    assert str(file) in answer.errors
    assert words in answer.errors


def test_the_first_seed_is_that_of_the_config_or_zero():
    assert configs.first_seed({"train": {"seed": 5}}) == 5
    assert configs.first_seed({"train": {"epochs": 20}}) == 0
    for wrong in ("one", True):
        with pytest.raises(ValueError, match=r"train\.seed: needs an int"):
            configs.first_seed({"train": {"seed": wrong}})


def test_a_value_may_replace_none(in_repository):
    flags = ("--config=configs/listops_short.py:reformer", "--config.attention.num_buckets=4")
    assert call("run_lra", *flags, "--mode=check").code == 0
    refused = call("run_lra", *flags[:1], "--config.attention.num_buckets=few", "--mode=check")
    assert_refused(refused, "run_lra")
    assert "num_buckets" in refused.errors


@pytest.mark.parametrize("program", ["run_lra", "run_pretrain", "run_finetune", "run_plan"])
def test_help_ends_with_exit_code_0(in_repository, program):
    assert call(program, "--help").code == 0


@pytest.mark.parametrize(
    ("program", "mode"),
    [
        ("run_lra", "eval"),
        ("run_pretrain", "eval"),
        ("run_finetune", "eval"),
        ("run_finetune", "export"),
    ],
)
def test_a_finished_run_needs_no_config(in_repository, tmp_path, program, mode):
    answer = call(program, f"--mode={mode}", f"--workdir={tmp_path}")
    assert_refused(answer, program)
    assert "config.json does not exist" in answer.errors
