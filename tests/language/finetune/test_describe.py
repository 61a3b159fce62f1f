"""The description of the data of a task."""

import pytest

from language.finetune.heads import HEADS
from language.finetune.trainer import describe_data
from tests.language.finetune.test_trainer import SOFTMAX, config_of, opened

LABELS = {
    "classification": "pos",
    "regression": "0.5",
    "multi_label": '["odd"]',
    "token_classification": "O O O O B-PER I-PER O B-LOC",
    "question_answering": "rome",
    "mnli": "",
}


@pytest.mark.parametrize("kind", [*HEADS, "mnli"])
def test_data_are_counted_and_shown_as_the_model_reads_them(tmp_path, checkpoint, kind):
    max_len = 16 if kind == "question_answering" else 11
    run, data = opened(config_of(tmp_path, checkpoint, kind, SOFTMAX, data={"max_len": max_len}))
    shown = describe_data(run, data)
    table = [line.split(" | ") for line in shown.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in table[2:]] == list(data.splits)
    split = data.splits["train"]
    cell = dict(zip(table[0], table[2], strict=True))
    assert cell["examples"] == f"{split.owners.max() + 1:,}"
    assert f", label {LABELS[kind]}" in shown
    assert shown.count("[CLS] ") == shown.count("Training example ") == 2
    assert ("distinct" in cell) == ("two splits share" in shown) == (kind == "mnli")
    if "rows" in cell:
        assert cell["rows"] == f"{len(split):,}"
    else:
        truncated = (split.lengths.sum(axis=1) + split.num_special > max_len).mean()
        assert truncated > 0
        assert float(table[2][-1].split()[0]) == pytest.approx(100 * truncated, abs=0.005)
