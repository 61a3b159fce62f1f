"""A run's folder: one process, one config, one result."""

import importlib
import json
import logging
import os

import jax
import pytest

import nystromformer_jax
from nystromformer_jax.training import (
    ConfigDiffers,
    Workdir,
    WorkdirBusy,
    config_sha256,
    workdir,
)

CONFIG = {
    "data": {"dir": "/a", "examples": 0},
    "model": {"num_layers": 2},
    "attention": {"name": "nystrom"},
    "objective": {"mask_rate": 0.15},
    "init": {"checkpoint": "/c"},
    "optimizer": {"learning_rate": 1e-4},
    "train": {"batch_size": 32, "seed": 0, "shape": (1, 2), "remat": False},
    "eval": {"every_steps": 500},
    "mesh": {"data": -1},
}


def changed(section, **values):
    return {**CONFIG, section: {**CONFIG[section], **values}}


def test_config_json_has_the_values_of_the_latest_start(tmp_path):
    file = tmp_path / "config.json"
    other = {
        "data": {"dir": "/b", "examples": 0},
        "train": {**CONFIG["train"], "remat": True, "accumulation": 0},
        "eval": {"every_steps": 7},
    }
    recorded = {**CONFIG, "train": {**CONFIG["train"], "accumulation": 2}}
    with Workdir(tmp_path, recorded) as run:
        run.require_data("a" * 64)
        assert run.result is None
    before = json.loads(file.read_text())
    assert before["train"]["shape"] == [1, 2]
    with Workdir(tmp_path, {**CONFIG, **other}) as run:
        with pytest.raises(ConfigDiffers):
            run.require_data("b" * 64)
        assert json.loads(file.read_text()) == before  # a start that was rejected changes nothing
        run.require_data("a" * 64)
    expected = {**before, **other, "train": {**before["train"], "remat": True}}
    assert json.loads(file.read_text()) == expected

    with Workdir(tmp_path, recorded) as run:
        run.write_result({"state": "validated"})
    with Workdir(tmp_path, recorded) as run:
        run.require_data("a" * 64)
    assert json.loads(file.read_text()) == expected  # the values that the result was trained with


@pytest.mark.parametrize(
    "config",
    [
        changed("data", dir="/b"),
        changed("mesh", data=4),
        changed("eval", every_steps=7),
        changed("train", remat=True),
        changed("attention", implementation="xla"),
        {**CONFIG, "label": "softmax", "command": "python run_lra.py --config=x.py"},
        # Newer options with their defaults, which the run does not have.
        changed("attention", pinv="iterative"),
        changed("data", curriculum=0),
        changed("model", dilations=[]),
    ],
)
def test_resumes_with_other_paths_mesh_evaluation_remat_command_and_newer_options(tmp_path, config):
    with Workdir(tmp_path, CONFIG):
        pass
    with Workdir(tmp_path, config) as run:
        assert run.config_sha256 == config_sha256(config)


@pytest.mark.parametrize(
    ("config", "difference"),
    [
        (changed("train", batch_size=64), "train.batch_size: 32 in the run, 64 now."),
        (changed("attention", name="x"), 'attention.name: "nystrom" in the run, "x" now.'),
        (changed("model", dim=3), "model.dim: absent in the run, 3 now."),
        (changed("attention", pinv="ridge"), "attention.pinv"),
        (changed("attention", mask_conv=False), "attention.mask_conv"),
        (changed("data", examples=5), "data.examples"),
        (changed("data", curriculum=8), "data.curriculum"),
        (changed("objective", mask_rate=0.2), "objective.mask_rate"),
        (changed("init", checkpoint="/d"), "init.checkpoint"),
        (changed("optimizer", learning_rate=1e-3), "optimizer.learning_rate"),
        (changed("model", **dict.fromkeys("abcdef", 1)), "now. 1 more key differs."),
    ],
)
def test_rejects_another_config_and_shows_the_difference(tmp_path, config, difference):
    with Workdir(tmp_path, CONFIG):
        pass
    with pytest.raises(ConfigDiffers, match="another --workdir") as refused:
        Workdir(tmp_path, config)
    assert difference in str(refused.value)
    assert config_sha256(config) != config_sha256(CONFIG)
    with Workdir(tmp_path, CONFIG):  # the failed attempt released the lock
        pass


def test_rejects_a_second_process_until_the_first_ends(tmp_path):
    """The lock is of the opened file, so a second opening in this process is like another process."""
    words = rf"in use by another process \(pid {os.getpid()}\)"
    with Workdir(tmp_path, CONFIG), pytest.raises(WorkdirBusy, match=words):
        Workdir(tmp_path, CONFIG)
    with Workdir(tmp_path, CONFIG):
        pass


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_rejects_json_that_is_not_an_object(tmp_path, name):
    with Workdir(tmp_path, CONFIG) as run:
        run.require_data("1" * 64)
    (tmp_path / name).write_text("[]")
    with (
        pytest.raises(ValueError, match=name),
        Workdir(tmp_path, CONFIG) as run,
    ):
        run.require_data("1" * 64)


def test_warns_of_another_thread_count(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("NPROC", "32")
    with Workdir(tmp_path, CONFIG) as run:
        assert run.environment["cpu_threads"] == 32
        assert isinstance(run.environment["processor"], str)
        assert set(run.environment["versions"]) >= {"python", "jax", "orbax-checkpoint", "numpy"}
    with caplog.at_level(logging.WARNING), Workdir(tmp_path, CONFIG):
        assert not caplog.records
    monkeypatch.setenv("NPROC", "31")
    with caplog.at_level(logging.WARNING), Workdir(tmp_path, CONFIG):
        assert "cpu_threads was 32, is 31" in caplog.text


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("jax_default_prng_impl", "rbg"),
        ("jax_threefry_partitionable", False),
        ("jax_default_matmul_precision", "float32"),
        ("jax_enable_x64", True),
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"),
    ],
)
def test_warns_of_another_setting_of_jax(tmp_path, monkeypatch, caplog, setting, value):
    with Workdir(tmp_path, CONFIG):
        pass
    before = getattr(jax.config, setting, None)
    change = monkeypatch.setenv if setting == "XLA_FLAGS" else jax.config.update
    try:
        change(setting, value)
        with caplog.at_level(logging.WARNING), Workdir(tmp_path, CONFIG):
            assert f"numerics.{setting} was" in caplog.text
    finally:
        if setting != "XLA_FLAGS":
            jax.config.update(setting, before)


def test_warns_of_changed_code_of_a_plugin(tmp_path, my_project, caplog):
    config = {**CONFIG, "attention": {"name": "my_package.attention:Hydra"}}
    importlib.import_module("my_package.attention")
    with Workdir(tmp_path / "run", config) as run:
        assert run.environment["code"]["nystromformer-jax"].startswith(
            nystromformer_jax.__version__
        )
    with caplog.at_level(logging.WARNING), Workdir(tmp_path / "run", config):
        assert not caplog.records
    with (my_project / "my_package" / "attention.py").open("a") as file:
        file.write("\nSCALE = 2\n")
    with caplog.at_level(logging.WARNING), Workdir(tmp_path / "run", config):
        assert "code.my_package.attention:Hydra was" in caplog.text


@pytest.mark.parametrize("error", [ValueError, OSError, ImportError])
def test_errors_before_training_leave_no_run(tmp_path, error):
    def refuse():
        with Workdir(tmp_path / "run", CONFIG) as run:
            run.require_data("1" * 64)
            raise error("a tokenizer of another model")

    with pytest.raises(error):
        refuse()
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    with pytest.raises(error):
        refuse()
    assert (tmp_path / "run").exists()  # a folder of the user
    corrected = changed("model", num_layers=3)
    with Workdir(tmp_path / "run", corrected) as run:
        run.require_data("2" * 64)
    assert json.loads((tmp_path / "run/config.json").read_text())["model"] == {"num_layers": 3}


def test_a_folder_that_is_removed_while_it_is_locked_is_made_again(tmp_path, monkeypatch):
    path, flock = tmp_path / "run", workdir.fcntl.flock

    def remove_before(*arguments):
        monkeypatch.setattr(workdir.fcntl, "flock", flock)
        (path / ".lock").unlink()
        path.rmdir()
        flock(*arguments)

    monkeypatch.setattr(workdir.fcntl, "flock", remove_before)
    with Workdir(path, CONFIG):
        assert (path / "config.json").exists()
        with pytest.raises(WorkdirBusy):
            Workdir(path, CONFIG)


@pytest.mark.parametrize("begun", ["checkpoint", "metrics", "before", "interrupted"])
def test_a_started_run_is_kept(tmp_path, begun):
    path = tmp_path / "run"
    if begun == "before":
        with Workdir(path, CONFIG):
            pass
    error = KeyboardInterrupt if begun == "interrupted" else ValueError

    def stop():
        with Workdir(path, CONFIG) as run:
            assert not run.has_checkpoints
            if begun == "checkpoint":
                (run.checkpoints / "7").mkdir(parents=True)
                assert run.has_checkpoints
            if begun == "metrics":
                (path / "metrics.jsonl").write_text("{}\n")
            raise error

    with pytest.raises(error):
        stop()
    with pytest.raises(ConfigDiffers):
        Workdir(path, changed("model", num_layers=3))


def test_read_only_access_changes_no_files(tmp_path):
    with Workdir(tmp_path / "new", CONFIG, read_only=True) as run:
        assert run.result is None
    assert not (tmp_path / "new").exists()
    with Workdir(tmp_path / "run", CONFIG) as run:
        run.require_data("da7a")
        run.write_result({"best_step": 3})
        with Workdir(tmp_path / "run", CONFIG, read_only=True) as again:  # no lock is needed
            assert again.require_result() == {"best_step": 3}
            again.require_data("da7a")
            with pytest.raises(ConfigDiffers, match="different data"):
                again.require_data("0ther")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigDiffers, match="num_layers: 2 in the run, 3 now"):
        Workdir(tmp_path / "run", changed("model", num_layers=3), read_only=True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == files


@pytest.mark.parametrize(
    "act", [lambda run: run.require_data("da7a"), lambda run: run.record("init_sha256", str)]
)
def test_a_folder_that_hosts_do_not_share_is_an_error(tmp_path, monkeypatch, act):
    monkeypatch.setattr(workdir, "is_primary", lambda: False)
    with (
        Workdir(tmp_path / "local", CONFIG) as run,
        pytest.raises(ValueError, match="all hosts share"),
    ):
        act(run)


def test_the_first_start_records_a_value(tmp_path):
    for value in ("first", "changed"):
        with Workdir(tmp_path, CONFIG) as run:
            assert run.record("init_sha256", lambda value=value: value) == "first"
            run.require_data("da7a")
    with Workdir(tmp_path, CONFIG) as run, pytest.raises(ConfigDiffers, match="different data"):
        run.require_data("0ther")
