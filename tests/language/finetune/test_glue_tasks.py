"""The table of tasks agrees with GLUE's documentation."""

import pytest

from language.finetune.glue_tasks import TASKS, describe
from tests.language.finetune.glue_fakes import HEADERS


def test_submissions_have_the_names_of_the_server():
    files = {
        name: [task.file_name(split) for split in task.files if split.startswith("test")]
        for name, task in TASKS.items()
    }
    assert files == {
        "sst2": ["SST-2.tsv"],
        "mrpc": ["MRPC.tsv"],
        "qnli": ["QNLI.tsv"],
        "qqp": ["QQP.tsv"],
        "mnli": ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"],
        "cola": ["CoLA.tsv"],
        "rte": ["RTE.tsv"],
        "stsb": ["STS-B.tsv"],
        "wnli": ["WNLI.tsv"],
        "imdb": [],
    }


def test_labels_have_the_order_of_the_authors_reader():
    assert TASKS["mnli"].labels == ("contradiction", "entailment", "neutral")
    assert TASKS["rte"].labels == TASKS["qnli"].labels == ("entailment", "not_entailment")
    assert [task.num_labels for task in TASKS.values()] == [2, 2, 2, 2, 3, 2, 2, 1, 2, 2]
    assert [name for name, task in TASKS.items() if task.is_regression] == ["stsb"]
    of_one_text = [name for name, task in TASKS.items() if len(task.texts) == 1]
    assert of_one_text == ["sst2", "cola", "imdb"]


def test_splits_have_files_sizes_and_columns():
    for name, headers in HEADERS.items():
        task = TASKS[name]
        assert set(task.files) == set(headers)
        assert set(task.sizes) == set(task.files) - set(task.optional)
        for header in headers.values():
            assert set(task.texts) <= set(header.split("\t"))


def test_unknown_task_suggests_the_nearest_name():
    with pytest.raises(ValueError, match=r"The task 'sst-2' is unknown; did you mean sst2"):
        describe("sst-2")
