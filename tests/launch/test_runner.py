"""The local queue, the logs and the status, with processes that do not train."""

import json
import threading

import pytest

from launch import runner
from launch.cluster import Batch
from launch.jobs import Job, unfinished, write_jobs
from launch.log import open_log, write_exit_code
from launch.runner import Queue, environments
from launch.status import log_of, state_of, table
from tests.helpers import files_of_at_most
from tests.programs import ROOT

STUB = ROOT / "tests" / "launch" / "stub.py"


def job(folder, name, *flags, config="listops"):
    words = ["python", str(STUB), f"--config={config}", *flags, f"--workdir={folder / name}"]
    return Job(tuple(words))


def starts(job):
    return (job.folder / "starts").read_text().count("\n")


def kinds(folder, jobs):
    return [state_of(folder, job).kind for job in jobs]


def test_one_failure_of_any_kind_does_not_stop_the_rest_and_is_retried(tmp_path, capfd):
    acts = ("", "kill", "full", "full log", "diverge")
    jobs = [job(tmp_path, act.replace(" ", "-") or "plain", f"--act={act}") for act in acts]
    jobs.append(Job(("no-such-program", "--config=x", f"--workdir={tmp_path}/missing")))
    with files_of_at_most(5000):
        assert Queue(tmp_path, jobs, [{}] * 2).run(jobs) == 1
    said = capfd.readouterr().out
    assert "plain: done test accuracy 41.00 %" in said
    assert "kill: failed: killed by SIGKILL; the last line of its log: step 3/10: loss 2" in said
    assert f"full: failed: stub.py: {tmp_path}/full cannot be written (File too large)" in said
    assert (
        f"{log_of(tmp_path, jobs[3])} cannot be written (File too large): free some space" in said
    )
    assert "diverge: diverged at step 3" in said
    assert "missing: failed: no-such-program: No such file or directory" in said
    assert kinds(tmp_path, jobs)[:3] == ["done", "failed", "failed"]
    assert kinds(tmp_path, jobs)[4] == "diverged"
    text, code = table(tmp_path, jobs)
    assert code == 1
    assert "1 done, 1 diverged, 0 running, 2 failed, 2 waiting" in text

    log_of(tmp_path, jobs[3]).unlink()  # makes space
    todo = unfinished(jobs)
    assert todo == [*jobs[1:4], jobs[5]]
    assert Queue(tmp_path, jobs[:5], [{}] * 3).run(todo[:3]) == 0
    assert [starts(own) for own in jobs[:5]] == [1, 2, 2, 2, 1]
    assert table(tmp_path, jobs[:5])[1] == 0


def test_an_unreadable_result_does_not_stop_the_rest(tmp_path, capfd):
    waiting = job(tmp_path, "waiting")
    waiting.folder.mkdir()
    (waiting.folder / "result.json").write_text("{")
    garbled = job(tmp_path, "garbled", "--act=garble", "--notest")
    jobs = [garbled, waiting, job(tmp_path, "plain")]
    assert Queue(tmp_path, jobs, [{}]).run(jobs) == 1
    said = capfd.readouterr().out
    for own in jobs[:2]:
        assert f"{own.name}: failed: {own.folder}/result.json cannot be read as JSON" in said
    assert "plain: done test accuracy 41.00 %" in said
    jobs.append(job(tmp_path, "another"))
    write_jobs(tmp_path, jobs)
    assert Batch(tmp_path, 1)(jobs) == 1
    assert [starts(own) for own in jobs if own != waiting] == [1, 1, 1]
    assert capfd.readouterr().out.count("The test set of listops is not evaluated: ") == 1


def test_the_best_setting_is_tested_by_the_queue(tmp_path):
    jobs = [
        job(tmp_path, f"rate{rate}-seed{seed}", "--notest", f"--rate={rate}", f"--valid={valid}")
        for rate, valid in ((1, 0.3), (2, 0.5))
        for seed in range(2)
    ]
    assert Queue(tmp_path, jobs, [{}] * 4).run(jobs) == 0
    assert [starts(own) for own in jobs] == [1, 1, 2, 2]
    assert ["test_accuracy" in own.result for own in jobs] == [False, False, True, True]
    assert unfinished(jobs) == []
    (jobs[3].folder / "result.json").write_text(
        '{"valid_accuracy": 0.5, "state": "validated"}'
    )  # killed before its test
    text, code = table(tmp_path, jobs)
    assert code == 3
    assert (
        "rate2-seed1  waiting   validation accuracy 50.00 %; chosen, the test set is not evaluated"
        in text
    )


def test_status_of_a_candidate_that_failed_and_was_finished_by_hand(tmp_path):
    low, high = (job(tmp_path, name, "--notest", f"--{name}") for name in ("low", "high"))
    for own, accuracy in ((low, 0.3), (high, 0.5)):
        finish(own, accuracy)
        with open_log(log_of(tmp_path, own)) as log:
            write_exit_code(log, 1)
    text, code = table(tmp_path, [low, high])
    assert code == 1
    assert "low   done      validation accuracy 30.00 %" in text
    assert "high  failed    exit code 1" in text  # chosen: its test set is to be evaluated


def finish(job, accuracy):
    job.folder.mkdir(exist_ok=True)
    result = {"state": "validated", "valid_accuracy": accuracy}
    (job.folder / "result.json").write_text(json.dumps(result))


def test_candidates_may_be_finished_by_another_process(tmp_path):
    low, high = (job(tmp_path, name, "--notest", f"--{name}") for name in ("low", "high"))
    finish(high, 0.5)
    log = open_log(log_of(tmp_path, low))  # as if it runs

    def end():
        finish(low, 0.3)
        log.close()

    timer = threading.Timer(0.3, end)
    timer.start()
    assert Queue(tmp_path, [low, high], [{}]).run([low]) == 0
    timer.join()
    assert ["test_accuracy" in own.result for own in (low, high)] == [False, True]


def test_values_that_another_sweep_adds_take_part_in_the_choice(tmp_path):
    low, high, added = (
        job(tmp_path, f"valid{valid}", "--notest", f"--valid={valid}") for valid in (0.3, 0.5, 0.7)
    )
    for own, accuracy in ((low, 0.3), (high, 0.5)):
        finish(own, accuracy)
    queue = Queue(tmp_path, [low, high], [{}])
    write_jobs(tmp_path, [low, high, added])
    assert queue.run([]) == 0  # the choice waits for the other sweep
    assert not any("test_accuracy" in own.result for own in (low, high))
    finish(added, 0.7)
    assert queue.run([]) == 0
    assert ["test_accuracy" in own.result for own in (low, high, added)] == [False, False, True]


def test_a_requeued_batch_evaluates_the_choice_of_finished_candidates(tmp_path):
    jobs = [job(tmp_path, name, "--notest", f"--{name}") for name in ("low", "high")]
    for own, accuracy in zip(jobs, (0.3, 0.5), strict=True):
        finish(own, accuracy)
    write_jobs(tmp_path, jobs)
    assert Batch(tmp_path, 1)(jobs) == 0
    assert ["test_accuracy" in own.result for own in jobs] == [False, True]


def test_the_table_has_the_mean_over_seeds(tmp_path):
    jobs = [job(tmp_path, f"one-seed{seed}", f"--config.train.seed={seed}") for seed in range(4)]
    for own, accuracy in zip(jobs, (0.3, 0.4, 0.5), strict=False):
        own.folder.mkdir()
        result = {"valid_accuracy": 0.1, "test_accuracy": accuracy}
        (own.folder / "result.json").write_text(json.dumps(result))
    jobs[3].folder.mkdir()
    (jobs[3].folder / "result.json").write_text('{"state": "diverged", "step": 3}')
    assert (
        "one, 3 seeds and 1 that diverged: test accuracy 40.00 %, standard deviation 10.00, 95 %"
        in (table(tmp_path, jobs)[0])
    )
    assert "40.00" not in table(tmp_path, jobs[::3])[0]  # one seed has no statistics


def test_a_search_names_the_first_of_equals_by_the_metric_that_selects_checkpoints(
    tmp_path, capsys
):
    jobs = [job(tmp_path, f"batch{batch}-seed0", f"--batch={batch}") for batch in (8, 16, 32)]
    for own, f1 in zip(jobs, (0.7, 0.8, 0.8), strict=True):
        own.folder.mkdir()
        result = {"valid": {"f1": f1, "accuracy": 0.5}, "test": {"f1": 1 - f1}}
        (own.folder / "result.json").write_text(json.dumps(result))
    assert runner.run_all(tmp_path, jobs, [{}], "run_finetune.py", chooses=True) == 0
    said = capsys.readouterr().out
    assert "batch8-seed0   done      validation f1 70.00 %" in said
    assert said.endswith("best by validation: batch16\n")
    assert "best" not in table(tmp_path, jobs)[0]


def test_the_output_of_a_single_worker_is_printed(tmp_path, capfd):
    one = job(tmp_path, "one", "--act=kill")
    for _ in range(2):
        Queue(tmp_path, [one], [{}]).run([one])
    said = capfd.readouterr().out
    assert "one: started\nstep 3/10: loss 2\none: failed: killed by SIGKILL" in said
    assert said.count("\nstep 3/10: loss 2\n") == 1


def test_status_of_a_running_job_has_its_step_and_time_left(tmp_path):
    jobs = [job(tmp_path, name) for name in ("running", "waiting", "other")]
    jobs[2] = job(tmp_path, "other", config="text")
    jobs[0].folder.mkdir()
    (jobs[0].folder / "config.json").write_text('{"train": {"total_steps": 10}}')
    (jobs[0].folder / "metrics.jsonl").write_text('{"step": 3}\n{"st')
    (jobs[0].folder / "speed.jsonl").write_text('{"step": 3, "step_seconds": 720}\n')
    with open_log(log_of(tmp_path, jobs[0])):
        text, code = table(tmp_path, jobs)
    assert code == 3
    assert text.splitlines() == [
        "running  running   step 3 of 10, 1.4 h left",
        "waiting  waiting",
        "other    waiting",
        "",
        "Jobs: 0 done, 0 diverged, 1 running, 0 failed, 2 waiting. Time left: 3.4 h. Not counted, of"
        " unknown duration: 1.",
    ]
    assert state_of(tmp_path, jobs[0])[:2] == ("waiting", "stopped at step 3 of 10")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("result", "{}", "valid_accuracy is missing"),
        ("result", '{"valid_accuracy": "0.4"}', "valid_accuracy must be a number"),
        ("result", '{"state": "diverged"}', "step is missing"),
        ("config", "{}", "total_steps is missing"),
        ("config", '{"train": {}}', "total_steps is missing"),
    ],
)
def test_status_names_a_file_that_is_not_of_a_run(tmp_path, name, content, words):
    one = job(tmp_path, "one")
    one.folder.mkdir()
    (one.folder / f"{name}.json").write_text(content)
    with pytest.raises(ValueError, match=rf"{name}\.json.*{words}"):
        table(tmp_path, [one])


@pytest.mark.parametrize(
    ("variables", "workers", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, 0, ["4", "6"]),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, 1, ["4"]),
        ({"CUDA_VISIBLE_DEVICES": "4,6"}, 3, ["4", "6", "4"]),
        ({"CUDA_VISIBLE_DEVICES": "", "TPU_VISIBLE_CHIPS": "0,1"}, 0, ["0", "1"]),
    ],
)
def test_every_worker_has_an_accelerator(monkeypatch, variables, workers, expected):
    monkeypatch.delenv("JAX_PLATFORMS")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = environments(workers)
    name = next(name for name, value in variables.items() if value)
    assert [own[name] for own in found] == expected
    shared = {own.get("XLA_PYTHON_CLIENT_MEM_FRACTION") for own in found}
    assert shared == ({"0.45"} if workers == 3 else {None})


def test_workers_share_the_cores(monkeypatch, tmp_path):
    assert environments(2) == [{}, {}]  # NPROC is set for the tests
    monkeypatch.delenv("NPROC")
    monkeypatch.setattr(runner.os, "sched_getaffinity", lambda pid: range(7))
    assert [own["NPROC"] for own in environments(3)] == ["2", "2", "2"]
    own = job(tmp_path, "plain")
    Queue(tmp_path, [own], environments(3)).run([own])
    assert (own.folder / "starts").read_text().startswith("2 ")
