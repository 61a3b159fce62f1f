"""Tasks are prepared once from every layout, and have the content of their files."""

import dataclasses

import numpy as np
import pytest

from language.finetune import glue as glue_data
from language.finetune.data import load
from language.finetune.glue import GlueConfig, find, read
from language.finetune.glue_tasks import TASKS
from tests.helpers import data_folders
from tests.language.finetune.glue_fakes import (
    COUNTS,
    HEADERS,
    Words,
    label,
    text,
    write_task,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Tokenizes in several pieces, so that their order matters."""
    monkeypatch.setattr("language.finetune.examples.TEXTS_PER_CALL", 3)


def load_task(name, folder, tokenizer=None, **values):
    return load(GlueConfig(task=name, dir=str(folder), **values), tokenizer or Words())


@pytest.mark.parametrize("name", HEADERS)
def test_every_task_becomes_batches_of_its_texts_and_labels(name, tmp_path):
    task, tokenizer = TASKS[name], Words()
    write_task(tmp_path, name)
    data = load_task(name, tmp_path, max_len=64)
    assert data.task is task
    assert list(data.splits) == list(task.files)
    for split, encoded in data.splits.items():
        count = COUNTS.get(split.split("_")[0], 5)
        batch = encoded.batch(np.arange(count), 64)
        assert encoded.ids.tolist() == [str(row) for row in range(count)]
        assert (not encoded.is_labeled) == split.startswith("test")
        assert batch["labels"].dtype == (np.float32 if task.is_regression else np.int32)
        for row in range(count):
            if encoded.is_labeled:
                assert batch["labels"][row] == task.dtype(task.number(label(task, row), ""))
            expected = [tokenizer.cls_id]
            for part in range(len(task.texts)):
                expected += [*tokenizer.encode([text(split, row, part)])[0], tokenizer.sep_id]
            assert batch["inputs"][row][batch["mask"][row]].tolist() == expected


def test_prepares_data_once_and_again_for_other_inputs(tmp_path, monkeypatch):
    folder = write_task(tmp_path, "rte")
    reads = []
    original = glue_data.read
    monkeypatch.setattr(glue_data, "read", lambda *given: reads.append(1) or original(*given))
    first = load_task("rte", tmp_path)
    assert load_task("rte", folder, max_len=7, examples=3, seed=5).sha256 == first.sha256
    assert len(reads) == 1
    load_task("rte", folder, dataclasses.replace(Words(), sha256="others"))
    assert len(reads) == 2
    with (folder / "dev.tsv").open("a") as file:
        file.write("7\tone more\tpair\tentailment\n")
    assert load_task("rte", tmp_path).sha256 != first.sha256
    assert len(reads) == 3


def test_examples_samples_only_the_training_split(tmp_path, caplog):
    write_task(tmp_path, "mnli")
    whole = load_task("mnli", tmp_path)
    few = load_task("mnli", tmp_path, examples=9)
    assert np.bincount(few.splits["train"].labels).tolist() == [3, 3, 3]
    assert set(few.splits["train"].ids) < set(whole.splits["train"].ids)
    for split in ("valid", "valid_mismatched", "test"):
        assert len(few.splits[split]) == len(whole.splits[split])
    assert (few.is_sample, whole.is_sample) == (True, False)
    assert not load_task("mnli", tmp_path, examples=31).is_sample
    assert "MNLI has 31 of 392,702 examples for train" in caplog.text


def test_notes_count_different_shared_and_skipped_examples(tmp_path):
    folder = write_task(tmp_path, "qqp")
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = ["0\t1\t2\tA b\tC d\t0", "1\t1\t2\tC d\tA b\t1", "torn", "3\t1\t2\tE\tF\t0"]
    (folder / "train.tsv").write_text(header + "\n".join(rows))
    (folder / "dev.tsv").write_text(header + "0\t1\t2\tF\tE\t1\n1\t1\t2\ta b\tC d\t0\n")
    task = TASKS["qqp"]
    assert read(task, find(task, tmp_path))[1] == {
        "different": {"train": 2, "valid": 2, "test": 5},
        "shared": {"train/valid": 1, "train/test": 0, "valid/test": 0},
        "left_out": {"train": [4]},
    }


def test_invalid_file_leaves_no_prepared_data(tmp_path):
    folder = write_task(tmp_path, "rte")
    good = (folder / "train.tsv").read_text()
    (folder / "train.tsv").write_text(good + "torn\n")
    with pytest.raises(ValueError, match=r"train.tsv, line 33, has 1 columns"):
        load_task("rte", tmp_path)
    assert data_folders() == []
    (folder / "train.tsv").write_text(good)
    assert len(load_task("rte", tmp_path).splits["train"]) == 31


def test_rejects_a_missing_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"RTE needs the files train\.tsv, dev\.tsv, test\.tsv"
    ):
        load_task("rte", "")
    with pytest.raises(ValueError, match="this user does not exist"):
        load_task("rte", "~nobody-of-that-name/glue")
