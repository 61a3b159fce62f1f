"""Sections of the page, and commands of runs."""

import re
import shlex

import pytest

from configs import common
from lra.report.page import command, make, summary
from tests.lra.report.runs import groups_in, write_run, write_seeds
from tests.lra.report.test_labels import CONFIGS, config


def sections_of(groups, folder, left_out=()):
    """The text of each section of the page, by title."""
    page = make(groups, left_out, folder / "report")[0]
    return dict(part.split("\n\n", 1) for part in page.split("\n## ")[1:])


def test_unpublished_task_has_no_comparison(tmp_path):
    write_run(tmp_path / "a", task="listops-short")
    sections = sections_of(groups_in(tmp_path), tmp_path)
    assert list(sections) == ["listops-short", "How it was measured", "Sources"]
    assert "cannot be compared with published" in sections["listops-short"]
    write_run(tmp_path / "b")
    sections = sections_of(groups_in(tmp_path), tmp_path)
    assert list(sections)[:2] == ["Comparison with published results", "ListOps"]
    assert "cannot be compared with published" not in sections["ListOps"]


def test_page_states_the_number_of_corrected_tests(tmp_path):
    for task in ("listops", "text"):
        write_seeds(tmp_path / task / "a", [0.36, 0.37, 0.39], task=task)
        write_seeds(
            tmp_path / task / "b", [0.3, 0.31, 0.32], task=task, attention={"name": "softmax"}
        )
    sections = sections_of(groups_in(tmp_path), tmp_path)
    assert "for all tests of this report (2)" in sections["ListOps"]
    one = groups_in(tmp_path / "listops" / "a")
    assert "Differences" not in sections_of(one, tmp_path)["ListOps"]


def test_page_states_the_budget_of_a_grid(tmp_path):
    for landmarks in (16, 32):
        for iters in (2, 6):
            attention = {"name": "nystrom", "num_landmarks": landmarks, "pinv_iters": iters}
            write_run(tmp_path / f"{landmarks}-{iters}", attention=attention, partial=True)
    section = sections_of(groups_in(tmp_path), tmp_path)["ListOps"]
    assert "nystrom attention over two of its options, 20 of 5,000 steps" in section
    assert "Partial runs." in section
    assert "| num_landmarks ↓, pinv_iters → |" in section


def test_measurement_section_has_every_run(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, result={"versions": {"jax": "0.11.0"}})
    write_run(tmp_path / "c", seed=2)
    page = make(groups_in(tmp_path), ["one is left out"], tmp_path / "report")[0]
    assert "* All others: jax 0.10.2." in page
    assert "* b: jax 0.11.0." in page
    assert (
        "| c | ListOps | nystrom-64 | 2 | 1 × cpu, 2 threads | generated | c0ffeec0ffee | da7ada7ada7a |"
        in page
    )
    assert "--config.train.seed=2 --workdir=c" in page
    assert "* one is left out" in page


@pytest.mark.parametrize("task", CONFIGS)
@pytest.mark.parametrize(
    "argument",
    [
        "nystrom",
        "softmax,dropout_rate=0.2",
        "nystrom,num_landmarks=32,pinv_iters=2,quirks=mlpen",
        "nystrom,recipe=fast,pinv_iters=2",
        "softmax,conv_kernel_size=0,quirks=google",
    ],
)
def test_command_of_a_run_reproduces_its_config(tmp_path, task, argument):
    values = config(
        argument,
        task,
        data={"dir": "FOLDER", "source": "files"},
        model={"num_layers": 3},
        optimizer={"warmup_steps": 70},
        train={"seed": 5, "total_steps": 700},
        eval={"every_steps": 140},
    )
    write_run(tmp_path / "run", task=CONFIGS[task], config=values, attention=values["attention"])
    (group,) = groups_in(tmp_path / "run")
    line = command(group.runs[0], group)
    file, given = re.search(r"--config=configs/(\w+)\.py:(\S+)", line).groups()
    again = config(given, file)
    assert "resolution" not in given
    assert all(preset in given for preset in re.findall(r"recipe=\w+|quirks=\w+", argument))
    assert "--config.model.stem" not in line
    for key, value in re.findall(r"--config\.(\S+)=(\S+)", line):
        section, option = key.split(".")
        again[section][option] = type(again[section][option])(value)
    assert again == values


def test_command_of_a_run_is_the_recorded_one(tmp_path):
    values = config("nystrom,recipe=fast,pinv_iters=2", train={"seed": 5, "batch_size": 8})
    values["attention"]["num_landmarks"] = 16
    values["command"] = {"config": "configs/listops.py:nystrom,pinv_iters=2,recipe=fast"}
    write_run(tmp_path / "run", config=values, attention=values["attention"], seed=5)
    (group,) = groups_in(tmp_path / "run")
    assert command(group.runs[0], group) == (
        "python run_lra.py --config=configs/listops.py:nystrom,pinv_iters=2,recipe=fast"
        " --config.attention.num_landmarks=16 --config.train.batch_size=8"
        " --config.train.seed=5 --workdir=run"
    )
    assert group.label == "nystrom-16, 2 iterations, batch 8, recipe=fast"
    values["command"] = {"config": "my configs/own.py"}
    write_run(tmp_path / "own", config=values, attention=values["attention"], seed=5)
    (group,) = groups_in(tmp_path / "own")
    assert command(group.runs[0], group) == (
        "python run_lra.py '--config=my configs/own.py' --config.train.seed=5 --workdir=own"
        "  # with the values of own/config.json"
    )


def test_command_of_a_run_without_a_test_evaluates_no_test_set(tmp_path):
    result = {"state": "validated", "valid_accuracy": 0.4, "test_accuracy": None}
    write_run(tmp_path / "tried", result=result)
    write_run(tmp_path / "tested", seed=4)
    groups = groups_in(tmp_path)
    lines = {run.state: command(run, group) for group in groups for run in group.runs}
    assert " --notest --config.train.seed=3 " in lines["validated"]
    assert "--notest" not in lines["complete"]
    assert summary(groups).startswith("2 finished (1 not tested) of 2 runs, ")


def test_runs_with_and_without_a_recorded_command_are_grouped(tmp_path):
    for seed, argument in enumerate(["nystrom", "nystrom,recipe=paper,quirks=none", ""]):
        values = config("nystrom", train={"seed": seed})
        values["command"] = {"config": f"configs/listops.py:{argument}".rstrip(":")}
        write_run(tmp_path / str(seed), config=values, attention=values["attention"], seed=seed)
    older = config("nystrom", train={"seed": 3})
    write_run(tmp_path / "older", config=older, attention=older["attention"], seed=3)
    (group,) = groups_in(tmp_path)
    assert (group.label, len(group.runs)) == ("nystrom-64", 4)


def test_commands_of_runs_in_folders_of_the_same_name_have_different_folders(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "wide model" / "b", seed=1)
    write_run(tmp_path / "small" / "b", seed=2)
    (group,) = groups_in(tmp_path)
    folders = [shlex.split(command(run, group), comments=True)[-1] for run in group.runs]
    assert folders == ["--workdir=a", "--workdir=wide model-b", "--workdir=small-b"]


def test_tuples_in_a_command_are_quoted(tmp_path):
    write_run(tmp_path / "run", config=config("nystrom,recipe=fast", model={"stem": (3, 3)}))
    (group,) = groups_in(tmp_path / "run")
    line = command(group.runs[0], group)
    assert ":nystrom,recipe=fast " in line
    assert "--config.model.stem=(3, 3)" in shlex.split(line)


def test_page_lists_differences_of_the_fast_recipe_from_the_paper(tmp_path):
    write_run(tmp_path / "paper")
    assert "recipe=fast" not in sections_of(groups_in(tmp_path), tmp_path)
    write_run(tmp_path / "a", config=config("nystrom,recipe=fast"))

    def sentences():
        section = sections_of(groups_in(tmp_path), tmp_path)["recipe=fast"]
        return [line[2:] for line in section.splitlines() if line.startswith("* ")]

    rate = "optimizer.learning_rate 0.0001 → 0.002"
    (alone,) = sentences()
    assert alone.startswith("ListOps: attention.")
    assert rate in alone
    fast = config("softmax,recipe=fast", "text")
    write_run(tmp_path / "b", task="text", config=fast)
    shared, listops, text = sentences()
    assert shared.startswith("Every task: ")
    assert rate in shared
    assert rate not in listops + text
    assert f"train.total_steps 20000 → {fast['train']['total_steps']}" in text
    assert "attention.num_landmarks 64 → 32 (nystrom)" in listops
    assert "nystrom" not in shared + text


def test_command_contains_resolution_and_difficulty(tmp_path):
    values = config("nystrom,resolution=64,difficulty=easy", "pathfinder")
    assert values["attention"] == {"name": "nystrom", **common.ATTENTIONS["nystrom"]}
    task = values["data"]["task"]
    write_run(tmp_path / "run", task=task, config=values, attention=values["attention"])
    (group,) = groups_in(tmp_path / "run")
    assert ":nystrom,resolution=64,difficulty=easy " in command(group.runs[0], group)
