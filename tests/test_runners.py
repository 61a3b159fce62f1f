"""Behavior that all programs share: folders, error messages and exit codes."""

import errno
import re
import types

import jax
import pytest

from cli import configs
from cli.training import memory_advice, run_one
from language import finetune, pretrain
from lra import train
from nystromformer_jax import training
from nystromformer_jax.support.durable import write_json
from nystromformer_jax.training import CannotWrite, WorkdirBusy
from tests.programs import ROOT, call

TRAINERS = {
    "run_lra": (train, "listops"),
    "run_pretrain": (pretrain, "pretrain"),
    "run_finetune": (finetune, "glue:sst2"),
}
ERRORS = {
    ImportError("The package numba is not installed."): (2, "The package numba is not installed."),
    OSError(errno.EIO, "Input/output error", "a/b.npy"): (1, "a/b.npy: Input/output error"),
    OSError(errno.ENOSPC, "The cache is full."): (1, "The cache is full."),
    CannotWrite("The folder cannot be written."): (1, "The folder cannot be written."),
    FileNotFoundError("The file is missing."): (2, "The file is missing."),
    WorkdirBusy("Another process has it."): (2, "Another process has it."),
    ValueError("Two\nlines."): (2, "Two lines."),
}


@pytest.fixture(params=TRAINERS)
def called(request, monkeypatch, tmp_path):
    """A program to call by flags, its trainer, and its name."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(
        "GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"
    )  # nothing starts the process again
    trainer, config = TRAINERS[request.param]
    name, _, argument = config.partition(":")
    flag = f"--config=configs/{name}.py{':' + argument if argument else ''}"
    return lambda *flags: call(request.param, flag, *flags), trainer, request.param


def test_errors_print_one_line_with_the_same_exit_code_in_every_runner(called, monkeypatch):
    call, trainer, name = called
    for error, (code, words) in ERRORS.items():

        def fail(config, error=error):
            raise error

        monkeypatch.setattr(trainer, "prepare", fail)
        assert call() == (code, "", f"{name}.py: {words}\n")

    def fault(config):
        raise KeyError("ours")

    monkeypatch.setattr(trainer, "prepare", fault)
    code, _, said = call()
    assert code == 1
    assert "Traceback" in said
    assert "KeyError: 'ours'" in said


@pytest.mark.parametrize(
    ("evaluates", "advice"), [(False, "train.accumulation=PARTS"), (True, "eval.batch_size")]
)
def test_too_little_memory_is_one_sentence(evaluates, advice):
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore lines")
    message = rf"too small \(RESOURCE.* memory\): .*{re.escape(advice)}"
    with pytest.raises(ValueError, match=message), memory_advice(evaluates=evaluates):
        raise error


@pytest.mark.parametrize("called", ["run_finetune"], indirect=True)
def test_only_the_first_process_reports_the_export(called, monkeypatch, tmp_path):
    call, trainer, _ = called
    monkeypatch.setattr(trainer, "prepare", lambda config: types.SimpleNamespace(config=config))
    monkeypatch.setattr(trainer, "write_export", lambda run, workdir: workdir.path / "model")
    monkeypatch.setattr(training, "enable_compilation_cache", lambda folder: None)
    flags = ("--mode=export", f"--workdir={tmp_path}")
    write_json(tmp_path / "config.json", configs.load_file("configs/glue.py")("sst2").to_dict())
    write_json(tmp_path / "result.json", {})
    assert call(*flags) == (0, f"Wrote {tmp_path}/model.\n", "")
    monkeypatch.setattr(training, "is_primary", lambda: False)
    assert call(*flags) == (0, "", "")


def test_rejects_an_invalid_workdir_before_preparing_data(called, monkeypatch, tmp_path):
    call, trainer, name = called
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    if name != "run_lra":
        write_json(tmp_path / "other" / "config.json", {"train": {"seed": 5}})
    run = types.SimpleNamespace(config={"train": {"seed": 3}})  # without data to load
    monkeypatch.setattr(trainer, "prepare", lambda config: run)
    monkeypatch.setattr(training, "enable_compilation_cache", lambda folder: None)
    words = f"--workdir must be a folder, but {tmp_path}/file is a file"
    evaluation = f"--mode=eval needs a finished run, and {tmp_path}/file/config.json does not"
    for flags, sentence in (((), words), (("--mode=eval",), evaluation)):
        refused = call(f"--workdir={tmp_path}/file", *flags)
        assert refused.code == 2
        assert sentence in refused.errors
    unfinished = call("--mode=eval", f"--workdir={tmp_path}/other")
    assert unfinished.code == 2
    assert "config" in unfinished.errors


def test_too_little_memory_ends_a_run_with_advice(tmp_path):
    def act(workdir):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    run = types.SimpleNamespace(config={"train": {"seed": 3}})
    with pytest.raises(ValueError, match=r"train\.accumulation=PARTS"):
        run_one(tmp_path / "run", run, act, str, paths=(), evaluates=False)


def test_other_errors_of_a_device_are_unchanged():
    error = jax.errors.JaxRuntimeError("INTERNAL: something else")
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="something else"),
        memory_advice(evaluates=False),
    ):
        raise error


def test_workdir_may_start_with_a_tilde_and_end_with_a_slash(called, monkeypatch, tmp_path):
    call, trainer, _ = called
    monkeypatch.setattr(trainer, "prepare", lambda config: types.SimpleNamespace(config={}))
    nowhere = call("--mode=eval", "--workdir=~/nowhere/")
    assert nowhere.code == 2
    assert f"needs a finished run, and {tmp_path}/nowhere/config.json does not" in nowhere.errors
    assert not (tmp_path / "nowhere").exists()
