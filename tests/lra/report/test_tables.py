"""Tables of runs: numbers, missing cells, and columns."""

import pytest

from lra.report import tables
from lra.report.comparisons import compare, grids
from lra.report.numbers import numbers
from tests.lra.report.runs import FIVE, groups_in, write_run, write_seeds
from tests.lra.report.test_labels import config

SOFTMAX = {"name": "softmax"}


def ours(groups, **options):
    """The rows of Table 3 that are ours, by label."""
    return {label: row for own in tracks(groups, **options).values() for label, row in own.items()}


def tracks(groups, **options):
    """The rows of Table 3 that are ours, by the title of their section."""
    return {
        title: {row[0]: row[1:] for row in rows}
        for title, rows in tables.benchmark_table(groups, **options).sections
        if title.startswith(tables.OURS)
    }


def test_table_3_marks_partial_unfinished_and_missing_runs(tmp_path):
    write_seeds(tmp_path / "listops", [0.36, 0.37, 0.38])
    write_run(tmp_path / "text", task="text", accuracy=0.6521)
    write_run(tmp_path / "image", task="image", accuracy=0.2106, partial=True)
    write_run(tmp_path / "retrieval", task="retrieval", finished=False)
    write_run(tmp_path / "pathfinder", task="pathfinder32", partial=True, steps=(62_400,))
    write_run(tmp_path / "pathx", task="pathfinder128", accuracy=0.5)
    hidden = ours(groups_in(tmp_path))["nystrom-64"]
    shown = ours(groups_in(tmp_path), include_partial=True)["nystrom-64"]
    assert hidden == [*shown[:3], "partial", "partial", *shown[5:]]
    assert shown == [
        "37.00 ± 1.00 (n = 3)",
        "65.21 (n = 1)",
        "not finished",
        "21.06 (n = 1), partial",
        "36.00 (n = 1), on fewer examples",
        "–",
        "50.00 (n = 1)",
        "–",
    ]


def test_table_3_has_the_mean_of_five_complete_tasks(tmp_path):
    for number, task in enumerate(FIVE):
        write_seeds(tmp_path / task, [0.1 * number, 0.1 * number + 0.02], task=task)
    row = ours(groups_in(tmp_path))["nystrom-64"]
    assert row[5:] == ["21.00 ± 1.41 (n = 2)", "not run", "–"]
    write_seeds(tmp_path / "pathx", [0.5, 0.53], task="pathfinder128")
    row = ours(groups_in(tmp_path))["nystrom-64"]
    assert row[5:] == ["21.00 ± 1.41 (n = 2)", "51.50 ± 2.12 (n = 2)", "26.08 ± 1.53 (n = 2)"]


def test_unfinished_seeds_are_counted(tmp_path):
    for number, task in enumerate(FIVE):
        write_seeds(tmp_path / task, [0.3, 0.31, 0.32 + number / 100], task=task)
    write_run(tmp_path / "diverged", seed=3, finished=False)
    groups = groups_in(tmp_path)
    row = ours(groups)["nystrom-64"]
    assert row[:2] == ["31.00 ± 1.00 (n = 3 of 4)", "31.33 ± 1.53 (n = 3)"]
    assert row[5] == "31.67 ± 2.08 (n = 3 of 4)"
    assert (
        "| nystrom-64 | 0, 1, 2 of 4 | 31.00 ± 1.00 |"
        in tables.task_groups_table(
            [group for group in groups if group.task == "listops"]
        ).markdown()
    )


def test_table_3_omits_other_tasks(tmp_path):
    write_run(tmp_path / "a", task="listops-short")
    write_run(tmp_path / "b", task="pathfinder32-easy")
    assert tracks(groups_in(tmp_path)) == {}
    write_run(tmp_path / "c", task="text")
    assert list(ours(groups_in(tmp_path))) == ["nystrom-64"]
    assert ours(groups_in(tmp_path))["nystrom-64"][0] == "not run"


def test_table_3_shows_the_complete_group_or_else_the_longest(tmp_path):
    write_run(tmp_path / "a", accuracy=0.2, partial=True, steps=(50,))
    write_run(tmp_path / "b", accuracy=0.3, partial=True, steps=(4000,))
    assert ours(groups_in(tmp_path)) == {}
    assert numbers(groups_in(tmp_path))["table3"] == []
    assert (
        ours(groups_in(tmp_path), include_partial=True)["nystrom-64"][0] == "30.00 (n = 1), partial"
    )
    write_run(tmp_path / "going", steps=(4500,), finished=False)
    assert (
        ours(groups_in(tmp_path), include_partial=True)["nystrom-64"][0] == "30.00 (n = 1), partial"
    )
    write_run(tmp_path / "c", accuracy=0.36, steps=(5000,))
    assert ours(groups_in(tmp_path), include_partial=True).keys() == {"nystrom-64"}
    assert ours(groups_in(tmp_path), include_partial=True)["nystrom-64"][0] == "36.00 (n = 1)"


def test_two_complete_settings_of_an_attention_are_two_rows(tmp_path):
    write_run(tmp_path / "a", accuracy=0.36)
    write_run(tmp_path / "b", accuracy=0.37, config={"optimizer": {"learning_rate": 0.01}})
    assert list(ours(groups_in(tmp_path))) == ["nystrom-64", "nystrom-64, rate 0.01"]


def test_table_3_has_a_section_per_recipe(tmp_path):
    for number, argument in enumerate(["nystrom", "nystrom,recipe=fast", "softmax,recipe=fast"]):
        values = config(argument)
        place = tmp_path / str(number)
        write_run(place, accuracy=0.3 + number / 100, config=values, steps=(5, 20_000))
    slow = {"optimizer": {"learning_rate": 1e-4}}
    write_run(tmp_path / "slow", config=config("softmax,recipe=fast", **slow))
    write_run(tmp_path / "quirks", config=config("nystrom,quirks=mlpen"))
    found = tracks(groups_in(tmp_path))
    assert {title: list(rows) for title, rows in found.items()} == {
        "This code, the paper's recipe": ["nystrom-64"],
        "This code, recipe=fast": ["nystrom-32", "softmax"],
        "This code, other settings": [
            "nystrom-64, quirks=mlpen",
            "softmax, rate 0.0001, recipe=fast",
        ],
    }
    assert found["This code, recipe=fast"]["softmax"][0] == "32.00 (n = 1)"


def test_table_3_omits_the_cells_of_a_grid(tmp_path):
    for landmarks in (32, 64):
        for iters in (2, 6):
            attention = {"name": "nystrom", "num_landmarks": landmarks, "pinv_iters": iters}
            write_run(tmp_path / f"{landmarks}-{iters}", attention=attention)
    assert len(ours(groups_in(tmp_path))) == 4  # there is nothing else
    usual = {"name": "nystrom", "num_landmarks": 64, "pinv_iters": 6}
    write_run(tmp_path / "text", task="text", attention=usual)
    assert ours(groups_in(tmp_path)).keys() == {"nystrom-64"}


def test_published_rows_are_exact(tmp_path):
    write_run(tmp_path / "run")
    page = tables.benchmark_table(groups_in(tmp_path)).markdown()
    for row in (
        "| Nyströmformer | 37.15 | 65.52 | 79.56 | 41.58 | 70.94 | 58.95 | – | – |",
        "| Nyströmformer, rerun | 38.51 | 64.83 | 80.52 | 41.30 | 69.48 | 58.93 | – | – |",
        "| Nyströmformer, rerun | 36.29 | 63.24 | 78.18 | 42.86 | 67.49 | 57.61 | – | – |",
        "| BigBird | 36.05 | 64.02 | 59.29 | 40.83 | 74.87 | 55.01 | ✗ | 54.18 |",
    ):
        assert row in page


def test_settings_of_a_task(tmp_path):
    write_seeds(tmp_path / "a", [0.36, 0.37, 0.38])
    write_run(tmp_path / "b", attention=SOFTMAX, seed=0, accuracy=0.35, partial=True)
    write_run(tmp_path / "c", attention={"name": "linear"}, finished=False)
    page = tables.task_groups_table(groups_in(tmp_path)).markdown()
    for row in (
        "| nystrom-64 | 0, 1, 2 | 37.00 ± 1.00 | 1.08 | 34.52 to 39.48 | 20 of 5,000 | 0.976 (0.976–0.976)",
        "| softmax | 0 | 35.00, partial | 1.07 | – | 20 of 5,000 | 0.976 | 32.8 | 3.00 | 199,882 |",
        "| linear | 3 | not finished | – | – | 20 of 5,000 | – | – | – |",
        "| constant answer |  | 17.20 |  |  |  |  |  |  |",
        "| first token alone |  | 35.65 |  |  |  |  |  |  |",
    ):
        assert row in page


def test_missing_baselines_are_the_published_ones(tmp_path):
    write_run(tmp_path / "old", result={"baselines": None})
    found = tables.baselines(groups_in(tmp_path))
    assert found == ({"constant answer": 0.176, "first token alone": 0.359}, False)
    write_run(tmp_path / "new", seed=4)
    assert tables.baselines(groups_in(tmp_path)) == (
        {"constant answer": 0.172, "first token alone": 0.3565},
        True,
    )


def test_baselines_of_older_and_newer_runs_are_merged(tmp_path):
    write_run(tmp_path / "old", result={"baselines": {"constant answer": 0.5}})
    write_run(tmp_path / "new", seed=4, result={"baselines": {"naive Bayes on 10 bytes": 0.875}})
    expected = {"constant answer": 0.5, "naive Bayes on 10 bytes": 0.875}
    assert tables.baselines(groups_in(tmp_path)) == (expected, True)
    write_run(tmp_path / "other", seed=5, result={"baselines": {"x": 1.0}, "data_sha256": "b" * 64})
    assert tables.baselines(groups_in(tmp_path)) == (expected, False)


def test_baselines_of_a_part_of_the_test_set_are_not_those_of_the_whole(tmp_path):
    write_run(tmp_path / "whole", result={"baselines": {"constant answer": 0.5}})
    assert tables.baselines(groups_in(tmp_path)) == ({"constant answer": 0.5}, True)
    config = {"data": {"examples": 200}}
    write_run(
        tmp_path / "part", config=config, result={"baselines": {"naive Bayes on 10 bytes": 0.6}}
    )
    assert tables.baselines(groups_in(tmp_path)) == ({"constant answer": 0.5}, False)


def test_baselines_of_one_test_set_are_not_those_of_another(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "going", task="listops", seed=5, finished=False, attention=SOFTMAX)
    assert tables.baselines(groups_in(tmp_path))[1]
    write_run(tmp_path / "b", result={"data_sha256": "b" * 64})
    assert not tables.baselines(groups_in(tmp_path))[1]


def test_every_run_has_a_binomial_error(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, partial=True)
    write_run(tmp_path / "c", seed=2, finished=False)
    page = tables.runs_table(groups_in(tmp_path)).markdown()
    device = "1 × cpu, 2 threads"
    assert (
        f"| nystrom-64 | 0 | 36.00 ± 1.07 | 25.00 | 20 | 20 of 5,000 | 0.976 | {device} |" in page
    )
    assert "| nystrom-64 | 1 | 36.00 ± 1.07, partial | 25.00 | 20 |" in page
    assert "| nystrom-64 | 2 | not finished | – | – | 20 of 5,000 | – | – |" in page


def test_differences_have_a_sign_and_an_origin(tmp_path):
    write_seeds(tmp_path / "a", [0.36, 0.37, 0.39])
    write_seeds(tmp_path / "b", [0.37, 0.375, 0.40], attention=SOFTMAX)
    write_run(tmp_path / "c", attention={"name": "linear"}, accuracy=0.35, seed=0)
    page = tables.comparisons_table(compare(groups_in(tmp_path))).markdown()
    assert "| nystrom-64 − softmax | 0, 1, 2 | −0.83 | ± 0.72 | – | 0.038 | 0.038 |" in page
    assert "| softmax − linear | 0 | +2.00 | – | ± 1.52 | – | – |" in page


def test_a_grid_has_one_option_per_axis(tmp_path):
    for rank in (8, 16, 32):
        for dropout in (0.0, 0.1):
            if (rank, dropout) != (32, 0.1):
                attention = {"name": "new", "rank": rank, "dropout": dropout}
                accuracies = [0.3 + rank / 1000, 0.31 + rank / 1000 + dropout]
                write_seeds(tmp_path / f"{rank}-{dropout}", accuracies, attention=attention)
    (grid,) = grids(groups_in(tmp_path))
    assert tables.grid_table(grid).markdown().splitlines() == [
        "| rank ↓, dropout → | 0.0 | 0.1 |",
        "| --- | ---: | ---: |",
        "| 8 | 31.30 ± 0.71 (n = 2) | 36.30 ± 7.78 (n = 2) |",
        "| 16 | 32.10 ± 0.71 (n = 2) | 37.10 ± 7.78 (n = 2) |",
        "| 32 | 33.70 ± 0.71 (n = 2) | not run |",
    ]


def test_shortfalls_list_incomplete_runs_by_seed(tmp_path):
    write_seeds(tmp_path / "a", [0.2, 0.3], task="image", partial=True)
    write_run(tmp_path / "b", task="image", seed=2, finished=False)
    write_run(tmp_path / "c")
    assert tables.shortfalls(groups_in(tmp_path)) == [
        "Image, nystrom-64, seeds 0, 1: 20 of 35,000 steps.",
        "Image, nystrom-64, seed 2: 20 of 35,000 steps, not finished.",
    ]


@pytest.mark.parametrize("name", ["a|b", "a\nb", "<b>", "a & b"])
def test_names_are_escaped(tmp_path, name):
    write_run(tmp_path / "run", attention={"name": name})
    page = tables.task_groups_table(groups_in(tmp_path)).markdown()
    lines = page.splitlines()
    cells = {line.replace("\\|", "").count("|") for line in lines}
    assert len(cells) == 1
    assert "<b>" not in page
