"""Behavior that all programs share: run folders, memory and exports."""

import types

import jax
import pytest

from cli import configs
from cli.training import run
from language import pretrain
from language.finetune import trainer as finetune
from lra import train
from nystromformer_jax import training
from nystromformer_jax.support.durable import write_json
from tests.programs import ROOT, assert_refused, call

TRAINERS = {
    "run_lra": (train, "listops"),
    "run_pretrain": (pretrain, "pretrain"),
    "run_finetune": (finetune, "glue:sst2"),
}


@pytest.fixture(params=TRAINERS)
def called(request, monkeypatch, tmp_path):
    """A program to call by flags, its trainer, and its name."""
    monkeypatch.chdir(ROOT)
    trainer, config = TRAINERS[request.param]
    name, _, argument = config.partition(":")
    flag = f"--config=configs/{name}.py{':' + argument if argument else ''}"
    return lambda *flags: call(request.param, flag, *flags), trainer, request.param


@pytest.mark.parametrize(
    ("message", "evaluates", "kind", "advice"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory\nmore", False, ValueError, "train.accumulation=PARTS"),
        ("RESOURCE_EXHAUSTED: Out of memory\nmore", True, ValueError, "eval.batch_size"),
        ("INTERNAL: something else", False, jax.errors.JaxRuntimeError, "something else"),
    ],
)
def test_too_little_memory_ends_a_run_with_advice(
    tmp_path, monkeypatch, message, evaluates, kind, advice
):
    def act(run, data, workdir):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(training, "enable_compilation_cache", lambda folder: None)
    config = {"train": {"seed": 3}}
    write_json(tmp_path / "config.json", config)
    write_json(tmp_path / "result.json", {})
    trainer = types.SimpleNamespace(
        prepare=lambda config: types.SimpleNamespace(config=config),
        train=act,
        evaluate_checkpoint=act,
    )
    mode = "eval" if evaluates else "train"
    flags = types.SimpleNamespace(workdir=tmp_path, config=None, mode=mode)
    with pytest.raises(kind, match=advice):
        run(flags, trainer, lambda run: None, None)


@pytest.mark.parametrize("called", ["run_finetune"], indirect=True)
def test_export_compares_the_config_and_runs_in_one_process(called, monkeypatch, tmp_path):
    program, trainer, name = called
    monkeypatch.setattr(trainer, "write_export", lambda folder: folder / "model")
    monkeypatch.setattr(training, "enable_compilation_cache", lambda folder: None)
    flags = ("--mode=export", f"--workdir={tmp_path}")
    write_json(tmp_path / "config.json", configs.load_file("configs/glue.py")("sst2").to_dict())
    write_json(tmp_path / "result.json", {"task": "sst2"})
    assert program(*flags) == (0, f"Wrote {tmp_path}/model.\n", "")
    config = "--config=configs/glue.py:sst2"
    for more, word in (
        ((config, "--config.data.max_len=7"), "data.max_len"),
        (("--distributed",), "one process"),
    ):
        refused = program(*flags, *more)
        assert_refused(refused, name, word)


@pytest.mark.parametrize("below", ["", "/run"])
def test_rejects_an_invalid_workdir_before_preparing_data(called, monkeypatch, tmp_path, below):
    program, trainer, name = called
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    write_json(tmp_path / "other" / "config.json", {"train": {"seed": 5}})
    run = types.SimpleNamespace(config={"train": {"seed": 3}})  # without data to load
    monkeypatch.setattr(trainer, "prepare", lambda config: run)
    monkeypatch.setattr(training, "enable_compilation_cache", lambda folder: None)
    folder = f"{tmp_path}/file{below}"
    for flags, word in (
        ((f"--workdir={folder}",), f"--workdir must be a folder, but {tmp_path}/file is a file"),
        ((f"--workdir={folder}", "--mode=eval"), f"{folder}/config.json does not"),
        ((f"--workdir={tmp_path}/other", "--mode=eval"), "config"),
    ):
        refused = program(*flags)
        assert_refused(refused, name, word)
    refused = call(name, f"--workdir={tmp_path}", "--mode=eval")  # needs no --config
    assert_refused(refused, name, "config.json does not exist")
