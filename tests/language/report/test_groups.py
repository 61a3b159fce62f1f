"""Groups of seeds, and the best of several settings by validation."""

import math
import statistics

import pytest

from language.report.groups import best, read_groups
from tests.language.report.runs import groups_in, write_glue, write_pretraining


def test_cell_of_several_seeds_has_mean_deviation_and_interval(tmp_path):
    for seed, value in enumerate((0.90, 0.92, 0.91)):
        write_glue(tmp_path / f"{seed}", seed=seed, value=value)
    (group,) = groups_in(tmp_path)
    assert [run.seed for run in group.runs] == [0, 1, 2]
    cell = group.cell("valid", "accuracy")
    assert cell.n == 3
    assert cell.mean == pytest.approx(0.91)
    assert cell.deviation == pytest.approx(statistics.stdev([0.90, 0.92, 0.91]))
    assert cell.half_width == pytest.approx(4.302653 * 0.01 / 3**0.5)  # Student's, 2 degrees
    assert cell.error == pytest.approx(0.015)
    assert group.cell("test", "accuracy") is None


def test_cell_of_one_seed_has_an_error_but_no_deviation(tmp_path):
    write_glue(tmp_path / "run")
    cell = groups_in(tmp_path)[0].cell("valid", "accuracy")
    assert math.isnan(cell.deviation)
    assert math.isnan(cell.half_width)
    assert cell.error == 0.015


def test_labels_contain_only_differing_values(tmp_path):
    for rate in (2e-5, 5e-5):
        for batch in (16, 32):
            config = {"optimizer": {"learning_rate": rate}, "train": {"batch_size": batch}}
            write_glue(tmp_path / f"{rate}-{batch}", "mrpc", config=config)
    write_glue(
        tmp_path / "softmax", "mrpc", config={"attention": {"name": "softmax"}}, attention="softmax"
    )
    write_pretraining(tmp_path / "pretraining")
    labels = [group.label for group in groups_in(tmp_path)]
    assert labels == [
        "nystrom-64",
        *(
            f"nystrom-64 from pretrain-small, learning_rate={rate}, batch_size={batch}"
            for rate in (2e-5, 5e-5)
            for batch in (16, 32)
        ),
        "softmax-64 from pretrain-small",
    ]


def test_checkpoints_of_one_name_and_different_sizes_are_not_pooled(tmp_path):
    write_glue(tmp_path / "small", seed=0, init="runs/a/base/model", parameters=11)
    write_glue(tmp_path / "large", seed=1, init="runs/b/base/model", parameters=13)
    assert [group.label for group in groups_in(tmp_path)] == [
        "nystrom-64 from base, parameters=11",
        "nystrom-64 from base, parameters=13",
    ]


def test_checkpoints_of_one_name_and_different_weights_are_not_pooled(tmp_path):
    write_glue(tmp_path / "one", seed=0, init="runs/a/base/model", init_sha256="1f" * 32)
    write_glue(tmp_path / "other", seed=1, init="runs/b/base/model", init_sha256="2e" * 32)
    assert [group.label for group in groups_in(tmp_path)] == [
        "nystrom-64 from base, weights=1f1f1f1f",
        "nystrom-64 from base, weights=2e2e2e2e",
    ]


def test_best_setting_is_whole_and_best_on_validation(tmp_path):
    for number, (value, partial) in enumerate([(0.8, False), (0.85, False), (0.99, True)]):
        config = {"optimizer": {"learning_rate": (number + 1) * 1e-5}}
        write_glue(tmp_path / f"{number}", "mrpc", value=value, partial=partial, config=config)
    assert best(groups_in(tmp_path)).cell("valid", "f1").mean == 0.85


def test_duplicate_runs_are_left_out_with_a_sentence(tmp_path):
    write_glue(tmp_path / "a-short", total_steps=200)
    write_glue(tmp_path / "b-long")
    groups, left_out = read_groups([tmp_path])
    assert [run.name for group in groups for run in group.runs] == ["b-long"]
    (sentence,) = left_out
    assert "a-short is left out: " in sentence
    assert sentence.endswith("b-long has the same task, setting and seed.")
