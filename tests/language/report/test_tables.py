"""Table 2 has the paper's rows as printed, and ours with their errors."""

import pytest

from language.glue import TASKS
from language.report import tables
from language.report.published import COLUMNS, TABLE_2
from tests.language.report.runs import groups_in, write_glue, write_pretraining


def test_rows_of_the_paper_are_as_printed(tmp_path):
    write_glue(tmp_path / "run")
    page = tables.table_2(groups_in(tmp_path)).markdown()
    assert "| model | SST-2 | MRPC, F1 | QNLI | QQP, F1 | MNLI-m | MNLI-mm | IMDb, test |" in page
    assert "| BERT-base | 90.0 | 88.4 | 90.3 | 87.3 | 82.4 | 82.4 | 93.3 |" in page
    assert "| Nyströmformer | 91.4 | 88.1 | 88.7 | 86.3 | 80.9 | 82.2 | 93.2 |" in page
    assert all(len(values) == len(COLUMNS) for values in TABLE_2.values())


def test_columns_are_metrics_that_their_tasks_have():
    for column in COLUMNS:
        assert column.metric in TASKS[column.task].metrics
        assert column.split in {"test", *TASKS[column.task].sizes}


def test_cells_of_seeds_single_runs_searches_and_missing_runs(tmp_path):
    for seed, value in enumerate((0.90, 0.92)):
        write_glue(tmp_path / f"sst2-{seed}", seed=seed, value=value)
    for number in range(3):
        config = {"optimizer": {"learning_rate": (number + 1) * 1e-5}}
        write_glue(tmp_path / f"mrpc-{number}", "mrpc", value=0.8 + number / 100, config=config)
    write_glue(tmp_path / "mnli", "mnli", value=0.7)
    write_glue(tmp_path / "imdb", "imdb", value=0.9, partial=True)
    write_glue(tmp_path / "rte", "rte", from_scratch=True)
    rows = tables.table_2(groups_in(tmp_path)).sections[0][1]
    assert rows == [
        [
            "nystrom-64 from pretrain-small",
            "91.00 ± 1.41 (n = 2)",
            "82.00 (s.e. 1.50), best of 3",
            "not run",
            "not run",
            "70.00 (s.e. 1.50)",
            "69.00 (s.e. 2.31)",
            "88.00 (s.e. 1.63), partial",
        ]
    ]


def test_a_task_has_a_row_for_each_setting_and_each_run(tmp_path):
    for seed, value in enumerate((0.80, 0.84)):
        write_glue(tmp_path / f"run-{seed}", "cola", seed=seed, value=value)
    groups = groups_in(tmp_path)
    settings = tables.settings_table(groups)
    assert settings.columns[2:4] == ["Matthews, %", "accuracy, %"]
    assert settings.sections[0][1] == [
        ["nystrom-64 from pretrain-small", "0, 1", *["82.00 ± 2.83"] * 2, "–", "300"]
    ]
    runs = tables.runs_table(groups).sections[0][1]
    assert [row[:4] for row in runs] == [
        ["run-0", "nystrom-64 from pretrain-small", "0", "80.00 ± 1.50"],
        ["run-1", "nystrom-64 from pretrain-small", "1", "84.00 ± 1.50"],
    ]
    assert runs[0][5:] == ["400", "200 of 300", "0.123", "1 × cpu, 2 threads"]


def test_pretraining_table_has_baselines_without_context(tmp_path):
    for seed, accuracy in enumerate((0.30, 0.32)):
        write_pretraining(tmp_path / f"{seed}", seed=seed, accuracy=accuracy)
    write_pretraining(tmp_path / "linear", attention="linear", partial=True)
    table = tables.pretraining_table(groups_in(tmp_path))
    (_, rows), (_, trivial) = table.sections
    assert rows == [
        ["linear, partial", "3", "30.00", "70.00", "4.100", "60.3", "12.3", "300", "400"],
        [
            "nystrom-64",
            "0, 1",
            "31.00 ± 1.41",
            "70.00 ± 0.00",
            "4.100 ± 0.000",
            "60.3 ± 0.00",
            "12.3",
            "300",
            "400",
        ],
    ]
    assert trivial[0][1:6] == ["", "5.00", "50.00", "7.250", ""]


def test_baselines_of_other_data_are_not_shown(tmp_path):
    write_pretraining(tmp_path / "a")
    write_pretraining(tmp_path / "b", seed=4, baselines={"mlm_accuracy": 0.1})
    assert len(tables.pretraining_table(groups_in(tmp_path)).sections) == 1


@pytest.mark.parametrize("name", ["table_2", "settings_table", "runs_table"])
def test_every_row_has_every_column(name, tmp_path):
    for task in ("mnli", "imdb"):
        write_glue(tmp_path / task, task)
        own = groups_in(tmp_path / task)
        table = getattr(tables, name)(own)
        assert {len(row) for _, rows in table.sections for row in rows} == {len(table.columns)}
