"""The command run_sweep.py: its messages, kill and resume, clusters, and a small sweep from end to end."""

import json
import os
import re
import signal
import time

import pytest

import run_sweep
from launch.jobs import read_jobs
from launch.runner import Queue
from tests import programs
from tests.programs import ROOT
from tests.test_run_lra import SMALL

# See launch.cluster.submit: absl's log handler would close the stream that pytest captures.
os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
STUB = ROOT / "tests" / "launch" / "stub.py"


def sweep(folder, *arguments):
    """Starts the command as a process."""
    return programs.start("run_sweep.py", f"--workdir={folder}", *arguments)


def write_stubs(folder, **acts):
    """Writes a jobs.txt of processes that do not train; returns its jobs."""
    folder.mkdir()
    lines = [
        f"python {STUB} --config=x '--act={act}' --workdir={folder / name}"
        for name, act in acts.items()
    ]
    (folder / "jobs.txt").write_text("\n".join(lines))
    return read_jobs(folder)


def starts(jobs):
    return [(job.folder / "starts").read_text().count("\n") for job in jobs]


def wait_for(path):
    deadline = time.monotonic() + programs.SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--workdir"),
        (["--workdir=x"], "x has no jobs.txt: pass --tasks"),
        (["--workdir=~nobody_here/x", "--status"], "this user does not exist"),
        (["--workdir=x", "--seeds=3"], "--seeds: without --tasks"),
        (["--workdir=x", "--status"], "pass the --workdir of a sweep"),
        (["--tasks=listop"], "did you mean configs/listops"),
        (["--tasks=glue"], "run_finetune.py"),
        (["--attentions=softmx"], "did you mean softmax?"),
        (["--attentions=num_landmarks=3"], "num_landmarks=3 is an option"),
        (["--tasks=mqar,pairs=99"], "MQAR with 256 tokens needs 1 to 64 pairs, got 99"),
        (["--attentions=softmax,softmax"], "listops-softmax-seed0"),
        (["--recipe=slow"], "Unknown recipe 'slow'"),
        (["--set=optimizer.learning_rat=1"], "did you mean optimizer.learning_rate"),
        (["--set=optimizer.learning_rate=fast"], "optimizer.learning_rate needs a number"),
        (["--set=optimizer.learning_rate=1,-1"], "needs a positive number, got -1.0"),
        (["--set=optimizer.learning_rate"], "--set needs KEY=VALUE"),
        (["--set=train.seed=1,2"], "pass --seeds"),
        (["--set=train.remat=1", "--set=train.remat=0"], "all its values at once"),
        (["--set=attention.name=softmax"], "pass --attentions"),
        (["--set=optimizer=3"], "optimizer is a section"),
        (["--data_dir=x"], "--set=data.dir=x"),
        (["--tasks=text", "--data_dir=x", "--set=data.dir=y"], "two values of one key"),
        (["--seeds=0"], "--seeds: needs a whole number from 1, got '0'"),
        (["--wrokers=2"], "--wrokers"),
        (["--slurm.partition=gpu"], "--submit=slurm"),
        (["--submit=slrm"], "invalid choice: 'slrm'"),
    ],
)
def test_an_invalid_command_is_one_line_and_exits_with_2(
    in_repository, tmp_path, monkeypatch, arguments, word
):
    monkeypatch.setattr(run_sweep.runner, "run_all", lambda *_: pytest.fail("started"))
    if arguments and not arguments[0].startswith("--workdir"):
        arguments = ["--tasks=listops", f"--workdir={tmp_path}", *arguments]
    answer = programs.call("run_sweep", *arguments)
    programs.assert_refused(answer, "run_sweep")
    assert word in answer.errors


@pytest.mark.parametrize("path", ["./configs/listops.py", f"{ROOT}/configs/listops.py"])
def test_a_task_may_be_the_path_of_its_config(in_repository, tmp_path, path):
    assert run_sweep.main([f"--tasks={path}", f"--workdir={tmp_path}", "--plan"]) == 0
    (job,) = read_jobs(tmp_path)
    assert f"--config={path}:nystrom" in job.command


def test_plan_writes_a_file_that_may_be_edited(in_repository, tmp_path, capsys):
    grid = ["--tasks=listops", "--attentions=softmax,linear", "--seeds=2", f"--workdir={tmp_path}"]
    assert run_sweep.main([*grid, "--plan"]) == 0
    assert len(read_jobs(tmp_path)) == 4
    lines = (tmp_path / "jobs.txt").read_text().splitlines()
    (tmp_path / "jobs.txt").write_text("\n".join([*lines[:-1], "# a note"]))
    assert run_sweep.main([f"--workdir={tmp_path}", "--plan"]) == 0
    assert f"Jobs in {tmp_path / 'jobs.txt'}: 3," in capsys.readouterr().out
    assert "# a note" in (tmp_path / "jobs.txt").read_text()
    assert run_sweep.main([f"--workdir={tmp_path}", "--status"]) == 3


@pytest.mark.parametrize(
    "values",
    [
        ["train.batch_size=16,32"],  # train.accumulation of the config is 0: chosen by device
        ["data.max_len=5000", "data.padded_len=5120"],  # the first alone is not valid
        ["train.remat=1,F", "model.stem=3,(5,5)"],  # as flags of run_lra.py
    ],
)
def test_grid_may_set_values_that_are_valid_together(in_repository, tmp_path, values):
    flags = ["--tasks=text", "--plan", *(f"--set={value}" for value in values)]
    assert run_sweep.main([*flags, f"--workdir={tmp_path}"]) == 0


def test_an_invalid_config_file_of_the_user_is_named(in_repository, tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def get_config(argument): return undefined")
    answer = programs.call("run_sweep", f"--tasks={file}", f"--workdir={tmp_path}/sweep")
    programs.assert_refused(answer, "run_sweep")
    assert f"{file} cannot be loaded: NameError" in answer.errors


@pytest.mark.usefixtures("in_repository")
def test_grid_has_attentions_and_tasks_of_other_packages(my_project, tmp_path, capsys):
    attention = "my_package.attention:CosFormer"
    tasks = f"--tasks=mqar,pairs=8,length=64,{my_project}/majority.py"
    flags = [f"--attentions={attention},max_len=2048,softmax", "--plan", f"--workdir={tmp_path}"]
    assert run_sweep.main([tasks, *flags]) == 0
    assert [job.config for job in read_jobs(tmp_path)] == [
        f"configs/mqar.py:{attention},max_len=2048,pairs=8,length=64",
        "configs/mqar.py:softmax,pairs=8,length=64",
        f"{my_project}/majority.py:{attention},max_len=2048",
        f"{my_project}/majority.py:softmax",
    ]
    assert run_sweep.main([tasks, "--attentions=no_package:Mean", *flags[1:]]) == 2
    assert "No module 'no_package'" in capsys.readouterr().err
    (my_project / "configs").mkdir()
    own = (my_project / "majority.py").rename(my_project / "configs" / "majority.py")
    assert run_sweep.main([f"--tasks={own}", "--plan", f"--workdir={tmp_path}/own"]) == 0


def test_another_current_folder_is_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_sweep.main(["--tasks=listops", "--plan", f"--workdir={tmp_path}/sweep"]) == 2
    assert f"run_lra.py is missing in {tmp_path}" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_sigterm_stops_all_runs_and_the_same_command_resumes(tmp_path):
    folder = tmp_path / "sweep"
    jobs = write_stubs(folder, a="stop", b="stop slowly", c="")
    process = sweep(folder, "--workers=2")
    for job in jobs[:2]:
        wait_for(job.folder / "ready")
    process.send_signal(signal.SIGTERM)
    answer = programs.finish(process)
    assert answer.code == 143
    assert answer.errors == "run_sweep.py: stopped; the same command resumes\n"
    assert answer.output.count("stopped; the same command resumes it") == 2
    assert not jobs[2].folder.exists()
    status = programs.finish(sweep(folder, "--status"))
    assert status.code == 3
    assert "a  waiting   stopped at step 3 of 10" in status.output
    assert programs.finish(sweep(folder, "--workers=2")).code == 0
    assert starts(jobs) == [2, 2, 1]
    answer = programs.finish(sweep(folder))
    assert answer.code == 0
    assert answer.output.startswith(f"Jobs in {folder}/jobs.txt: 3, 0 of them to run.\na  done")


def test_runs_of_a_killed_sweep_are_not_started_twice(tmp_path):
    folder = tmp_path / "sweep"
    jobs = write_stubs(folder, a="hold", b="")
    process = sweep(folder)
    wait_for(jobs[0].folder / "ready")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    status = programs.finish(sweep(folder, "--status"))
    assert "a  running   step 3 of 10, 1.4 h left" in status.output
    again = sweep(folder)
    wait_for(jobs[1].folder / "result.json")
    (jobs[0].folder / "go").touch()
    assert programs.finish(again).code == 0
    assert starts(jobs) == [1, 1]


def test_submitted_jobs_run_in_the_background_and_choose_by_validation(tmp_path):
    folder = tmp_path / "sweep"
    write_stubs(folder, low="", high="", bad="diverge")
    text = (folder / "jobs.txt").read_text().replace("--config", "--notest --config")
    text = text.replace("'--act=' --workdir", "--valid=0.5 --workdir").replace("=0.5", "=0.3", 1)
    (folder / "jobs.txt").write_text(text)
    low, high, bad = jobs = read_jobs(folder)
    answer = programs.finish(sweep(folder, "--submit=local", "--workers=2"))
    assert "Jobs submitted: 3, as the tasks" in answer.output
    while not high.with_test().is_finished:
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
    in_repository, tmp_path, monkeypatch, capsys
):
    folder, commands = tmp_path / "sweep", tmp_path / "bin"
    write_stubs(folder, **dict.fromkeys("abcde", ""))
    commands.mkdir()
    queued = "JobID|State|NodeList\\n77_[0-2]|PENDING|\\n"
    for name, line in {
        "srun": "exit 1",
        "sbatch": f"cp $1 {tmp_path}/script; echo Submitted batch job 77",
        "sacct": f"printf '{queued}'",
    }.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    flags = ["--submit=slurm", "--workers=2", "--slurm.partition=gpu", "--slurm.gpus_per_node=2"]
    more = ["--slurm.time=600", "--slurm.exclusive"]
    assert run_sweep.main([f"--workdir={folder}", *flags, *more]) == 0
    assert "Jobs submitted: 5, as the tasks 77_0, 77_1, 77_2." in capsys.readouterr().out
    script = (tmp_path / "script").read_text()
    for line in (
        "partition=gpu",
        "gpus-per-node=2",
        "time=600",
        "exclusive",
        "array=0-2%3",
        "signal=USR2@90",
    ):
        assert f"#SBATCH --{line}\n" in script
    assert run_sweep.main([f"--workdir={folder}", *flags]) == 0
    assert "already submitted: 77_0, 77_1, 77_2." in capsys.readouterr().out
    write_stubs(tmp_path / "other", a="")
    assert run_sweep.main([f"--workdir={tmp_path}/other", *flags, "--slurm.partiton=x"]) == 2
    assert "Unknown argument 'partiton'" in capsys.readouterr().err
    (commands / "sbatch").write_text("#!/bin/sh\necho invalid partition >&2; exit 1\n")
    assert run_sweep.main([f"--workdir={tmp_path}/other", *flags]) == 2
    assert re.search("--submit=slurm: .*invalid partition", capsys.readouterr().err)


@pytest.mark.slow(minutes=2)
def test_small_sweep_with_a_diverging_and_a_killed_run(tmp_path):
    """Two tasks, three attentions, two seeds; the same command finishes the killed run."""
    folder = tmp_path / "sweep"
    values = dict(word.removeprefix("--config.").split("=") for word in SMALL)
    values |= {"train.total_steps": 20, "checkpoint.every_steps": 20, "log.events": False}
    values = [f"--set={key}={x}" for key, x in values.items() if not key.startswith("attention.")]
    grid = [
        *("--tasks=listops,listops_short", "--attentions=softmax,linear,none,conv_kernel_size=3"),
        *("--seeds=2", "--workers=2", *values),
    ]
    assert programs.finish(sweep(folder, *grid, "--plan")).code == 0
    jobs = read_jobs(folder)
    assert len(jobs) == 12
    text = (folder / "jobs.txt").read_text()
    diverging, killed = jobs[0], jobs[-1]
    rate = "--config.optimizer.learning_rate=1e30"
    (folder / "jobs.txt").write_text(
        text.replace(f"--workdir={diverging.folder}\n", f"{rate} --workdir={diverging.folder}\n")
    )
    process = sweep(folder, "--workers=2")
    wait_for(killed.folder / ".lock")
    pid = int((killed.folder / ".lock").read_text() or 0)
    while not pid:
        pid = int((killed.folder / ".lock").read_text() or 0)
    os.kill(pid, signal.SIGKILL)
    answer = programs.finish(process)
    assert answer.code == 1, answer
    assert f"{diverging.name}: diverged at step" in answer.output
    assert f"{killed.name}: failed: killed by SIGKILL" in answer.output
    status = programs.finish(sweep(folder, "--status"))
    assert status.code == 1
    assert "Jobs: 10 done, 1 diverged, 0 running, 1 failed, 0 waiting." in status.output
    assert programs.finish(sweep(folder)).code == 0
    result = json.loads((killed.folder / "result.json").read_text())
    assert 0 <= result["test_accuracy"] <= 1
