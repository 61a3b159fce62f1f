"""The command run_sweep.py: its messages, kill and resume, clusters, and a small sweep from end to end."""

import os
import re
import signal
import threading
import time

import pytest

import run_sweep
from launch.jobs import read_jobs, write_jobs
from launch.runner import Queue
from tests import programs
from tests.launch.sweeps import job, starts, write_stubs
from tests.programs import ROOT

# See launch.cluster.submit: absl's log handler would close the stream that pytest captures.
os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")


def sweep(folder, *arguments):
    """Starts the command as a process."""
    return programs.start("run_sweep.py", f"--workdir={folder}", *arguments)


def call(folder, *arguments):
    """Calls the command in this process."""
    return programs.call("run_sweep", f"--workdir={folder}", *arguments)


def wait_for(path):
    deadline = time.monotonic() + programs.SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--workdir"),
        (["--workdir=x"], "--configs"),
        (["--workdir=~nobody_here/x", "--status"], "user"),
        (["--workdir=x", "--seeds=3"], "--seeds"),
        (["--configs=configs/listop.py"], "configs/listops"),
        (["--configs", *2 * ["configs/listops.py:softmax"]], "listops-softmax-seed0"),
        (["--set=optimizer.learning_rate=1,-1"], "-1.0"),
        (["--configs=configs/glue.py:mrpc", "--set=train.batch_size=8,0"], "batch_size"),
        (["--configs=configs/pretrian.py"], "configs/pretrain.py"),
        (["--set=optimizer.learning_rate"], "KEY=VALUE"),
        (["--set=train.seed=1,2"], "--seeds"),
        (["--set=train.remat=1", "--set=train.remat=0"], "at once"),
        (["--data_dir=x"], "--set=data.dir=x"),
        (["--configs=configs/text.py", "--data_dir=x", "--set=data.dir=y"], "--data_dir"),
        (["--wrokers=2"], "--wrokers"),
        (["--slurm.partition=gpu"], "--submit=slurm"),
    ],
)
def test_an_invalid_command_is_one_line_and_exits_with_2(
    in_repository, tmp_path, monkeypatch, arguments, word
):
    monkeypatch.setattr(run_sweep.runner, "run_all", lambda *_: pytest.fail("started"))
    if arguments and not arguments[0].startswith("--workdir"):
        arguments = ["--configs=configs/listops.py", f"--workdir={tmp_path}", *arguments]
    programs.assert_refused(programs.call("run_sweep", *arguments), "run_sweep", word)


def test_a_config_may_be_elsewhere(in_repository, tmp_path):
    for number, path in enumerate(("./configs/listops.py", f"{ROOT}/configs/listops.py")):
        folder = tmp_path / str(number)
        assert call(folder, f"--configs={path}", "--plan").code == 0
        (only,) = read_jobs(folder)
        assert f"--config={path}" in only.command
    (tmp_path / "own.py").write_text("def get_config(argument): return undefined")
    answer = call(tmp_path / "sweep", f"--configs={tmp_path}/own.py:x")
    programs.assert_refused(answer, "run_sweep", f"{tmp_path}/own.py cannot be loaded: NameError")


def test_plan_writes_a_file_that_may_be_edited(in_repository, tmp_path):
    names = [f"configs/listops.py:{attention}" for attention in ("softmax", "linear")]
    grid = ["--configs", *names, "--seeds=2"]
    assert call(tmp_path, *grid, "--plan").code == 0
    assert len(read_jobs(tmp_path)) == 4
    lines = (tmp_path / "jobs.txt").read_text().splitlines()
    (tmp_path / "jobs.txt").write_text("\n".join([*lines[:-1], "# a note"]))
    assert f"Jobs in {tmp_path / 'jobs.txt'}: 3," in call(tmp_path, "--plan").output
    assert "# a note" in (tmp_path / "jobs.txt").read_text()
    assert call(tmp_path, "--status").code == 3


@pytest.mark.parametrize(
    "values",
    [
        ["train.batch_size=16,32"],  # train.accumulation of the config is 0: chosen by device
        ["data.max_len=5000", "data.padded_len=5120"],  # the first alone is not valid
        ["train.remat=1,F", "model.stem=3,(5,5)"],  # as flags of run_lra.py
    ],
)
def test_grid_may_set_values_that_are_valid_together(in_repository, tmp_path, values):
    flags = ["--configs=configs/text.py", "--plan", *(f"--set={value}" for value in values)]
    assert call(tmp_path, *flags).code == 0


@pytest.mark.usefixtures("in_repository")
def test_grid_has_attentions_and_tasks_of_other_packages_and_language_models(my_project, tmp_path):
    names = [
        "configs/mqar.py:my_package.attention:CosFormer,max_len=2048,pairs=8,length=64",
        f"{my_project}/majority.py:softmax",
        "configs/glue.py:mrpc",
        f"{my_project}/mine.py:demo",
    ]
    (my_project / "mine.py").write_text("from configs.pretrain import get_config")
    assert call(tmp_path, *(f"--configs={name}" for name in names), "--plan").code == 0
    jobs = read_jobs(tmp_path)
    assert [own.config for own in jobs] == names
    programs = ["run_lra.py", "run_lra.py", "run_finetune.py", "run_pretrain.py"]
    assert [own.command[1] for own in jobs] == programs
    refused = call(tmp_path, "--configs=configs/mqar.py:no_package:Mean", "--plan")
    assert (refused.code, "No module named 'no_package'" in refused.errors) == (2, True)
    (my_project / "configs").mkdir()
    own = (my_project / "majority.py").rename(my_project / "configs" / "majority.py")
    assert call(tmp_path / "own", f"--configs={own}", "--plan").code == 0


def test_sigterm_stops_all_runs_and_the_same_command_resumes(in_repository, tmp_path):
    jobs = write_stubs(tmp_path, a="stop", b="stop slowly", c="")
    process = sweep(tmp_path, "--workers=2")
    for own in jobs[:2]:
        wait_for(own.folder / "ready")
    process.send_signal(signal.SIGTERM)
    answer = programs.finish(process)
    assert answer.code == 143
    assert answer.errors == "run_sweep.py: stopped; the same command resumes\n"
    assert answer.output.count("stopped; the same command resumes it") == 2
    assert not jobs[2].folder.exists()
    status = call(tmp_path, "--status")
    assert status.code == 3
    assert "a  waiting   stopped at step 3 of 10" in status.output
    assert call(tmp_path, "--workers=2").code == 0
    assert starts(jobs) == [2, 2, 1]
    answer = call(tmp_path)
    assert answer.code == 0
    assert answer.output.startswith(f"Jobs in {tmp_path}/jobs.txt: 3, 0 of them to run.\na  done")


def test_runs_of_a_killed_sweep_are_not_started_twice(in_repository, tmp_path):
    jobs = write_stubs(tmp_path, a="hold", b="")
    process = sweep(tmp_path)
    wait_for(jobs[0].folder / "ready")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "a  running   step 3 of 10, 1.4 h left" in call(tmp_path, "--status").output
    release = threading.Thread(
        target=lambda: [wait_for(jobs[1].folder / "result.json"), (jobs[0].folder / "go").touch()]
    )
    release.start()
    assert call(tmp_path).code == 0
    release.join()
    assert starts(jobs) == [1, 1]


def test_submitted_jobs_run_in_the_background_and_choose_by_validation(in_repository, tmp_path):
    acts = {"low": "--valid=0.3", "high": "--valid=0.5", "bad": "--act=diverge"}
    low, high, bad = jobs = [job(tmp_path, name, "--notest", act) for name, act in acts.items()]
    write_jobs(tmp_path, jobs)
    answer = call(tmp_path, "--submit=local", "--workers=2")
    assert "Jobs submitted: 3, as the tasks" in answer.output
    deadline = time.monotonic() + programs.SECONDS
    while not high.with_test().is_finished and time.monotonic() < deadline:
        time.sleep(0.05)
    assert starts(jobs) == [1, 2, 1]
    assert "test_accuracy" not in low.result
    assert bad.result["state"] == "diverged"


def test_a_preempted_job_saves_before_it_is_requeued_and_resumes(
    in_repository, tmp_path, monkeypatch
):
    import submitit

    monkeypatch.setenv("SUBMITIT_LOG_LEVEL", "INFO")
    folder = tmp_path / "sweep"
    jobs = write_stubs(folder, a="stop", b="")
    executor = submitit.LocalExecutor(tmp_path / "submitit")
    executor.update_parameters(timeout_min=60)
    task = executor.submit(Queue(folder, 1), jobs)
    wait_for(jobs[0].folder / "ready")
    os.kill(int((jobs[0].folder / "ready").read_text()), signal.SIGUSR2)  # as SLURM does
    assert task.result() == 0
    assert starts(jobs) == [2, 1]
    said = task.stdout()
    assert said.index("a: stopped") < said.index("Requeued job") < said.index("b: started")


def test_slurm_gets_one_array_and_jobs_are_not_submitted_twice(
    in_repository, tmp_path, monkeypatch
):
    folder, commands = tmp_path / "sweep", tmp_path / "bin"
    write_stubs(folder, **dict.fromkeys("abcde", ""))
    commands.mkdir()

    def write_command(name, line):
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)

    write_command("srun", "exit 1")
    write_command("sbatch", f"cp $1 {tmp_path}/script; echo Submitted batch job 77")
    write_command("sacct", r"printf 'JobID|State|NodeList\n77_[0-2]|PENDING|\n'")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    flags = ["--submit=slurm", "--workers=2", "--slurm.partition=gpu", "--slurm.gpus_per_node=2"]
    answer = call(folder, *flags, "--slurm.time=600", "--slurm.exclusive")
    assert "Jobs submitted: 5, as the tasks 77_0, 77_1, 77_2." in answer.output
    script = (tmp_path / "script").read_text()
    values = "partition=gpu gpus-per-node=2 time=600 exclusive array=0-2%3 signal=USR2@90"
    for value in values.split():
        assert f"#SBATCH --{value}\n" in script
    assert "already submitted: 77_0, 77_1, 77_2." in call(folder, *flags).output
    write_stubs(tmp_path / "other", a="")
    refused = call(tmp_path / "other", *flags, "--slurm.partiton=x")
    assert (refused.code, "'partiton'" in refused.errors) == (2, True)
    write_command("sbatch", "echo invalid partition >&2; exit 1")
    refused = call(tmp_path / "other", *flags)
    assert refused.code == 2
    assert re.search("--submit=slurm: .*invalid partition", refused.errors)
