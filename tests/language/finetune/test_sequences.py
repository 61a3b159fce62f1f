"""Files of predictions: the server's format, and scores that can be computed from them again."""

import csv
import types

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from language.finetune.glue_tasks import TASKS
from language.finetune.metrics import score


def split_of(count, labels=None):
    """The parts of a split that `write` reads."""
    ids = np.array([str(row) for row in range(count)])
    return types.SimpleNamespace(ids=ids, labels=labels, is_labeled=labels is not None)


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
    TASKS[name].write(path, split_of(4), outputs)
    assert path.name == file
    rows = [f"{index}\t{word}" for index, word in enumerate(lines.split())]
    assert path.read_bytes().decode() == "\n".join(["index\tprediction", *rows]) + "\n"


@pytest.mark.parametrize("name", TASKS)
def test_scikit_learn_computes_the_same_scores_from_the_file(name, tmp_path):
    """Reads the file without this package."""
    task, rng = TASKS[name], np.random.default_rng(8)
    logits = rng.normal(2.5, 2, (97, task.num_labels)).astype(np.float32)
    outputs = task.predict(None, {"logits": logits})
    labels = rng.integers(0, task.num_labels, 97).astype(np.int32)
    if task.is_regression:
        labels = np.clip(outputs + rng.normal(size=97), 0, 5).astype(np.float32)
    file = tmp_path / task.file_name("valid")
    assert file.name == f"{name}-valid.tsv"
    task.write(file, split_of(97, labels), outputs)
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
    assert tuple(ours) == task.metrics
    assert ours == pytest.approx({metric: theirs[metric] for metric in ours}, rel=1e-6)
