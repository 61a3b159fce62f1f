"""The local queue, the logs and the table, with processes that do not train."""

import re
import threading

import pytest

from launch import runner
from launch.jobs import MARK, Job, unfinished, write_jobs
from launch.runner import Queue, environments
from launch.status import table
from tests.helpers import files_of_at_most
from tests.launch.sweeps import finish, job, starts


def candidates(folder, **accuracies):
    """Jobs that choose by validation; those with an accuracy have finished."""
    jobs = [
        job(folder, name, "--notest", f"--{name}", f"--valid={accuracy or 0.7}")
        for name, accuracy in accuracies.items()
    ]
    for own, accuracy in zip(jobs, accuracies.values(), strict=True):
        if accuracy is not None:
            finish(own, accuracy)
    return jobs


def run(folder, jobs, todo, workers=1):
    write_jobs(folder, jobs)
    return Queue(folder, workers)(todo)


def have_test(jobs):
    return ["test_accuracy" in own.result for own in jobs]


def test_one_failure_of_any_kind_does_not_stop_the_rest_and_is_retried(tmp_path, capfd):
    acts = ("", "kill", "full", "full log", "diverge", "garble")
    jobs = [job(tmp_path, act.replace(" ", "-") or "plain", f"--act={act}") for act in acts]
    jobs.append(Job(tmp_path, ("no-such-program", "--config=x", f"--workdir={tmp_path}/missing")))
    with files_of_at_most(5000):
        assert run(tmp_path, jobs, jobs, workers=2) == 1
    said = capfd.readouterr().out
    for words in (
        "plain: done test accuracy 41.00 %",
        "kill: failed: killed by SIGKILL; the last line of its log: step 3/10: loss 2",
        f"full: failed: stub.py: {tmp_path}/full cannot be written (File too large)",
        f"{jobs[3].log} cannot be written (File too large): free some space",
        "diverge: diverged at step 3",
        f"garble: failed: {tmp_path}/garble/result.json cannot be read as JSON",
        "missing: failed: no-such-program: No such file or directory",
    ):
        assert words in said
    text, code = table(jobs)
    assert code == 1
    assert "1 done, 1 diverged, 0 running, 4 failed, 1 waiting" in text

    jobs[3].log.unlink()  # makes space
    (jobs[5].folder / "result.json").unlink()
    todo = unfinished(jobs)
    assert todo == [*jobs[1:4], *jobs[5:]]
    assert run(tmp_path, jobs[:5], todo[:3], workers=3) == 0
    assert starts(jobs[:5]) == [1, 2, 2, 2, 1]
    assert table(jobs[:5])[1] == 0


def test_the_best_setting_is_tested_by_the_queue(tmp_path):
    jobs = [
        job(tmp_path, f"rate{rate}-seed{seed}", "--notest", f"--rate={rate}", f"--valid={valid}")
        for rate, valid in ((1, 0.3), (2, 0.5))
        for seed in range(2)
    ]
    assert run(tmp_path, jobs, jobs, workers=4) == 0
    assert starts(jobs) == [1, 1, 2, 2]
    assert have_test(jobs) == [False, False, True, True]
    assert unfinished(jobs) == []
    assert "best by validation: rate2" in table(jobs)[0]
    finish(jobs[3], 0.5)  # killed before its test
    text, code = table(jobs)
    assert code == 3
    assert "rate2-seed1  waiting   validation accuracy 50.00 %; chosen" in text


def test_state_of_a_candidate_that_failed_and_was_finished_by_hand(tmp_path):
    jobs = candidates(tmp_path, low=0.3, high=0.5)
    for own in jobs:
        with own.open_log() as log:
            log.write(f"{MARK}1\n".encode())
    text, code = table(jobs)
    assert code == 1
    assert "low   done      validation accuracy 30.00 %" in text
    assert "high  failed    exit code 1" in text  # chosen: its test set is to be evaluated


def test_candidates_may_be_finished_by_another_process(tmp_path):
    low, _ = jobs = candidates(tmp_path, low=None, high=0.5)
    log = low.open_log()  # as if it runs

    def end():
        finish(low, 0.3)
        log.close()

    timer = threading.Timer(0.3, end)
    timer.start()
    assert run(tmp_path, jobs, [low]) == 0
    timer.join()
    assert have_test(jobs) == [False, True]


def test_values_that_another_sweep_adds_take_part_in_the_choice(tmp_path):
    jobs = candidates(tmp_path, low=0.3, high=0.5, added=None)
    assert run(tmp_path, jobs, []) == 0  # the choice waits for the other sweep
    assert have_test(jobs[:2]) == [False, False]
    finish(jobs[2], 0.7)
    assert run(tmp_path, jobs, []) == 0
    assert have_test(jobs) == [False, False, True]


def test_the_table_has_the_mean_over_seeds(tmp_path):
    jobs = [job(tmp_path, f"one-seed{seed}", f"--config.train.seed={seed}") for seed in range(4)]
    for own, accuracy in zip(jobs, (0.3, 0.4, 0.5, None), strict=True):
        finish(own, accuracy and 0.1, test_accuracy=accuracy)
    words = "one, 3 seeds and 1 that diverged: test accuracy 40.00 %, standard deviation 10.00"
    assert words in table(jobs)[0]
    assert "40.00" not in table(jobs[::3])[0]  # one seed has no statistics


def test_status_of_a_running_job_has_its_step_and_time_left(tmp_path):
    jobs = [job(tmp_path, name) for name in ("running", "waiting")]
    jobs.append(job(tmp_path, "other", config="text"))
    jobs[0].folder.mkdir()
    (jobs[0].folder / "config.json").write_text('{"train": {"total_steps": 10}}')
    (jobs[0].folder / "metrics.jsonl").write_text('{"step": 3}\n{"st')
    (jobs[0].folder / "speed.jsonl").write_text('{"step": 3, "step_seconds": 720}\n')
    with jobs[0].open_log():
        text, code = table(jobs)
    assert code == 3
    assert text.splitlines() == [
        "running  running   step 3 of 10, 1.4 h left",
        "waiting  waiting",
        "other    waiting",
        "",
        "Jobs: 0 done, 0 diverged, 1 running, 0 failed, 2 waiting. Time left: 3.4 h. Not counted, of"
        " unknown duration: 1.",
    ]
    assert jobs[0].state()[:2] == ("waiting", "stopped at step 3 of 10")
    (jobs[0].folder / "config.json").write_text('{"train": {"total_steps": 0}}')  # in epochs
    assert jobs[0].state() == ("waiting", "stopped at step 3", None, None)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("result", "{}", "valid_accuracy"),
        ("result", '{"valid_accuracy": "0.4"}', "number"),
        ("result", '{"state": "diverged"}', "step"),
        ("config", '{"train": {}}', "total_steps"),
    ],
)
def test_a_run_with_an_invalid_file_has_failed_and_is_not_chosen(tmp_path, name, content, word):
    _, bad = jobs = candidates(tmp_path, good=0.5, bad=None)
    bad.folder.mkdir()
    (bad.folder / f"{name}.json").write_text(content)
    text, code = table(jobs)
    assert code == 1
    assert re.search(rf"bad   failed    {bad.folder}/{name}\.json: .*{word}", text)
    assert unfinished(jobs) == [bad]


@pytest.mark.parametrize(
    ("variables", "workers", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, 0, ["4", "6"]),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, 3, ["4", "6", "4"]),
        ({"CUDA_VISIBLE_DEVICES": "", "TPU_VISIBLE_CHIPS": "0,1"}, 0, ["0", "1"]),
    ],
)
def test_every_worker_has_an_accelerator(monkeypatch, variables, workers, expected):
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = environments(workers)
    name = next(name for name, value in variables.items() if value)
    assert [own[name] for own in found] == expected
    shared = {own.get("XLA_PYTHON_CLIENT_MEM_FRACTION") for own in found}
    assert shared == ({"0.45"} if workers == 3 else {None})


@pytest.mark.parametrize("pattern", ["/dev/accel", "/dev/vfio/"])
def test_tpu_chips_of_either_kind_are_found_if_jax_can_use_them(monkeypatch, pattern):
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed)
    monkeypatch.setattr("glob.glob", lambda name: ["chip"] * 4 if name.startswith(pattern) else [])
    installed = None
    assert len(environments(0)) == 1  # jax for CPUs: one run at a time
    installed = "libtpu"
    assert [own["TPU_VISIBLE_CHIPS"] for own in environments(0)] == ["0", "1", "2", "3"]


def test_workers_share_the_cores(monkeypatch, tmp_path):
    assert environments(1) == [{}]
    assert environments(2) == [{}, {}]  # NPROC is set for the tests
    monkeypatch.delenv("NPROC")
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda pid: range(7))
    assert [own["NPROC"] for own in environments(3)] == ["2", "2", "2"]
    own = job(tmp_path, "plain")
    run(tmp_path, [own], [own], workers=3)
    assert (own.folder / "starts").read_text().startswith("2 ")
