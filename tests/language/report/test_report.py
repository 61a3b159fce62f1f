"""The language report: Table 2, gains of pretraining over examples, pages and errors."""

import math
import shutil
import types

import numpy as np
import pandas as pd
import pytest

from language.finetune.glue_tasks import TASKS
from language.report.__main__ import main
from language.report.tables import gains_table, pretraining_table, read, table_2
from tests.language.report.runs import groups_in, write_glue, write_pretraining

LABELS = np.array([0, 1, 0, 1, 1, 0, 1])
SCRATCH = {"init": {"from_scratch": True}}


def rows(table):
    return {row[0]: list(row[1:]) for row in table.itertuples(index=False, name=None)}


def write_run(folder, right, *, task="sst2", split="valid", scratch=False, ids=None, **more):
    """A run whose predictions are correct for the examples in `right`."""
    config = more.pop("config", {}) | (SCRATCH if scratch else {})
    write_glue(folder, task, from_scratch=scratch, config=config, **{"seed": 0, **more})
    guesses = np.where(np.isin(np.arange(len(LABELS)), right), LABELS, 1 - LABELS)
    ids = np.array([str(i) for i in range(len(LABELS))] if ids is None else ids)
    file = folder / "predictions" / TASKS[task].file_name(split)
    split = types.SimpleNamespace(ids=ids, labels=LABELS, is_labeled=True)
    TASKS[task].write(file, split, guesses)


def test_table_2_has_the_mean_over_seeds_or_the_error_over_examples(tmp_path):
    for seed, value in enumerate((0.9, 0.91)):
        write_glue(tmp_path / f"sst2-{seed}", seed=seed, value=value)
    write_glue(tmp_path / "mnli", "mnli", value=0.7)
    write_glue(tmp_path / "rte", "rte", value=0.6)
    write_glue(tmp_path / "scratch", value=0.8, from_scratch=True, config=SCRATCH)
    table = table_2(groups_in(tmp_path))
    assert "nystrom from scratch" in rows(table)
    assert list(table.columns) == ["model", "SST-2", "MNLI-m", "MNLI-mm", "RTE"]
    assert rows(table)["nystrom"] == [
        "90.50 ± 0.71 (n = 2)",
        "70.00 (s.e. 1.50)",
        "69.00 (s.e. 2.31)",
        "60.00 (s.e. 1.50)",
    ]
    assert rows(table)["BERT-base"] == ["90.0", "82.4", "82.4", "–"]  # the paper has no RTE


def test_table_2_shows_the_best_of_several_settings_and_prefers_complete_ones(tmp_path):
    for rate, value in ((1e-4, 0.8), (1e-3, 0.85)):
        config = {"optimizer": {"learning_rate": rate}}
        write_glue(tmp_path / str(rate), value=value, config=config)
    write_glue(tmp_path / "partial", value=0.99, partial=True, config={"train": {"epochs": 9.0}})
    (cell,) = rows(table_2(groups_in(tmp_path)))["nystrom"]
    assert cell == "85.00 (s.e. 1.50), best of 2"
    # Of partial runs, those of the most steps.
    for steps, value in ((300, 0.8), (100, 0.9)):
        more = {"partial": True, "total_steps": steps, "config": {"train": {"epochs": steps / 100}}}
        write_glue(tmp_path / f"short-{steps}", "cola", value=value, **more)
    assert rows(table_2(groups_in(tmp_path)))["nystrom"][1] == "80.00 (s.e. 1.50), partial"
    shutil.rmtree(tmp_path / "short-300")
    shutil.rmtree(tmp_path / "short-100")
    # Validated on training examples, to choose settings.
    write_glue(tmp_path / "choice", "rte", value=0.9, config={"data": {"valid_share": 0.1}})
    assert list(table_2(groups_in(tmp_path)).columns) == ["model", "SST-2"]


def test_diverged_and_unfinished_runs_are_named_as_left_out(tmp_path):
    for seed in range(3):
        write_glue(tmp_path / f"{seed}", seed=seed, value=0.8)
    (tmp_path / "1" / "result.json").write_text('{"state": "diverged", "step": 7}')
    (tmp_path / "2" / "result.json").unlink()
    runs, left_out = read([tmp_path])
    assert list(runs["seed"]) == [0]
    assert left_out == [
        f"{tmp_path}/1 is left out: it diverged at step 7.",
        f"{tmp_path}/2 is left out: it is not finished.",
    ]
    with pytest.raises(FileNotFoundError, match="diverged"):
        read([tmp_path / "1"])


def test_pretraining_has_metrics_and_baselines(tmp_path):
    for seed, accuracy in enumerate((0.3, 0.32)):
        write_pretraining(tmp_path / f"{seed}", seed=seed, accuracy=accuracy)
    found = rows(pretraining_table(groups_in(tmp_path)))
    assert found["nystrom"][:5] == [
        "0, 1",
        "31.00 ± 1.41",
        "70.00 ± 0.00",
        "4.100 ± 0.000",
        "60.3 ± 0.00",
    ]
    assert "Without context" in found


def test_a_pretraining_without_sentence_order_has_no_accuracy_of_it(tmp_path):
    valid = {"mlm_accuracy": 0.3, "mlm_loss": 4.1, "perplexity": 60.3, "loss": 4.1}
    for seed in (0, 1):
        write_pretraining(tmp_path / f"{seed}", seed=seed, valid=valid)
    found = rows(pretraining_table(groups_in(tmp_path)))
    assert found["nystrom"][:4] == ["0, 1", "30.00 ± 0.00", "–", "4.100 ± 0.000"]
    assert main([str(tmp_path), f"--out={tmp_path}/out/x"]) == 0


def test_error_of_a_gain_is_of_paired_differences(tmp_path):
    """Seeds 0 and 1 of both; a seed of only one group is ignored."""
    write_run(tmp_path / "a0", [0, 1, 2, 3, 4, 5], init_sha256="1f" * 32)
    write_run(tmp_path / "a1", [0, 1, 2, 3, 4], seed=1, init_sha256="1f" * 32)
    write_run(tmp_path / "a2", [], seed=2)
    write_run(tmp_path / "b0", [0, 1, 2], scratch=True)
    write_run(tmp_path / "b1", [0, 1, 6], seed=1, scratch=True)
    (row,) = gains_table(groups_in(tmp_path)).to_dict("records")
    differences = np.array([0, 0, 0.5, 1, 1, 0.5, -0.5])
    error = differences.std(ddof=1) / math.sqrt(7)
    assert (row["seeds"], row["examples"]) == ("0, 1", "7")
    assert (row["from scratch, %"], row["pretrained, %"]) == ("42.86", "78.57")
    assert row["difference ± s.e."] == f"+{100 * differences.mean():.2f} ± {100 * error:.2f}"


def test_examples_are_paired_by_id(tmp_path):
    write_run(tmp_path / "a", [0, 1, 2])
    write_run(tmp_path / "b", [3, 1, 2], scratch=True, ids=["3", "1", "2", "0", "4", "5", "6"])
    (row,) = gains_table(groups_in(tmp_path)).to_dict("records")
    assert row["difference ± s.e."] == "+0.00 ± 0.00"
    write_run(tmp_path / "c", [0], seed=1)
    write_run(tmp_path / "d", [0], seed=1, scratch=True, ids=list("bcdefgh"))
    with pytest.raises(ValueError, match="different examples"):
        gains_table(groups_in(tmp_path))


@pytest.mark.parametrize(
    "other", [{"config": {"optimizer": {"learning_rate": 1e-3}}}, {"parameters": 13}, {"seed": 5}]
)
def test_gains_need_equal_settings_sizes_and_seeds(tmp_path, other):
    write_run(tmp_path / "a", [0])
    write_glue(tmp_path / "b", seed=0, from_scratch=True, config=SCRATCH)  # without predictions
    write_run(tmp_path / "c", [0], scratch=True, **other)
    assert len(gains_table(groups_in(tmp_path))) == 0


def written(folder):
    return sorted(file.name for file in folder.iterdir())


def test_page_and_files_are_complete(tmp_path, capsys):
    folder = tmp_path / "runs"
    write_pretraining(folder / "pretraining", parameters=None)
    write_glue(folder / "mnli", "mnli", value=0.7)
    write_glue(folder / "cola", "cola", valid_examples=None)
    write_run(folder / "a", [0, 1], task="imdb", split="test")
    write_run(folder / "b", [0], task="imdb", split="test", scratch=True)
    assert main([str(folder), f"--out={tmp_path}/out/x"]) == 0
    assert written(tmp_path / "out") == [
        f"x{end}" for end in ("-pretraining.png", ".html", ".md", ".runs.csv")
    ]
    page = capsys.readouterr().out
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Language model: results",
        "## Fine-tuning compared with the paper",
        "## Gains of pretraining",
        "## Pretraining",
        "## How it was measured",
    ]
    assert "with standard errors: IMDb +14.29 ± 14.29 (nystrom)" in page
    assert "nan" not in page
    assert len(pd.read_csv(tmp_path / "out" / "x.runs.csv")) == 5


@pytest.mark.parametrize(
    ("result", "word"),
    [
        ({"config": {"data": {"task": "sst3"}}}, "sst2"),
        ({"valid": {"f1": 0.5}}, "valid.accuracy"),
        ({"valid": 1}, "valid"),
    ],
)
def test_an_invalid_run_is_one_line(tmp_path, capsys, result, word):
    write_glue(tmp_path / "run", **result)
    assert main([str(tmp_path / "run"), f"--out={tmp_path}/x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("language.report: ")
    assert word in error
    assert error.count("\n") == 1
    assert written(tmp_path) == ["run"]
