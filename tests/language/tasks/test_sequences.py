"""Files of predictions: the server's format, and scores that can be computed from them again."""

import csv
import os

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from language.glue import TASKS
from language.tasks.metrics import score
from language.tasks.sequences import read_predictions, write_predictions

IDS = np.array(["0", "1", "2", "3"])


@pytest.mark.parametrize(
    ("name", "split", "file", "outputs", "lines"),
    [
        ("sst2", "test", "SST-2.tsv", [1, 0, 0, 1], "1 0 0 1"),
        ("cola", "test", "CoLA.tsv", [0, 0, 1, 1], "0 0 1 1"),
        ("wnli", "test", "WNLI.tsv", [0, 0, 1, 1], "0 0 1 1"),
        ("rte", "test", "RTE.tsv", [0, 1, 1, 0], "entailment not_entailment not_entailment entailment"),
        ("qnli", "test", "QNLI.tsv", [1, 1, 1, 0], "not_entailment not_entailment not_entailment entailment"),
        ("mnli", "test", "MNLI-m.tsv", [0, 1, 2, 2], "contradiction entailment neutral neutral"),
        ("mnli", "test_mismatched", "MNLI-mm.tsv", [2, 1, 0, 2], "neutral entailment contradiction neutral"),
        ("mnli", "test_diagnostic", "AX.tsv", [1, 1, 1, 1], "entailment entailment entailment entailment"),
        ("stsb", "test", "STS-B.tsv", [-0.25, 5.5, 3.25, 0.1], "0 5 3.25 0.1"),
    ],
)  # fmt: skip
def test_submissions_have_the_format_of_the_server(name, split, file, outputs, lines, tmp_path):
    outputs = np.array(outputs, np.float64 if name == "stsb" else np.int32)
    path = tmp_path / "new" / "folder" / TASKS[name].file_name(split)
    write_predictions(TASKS[name], path, IDS, outputs)
    assert path.name == file
    rows = [f"{index}\t{word}" for index, word in enumerate(lines.split())]
    assert path.read_bytes().decode() == "\n".join(["index\tprediction", *rows]) + "\n"


@pytest.mark.parametrize("name", TASKS)
def test_written_predictions_can_be_read(name, tmp_path):
    task, rng = TASKS[name], np.random.default_rng(2)
    outputs = task.decide(rng.normal(2.5, 2, (4, task.num_labels)).astype(np.float32))
    labels = rng.integers(0, task.num_labels, 4).astype(np.int32)
    if task.is_regression:
        labels = (5 * rng.random(4)).astype(np.float32)
    file = tmp_path / task.file_name("valid")
    assert file.name == f"{name}-valid.tsv"
    write_predictions(task, file, IDS, outputs, labels=labels)
    found = read_predictions(task, file)
    assert found.ids.tolist() == IDS.tolist()
    assert found.labels.tolist() == labels.tolist()
    assert score(task, found.predictions, found.labels) == score(task, outputs, labels)
    write_predictions(task, file, IDS, outputs)
    assert read_predictions(task, file).labels is None


@pytest.mark.parametrize("name", TASKS)
def test_scikit_learn_computes_the_same_scores_from_the_file(name, tmp_path):
    """Reads the file without this package."""
    task, rng = TASKS[name], np.random.default_rng(8)
    outputs = task.decide(rng.normal(2.5, 2, (97, task.num_labels)).astype(np.float32))
    labels = rng.integers(0, task.num_labels, 97).astype(np.int32)
    if task.is_regression:
        labels = np.clip(outputs + rng.normal(size=97), 0, 5).astype(np.float32)
    ids = np.array([f"{row}" for row in range(97)])
    file = tmp_path / "valid.tsv"
    write_predictions(task, file, ids, outputs, labels=labels)
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    guesses, truths = ([row[column] for row in rows] for column in ("prediction", "label"))
    ours = score(task, outputs, labels)
    if task.is_regression:
        x, y = [float(word) for word in guesses], [float(word) for word in truths]
        theirs = {"pearson": stats.pearsonr(x, y)[0], "spearman": stats.spearmanr(x, y)[0]}
    else:
        theirs = {
            "accuracy": sklearn_metrics.accuracy_score(truths, guesses),
            "matthews": sklearn_metrics.matthews_corrcoef(truths, guesses),
        }
        if len(task.labels) == 2:
            theirs["f1"] = sklearn_metrics.f1_score(truths, guesses, pos_label=task.labels[1])
    assert ours == pytest.approx({metric: theirs[metric] for metric in ours}, rel=1e-6)


def test_file_is_replaced_atomically(tmp_path, monkeypatch):
    task = TASKS["rte"]
    file = tmp_path / "x.tsv"
    write_predictions(task, file, IDS, np.zeros(4, np.int32))
    before = file.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_predictions(task, file, IDS, np.ones(4, np.int32))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rte", "", "first line must be index, prediction"),
        ("rte", "index\tlabel\n", "first line must be index, prediction"),
        ("rte", "index\tprediction\n0\n", "line 2, has 1 columns"),
        ("rte", "index\tprediction\n0\tentailment\n1\t0\n", "line 3: the label '0'"),
        ("stsb", "index\tprediction\n0\tnan\n", "line 2: the label must"),
        ("stsb", "index\tprediction\n0\tgood\n", "line 2: the label must"),
    ],
)
def test_rejects_files_that_are_not_predictions(name, content, words, tmp_path):
    file = tmp_path / "x.tsv"
    file.write_text(content)
    with pytest.raises(ValueError, match=words):
        read_predictions(TASKS[name], file)
