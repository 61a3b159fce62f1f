"""The report tells all of it: published rows, tasks, differences, grids, and how it was measured."""

import re

import pytest

from configs import common
from harness.tables import Table
from lra.report.sections import command, make_sections, markdown
from tests.lra.report.runs import groups_in, write_run, write_seeds
from tests.lra.report.test_labels import CONFIGS, config


def sections_of(groups, left_out=()):
    pictures = {group.task: group.task for group in groups}
    return {section.title: section for section in make_sections(groups, left_out, pictures)}


def words_of(section):
    return " ".join(block for block in section.blocks if isinstance(block, str))


def test_a_task_that_is_not_published_stands_beside_nothing(tmp_path):
    write_run(tmp_path / "a", task="listops-short")
    sections = sections_of(groups_in(tmp_path))
    assert list(sections) == ["listops-short", "How it was measured", "Sources"]
    assert "beside none of theirs" in words_of(sections["listops-short"])
    write_run(tmp_path / "b")
    sections = sections_of(groups_in(tmp_path))
    assert list(sections)[:2] == ["Beside published results", "ListOps"]
    assert "beside none" not in words_of(sections["ListOps"])


def test_differences_say_over_how_many_tests_they_were_corrected(tmp_path):
    for task in ("listops", "text"):
        write_seeds(tmp_path / task / "a", [0.36, 0.37, 0.39], task=task)
        write_seeds(
            tmp_path / task / "b", [0.3, 0.31, 0.32], task=task, attention={"name": "softmax"}
        )
    sections = sections_of(groups_in(tmp_path))
    assert "for all tests of this report (2)" in words_of(sections["ListOps"])
    one = groups_in(tmp_path / "listops" / "a")
    assert "Differences" not in words_of(sections_of(one)["ListOps"])


def test_a_grid_is_told_with_its_budget(tmp_path):
    for landmarks in (16, 32):
        for iters in (2, 6):
            attention = {"name": "nystrom", "num_landmarks": landmarks, "pinv_iters": iters}
            write_run(tmp_path / f"{landmarks}-{iters}", attention=attention, partial=True)
    section = sections_of(groups_in(tmp_path))["ListOps"]
    assert "nystrom attention over two of its options, 20 of 5,000 steps" in words_of(section)
    assert "Partial runs." in words_of(section)
    corners = [block.columns[0] for block in section.blocks if isinstance(block, Table)]
    assert "num_landmarks ↓, pinv_iters →" in corners


def test_how_it_was_measured_has_every_run(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, result={"versions": {"jax": "0.11.0"}})
    write_run(tmp_path / "c", seed=2)
    page = markdown(make_sections(groups_in(tmp_path), ["one is left out"], {"listops": tmp_path}))
    assert "* All others: jax 0.10.2." in page
    assert "* b: jax 0.11.0." in page
    assert (
        "| c | ListOps | nystrom-64 | 2 | 1 × cpu, 2 threads | c0ffeec0ffee | da7ada7ada7a |"
        in page
    )
    assert "--config.train.seed=2 --workdir=c" in page
    assert "* one is left out" in page
    assert "attention.num_landmarks = 64" not in page  # that is for the page that folds


@pytest.mark.parametrize("task", CONFIGS)
@pytest.mark.parametrize(
    "argument",
    ["nystrom", "softmax,dropout_rate=0.2", "nystrom,num_landmarks=32,pinv_iters=2,quirks=mlpen"],
)
def test_the_command_of_a_run_gives_its_config(tmp_path, task, argument):
    values = config(
        argument,
        task,
        data={"dir": "FOLDER", "source": "files"},
        model={"num_layers": 3},
        optimizer={"warmup_steps": 70},
        train={"seed": 5, "total_steps": 700, "accumulation": 16},
        eval={"every_steps": 140},
    )
    write_run(tmp_path / "run", task=CONFIGS[task], config=values, attention=values["attention"])
    (group,) = groups_in(tmp_path / "run")
    line = command(group.runs[0], group)
    file, given = re.search(r"--config=configs/(\w+)\.py:(\S+)", line).groups()
    again = config(given, file)
    assert "resolution" not in given
    for key, value in re.findall(r"--config\.(\S+)=(\S+)", line):
        section, option = key.split(".")
        again[section][option] = type(again[section][option])(value)
    assert again == values


def test_the_command_of_another_resolution_and_difficulty(tmp_path):
    values = config("nystrom,resolution=64,difficulty=easy", "pathfinder")
    assert values["attention"] == {"name": "nystrom", **common.ATTENTIONS["nystrom"]}
    task = values["data"]["task"]
    write_run(tmp_path / "run", task=task, config=values, attention=values["attention"])
    (group,) = groups_in(tmp_path / "run")
    assert ":nystrom,resolution=64,difficulty=easy " in command(group.runs[0], group)
