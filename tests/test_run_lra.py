"""The command as a process: exit codes, messages, and kill -9 during a run."""

import contextlib
import fcntl
import json
import re
import signal

import jax
import pytest

from configs import listops
from lra import data, train
from nystromformer_jax import training
from nystromformer_jax.support.durable import write_json
from nystromformer_jax.training.plan import make_plan
from tests import programs
from tests.programs import assert_refused, call, finish, wait_for_lines

LISTOPS = "--config=configs/listops.py"
SMALL = [
    f"--config.{value}"
    for value in (
        *("data.examples=60", "data.max_len=64", "data.workers=1"),
        *("model.num_layers=1", "model.embed_dim=8", "model.head_dim=4", "model.mlp_dim=8"),
        *("attention.num_landmarks=4", "attention.conv_kernel_size=3", "optimizer.warmup_steps=2"),
        *("train.batch_size=8", "train.total_steps=400", "eval.every_steps=200"),
        *("checkpoint.every_steps=10", "log.every_steps=10"),
    )
]


def start(*arguments, config="configs/listops.py", **environment):
    return programs.start("run_lra.py", f"--config={config}", *arguments, **environment)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--config=configs/listops.py"),
        (["--config=configs/listop.py"], "configs/listops.py"),
        (["--config="], "configs/image.py"),
        (["--config=configs/listops.py:nystrom,landmarks=3"], "num_landmarks"),
        ([LISTOPS, "--config.train.total_stpes=3"], "train.total_steps"),
        ([LISTOPS, "--config.data.dir", "--mode=check"], "--config.data.dir"),
        ([LISTOPS, "--config.train.total_steps=1.5"], "whole number"),
        ([LISTOPS, "--config.train.total_steps=99999999999999999999", "--mode=check"], "2**32"),
        ([LISTOPS, "--config.optimizer.learning_rate=nan", "--mode=check"], "finite"),
        ([LISTOPS, "--config.model.embed_dim=0", "--mode=check"], "model.embed_dim"),
        ([LISTOPS, "--config.data.max_len=-1", "--mode=check"], "data.max_len"),
        ([LISTOPS, "--config.attention.pinv_start=a\nb", "--mode=check"], "pinv_start"),
        ([LISTOPS, '--config.log={"every_steps": 5}'], "section"),
        ([f"{LISTOPS}:nystrom", "--config.attention.name=softmax"], "after the colon"),
        (["--config.eval.batch_size=4", "--workdir=x"], "--config=FILE"),
        ([LISTOPS, "--wrokdir=x"], "--wrokdir"),
    ],
)
def test_invalid_flags_print_one_line_and_exit_with_2(in_repository, arguments, word):
    assert_refused(call("run_lra", *arguments), "run_lra", word)


def test_data_are_verified_and_described(in_repository):
    words = ["--config=configs/listops_short.py", "--mode=data", "--config.data.workers=1"]
    answer = call("run_lra", *words, "--config.data.examples=3")
    assert answer.code == 0, answer
    assert "all hashes verified" in answer.output
    assert "| train | 3 | 3 |" in answer.output
    assert re.search(r"Training example 1, label \d:\n\[", answer.output)


@pytest.mark.slow(minutes=0.8)
def test_thirty_steps_stay_within_one_and_a_half_times_the_plan(tmp_path):
    """Freed memory returns to the system. With a heap that only grows, it was four times the plan."""
    sizes = {"train.accumulation": 1, "train.batch_size": 8, "train.total_steps": 30}
    sizes |= {"data.examples": 100, "optimizer.warmup_steps": 1, "eval.max_examples": 8}
    arguments = [f"--config.{key}={value}" for key, value in sizes.items()]
    code, _, errors = finish(start(*arguments, f"--workdir={tmp_path}"))
    assert code == 0, errors
    config = json.loads((tmp_path / "config.json").read_text())
    plan = make_plan(train.make_spec(train.prepare(config, jax.devices()[:1])))
    program = 0.8 * 2**30  # without arrays: Python, the libraries, and compiling
    peak = json.loads((tmp_path / "result.json").read_text())["peak_bytes"]
    assert peak < program + 1.5 * plan.memory.total


@pytest.mark.slow(minutes=0.5)
def test_several_seeds_are_a_sweep_whose_status_can_be_read(tmp_path):
    values = [word.removeprefix("--config.") for word in [*SMALL, "--config.train.total_steps=3"]]
    settings = dict(value.split("=", 1) for value in values)
    words = [f"--set={key}={value}" for key, value in settings.items()]
    folder = f"--workdir={tmp_path}"
    sweep = ("run_sweep.py", "--configs=configs/listops.py", "--seeds=3", folder, *words)
    code, output, errors = finish(programs.start(*sweep))
    assert (code, errors) == (0, "")
    assert "listops-seed2: started" in output
    assert "step 3/3" in output  # of the runs
    assert "listops, 3 seeds: test accuracy" in output
    config = json.loads((tmp_path / "listops-seed2" / "config.json").read_text())
    assert config["label"].startswith("nystrom-4, conv_kernel_size=3, ")
    assert config["recipe"] == "paper"
    assert config["command"].startswith("python run_lra.py --config=configs/listops.py")
    assert "--config.train.seed=2" in config["command"]
    status = finish(programs.start("run_sweep.py", folder, "--status"))
    assert "listops-seed0  done      test accuracy" in status.output


@pytest.fixture
def evaluated(in_repository, monkeypatch, tmp_path):
    """A finished run of ListOps over 20 steps, its config, and what was loaded and evaluated."""
    config = listops.get_config("nystrom,num_landmarks=32").to_dict()
    config["train"] |= {"total_steps": 20, "seed": 7, "accumulation": 1}
    config["optimizer"]["warmup_steps"] = 5
    folder, seen = tmp_path / "run", {"configs": [], "loads": 0}
    folder.mkdir()
    result = {"task": "listops", "attention": "nystrom", "best_step": 4, "valid_accuracy": 0.35}
    result |= {"test_accuracy": 0.36, "test_examples": 2000}
    write_json(folder / "config.json", {**config, "hashes": {"sha256": "da7a"}})
    write_json(folder / "result.json", result)

    def load(config):
        seen["loads"] += 1

    def evaluate_checkpoint(run, task, workdir, *, test):
        workdir.require_result()
        seen["configs"].append(run.config)
        seen["test"] = test
        return result

    @contextlib.contextmanager
    def sync_errors():
        before = seen["loads"]
        yield
        seen["synced"] = seen["loads"] > before or seen.get("synced", False)

    monkeypatch.setattr(training, "sync_errors", sync_errors)
    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(train, "evaluate_checkpoint", evaluate_checkpoint)
    return folder, config, seen


@pytest.mark.parametrize("given", [[], [LISTOPS]])
def test_evaluates_a_run_with_its_own_config(evaluated, given):
    folder, config, seen = evaluated
    before = sorted(folder.iterdir())
    answer = call("run_lra", *given, "--mode=eval", f"--workdir={folder}")
    assert answer.code == 0, answer
    assert json.dumps(seen["configs"]) == json.dumps([config])
    assert sorted(folder.iterdir()) == before
    call("run_lra", LISTOPS, "--config.eval.batch_size=8", "--mode=eval", f"--workdir={folder}")
    assert seen["configs"][1]["eval"]["batch_size"] == 8
    assert seen["configs"][1]["train"] == config["train"]
    assert seen["test"]
    assert seen["synced"]  # all processes see an error of the data
    call("run_lra", "--mode=eval", "--notest", f"--workdir={folder}")
    assert not seen["test"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--mode=eval", LISTOPS, "--config.train.batch_size=8"], "batch_size: 32 in the run, 8"),
        (["--mode=eval", LISTOPS, "--config.train.seed=3"], "train.seed: 7 in the run, 3 now"),
        (["--mode=eval", "--config=configs/text.py"], "listops with nystrom attention"),
        (["--mode=eval", f"{LISTOPS}:softmax"], "listops with softmax attention"),
        ([LISTOPS], "train.total_steps: 20 in the run, 5000 now"),
        (["--mode=eval"], "config.json"),  # which is missing
        (["--mode=eval"], "result.json"),
    ],
)
def test_rejects_another_config_or_an_unfinished_run_before_preparing_data(
    evaluated, arguments, word
):
    folder, _, seen = evaluated
    if word.endswith(".json"):
        (folder / word).unlink()
    assert_refused(call("run_lra", *arguments, f"--workdir={folder}"), "run_lra", word)
    assert not seen["loads"]


def test_missing_data_folder_prints_one_line_and_leaves_no_run(in_repository, tmp_path):
    arguments = [f"--config.data.dir={tmp_path}/nowhere", f"--workdir={tmp_path}/run"]
    assert_refused(call("run_lra", LISTOPS, *arguments), "run_lra", "basic_train.tsv")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow(minutes=0.1)
def test_several_processes_report_the_same_error_for_a_folder_in_use(tmp_path):
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        both = ("launch/local.py", "2", "run_lra.py", LISTOPS, *SMALL, f"--workdir={tmp_path}")
        code, output, errors = finish(programs.start(*both, NPROC=8))
    said = re.findall(r"^\[(\d)\] run_lra.py: .* is in use by another process", output, re.M)
    assert (code, sorted(said)) == (2, ["0", "1"]), (output, errors)
    assert not re.search("Fatal|aborted", output + errors, re.IGNORECASE)


@pytest.mark.slow(minutes=2)
def test_same_command_resumes_after_kill_9_with_the_same_bits(tmp_path):
    parts = [*SMALL, "--config.train.accumulation=4"]
    code, output, _ = finish(start(*parts, f"--workdir={tmp_path}/whole"))
    assert code == 0
    assert "test accuracy" in output
    killed = start(*parts, f"--workdir={tmp_path}/killed")
    metrics = tmp_path / "killed" / "metrics.jsonl"
    wait_for_lines(tmp_path / "killed", 12, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "killed" / "result.json").exists()
    code, _, errors = finish(start(*parts, f"--workdir={tmp_path}/killed"))
    assert code == 0
    assert "Resuming from step" in errors
    assert metrics.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "killed")
    ]
    for key in ("test_accuracy", "valid_accuracy", "best_step", "config_sha256", "data_sha256"):
        assert results[0][key] == results[1][key]
