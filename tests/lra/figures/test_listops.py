"""Accuracy on ListOps by groups of trees."""

import json
import types

import numpy as np
import pytest

from lra import data, train
from lra.data.listops import encode
from lra.data.task import DataConfig, Sequences, Split
from lra.figures import listops as parts
from lra.figures.listops import shape_of
from lra.figures.trained_run import open_run
from tests.lra.figures.tiny_run import small_config, write_run


@pytest.mark.parametrize(
    ("tree", "shape"),
    [
        ("[MAX 2 9 ]", ("MAX", 1, "digit, digit")),
        ("[SM [MIN 3 4 ] 5 [MED 1 [MAX 2 3 ] ] ]", ("SM", 3, "list, list")),
        ("[MED 1 [MIN [SM 1 2 ] 0 ] 7 [MAX 1 1 ] ]", ("MED", 3, "digit, list")),
    ],
)
def test_shape_of_a_tree(tree, shape):
    assert shape_of(encode(tree).tolist()) == shape


@pytest.mark.slow(minutes=0.1)
def test_a_run_is_taken_apart_into_groups_that_cover_the_test_set(tmp_path, capsys, monkeypatch):
    """A model without positions also reads trees that are longer than its training trees."""
    monkeypatch.setattr(parts, "OTHERS", {"listops-short": ((10, 30), (60, 90))})
    monkeypatch.setattr(parts, "TRAINED", {"listops-short": 60})
    monkeypatch.setattr(parts, "MULTIPLE", 30)
    config = small_config("softmax", data__task="listops-short", model__positions="none")
    folder = write_run(tmp_path / "run", config)
    out = tmp_path / "out" / "run"
    assert parts.main([str(folder), "--new_trees=5", "--out", str(out)]) == 0
    assert out.with_name("run-parts.png").stat().st_size > 10_000
    numbers = json.loads(out.with_name("run-parts.json").read_text())
    *of_test, new = numbers["parts"].values()
    accuracies = []
    for rows in of_test:
        assert sum(row["examples"] for row in rows) == 12
        accuracies.append(sum(row["examples"] * row["accuracy"] for row in rows) / 12)
    trained = open_run(folder)
    predicted = parts.predict(trained, trained.task.splits["test"])
    accuracy = np.mean(predicted == trained.task.splits["test"].labels)
    np.testing.assert_allclose(accuracies, accuracy)
    assert [(row["group"], row["examples"]) for row in new] == [("11 to 29", 5), ("61 to 89", 5)]
    assert f"Written: {out}-parts.json" in capsys.readouterr().out


def test_trees_longer_than_those_of_training_need_a_model_without_learned_positions():
    """Trees as long as those of training are padded as in training."""
    task = types.SimpleNamespace(name="listops")
    for positions, supported in (("learned", False), ("none", True)):
        run = train.prepare(small_config("softmax", model__positions=positions))
        trained = types.SimpleNamespace(run=run, task=task)
        assert parts._padding(trained, 700).padded_len == 59
        assert parts._padding(trained, 2_001).padded_len > 2_000
        found = {parts.supports(trained, longest) for _, longest in parts.OTHERS["listops"]}
        assert found == {supported}


@pytest.mark.parametrize("task", list(parts.OTHERS))
def test_new_trees_have_other_lengths_than_the_training_set(task):
    config = DataConfig(task=task, examples=12, max_len=1, workers=1)
    lengths = data.load(config).splits["train"].lengths
    assert (lengths < parts.TRAINED[task]).all()
    for shortest, longest in parts.OTHERS[task]:
        assert ((lengths <= shortest) | (lengths >= longest)).all()


def test_rows_have_the_accuracy_of_their_group():
    trees = [encode("[MAX 2 9 ]").tobytes()] * 4
    split = Split(Sequences.from_bytes(trees), np.array([9, 9, 9, 2], np.int32))
    first, second = parts._by(["b", "a", "b", "b"], split, np.array([9, 9, 3, 2]))
    assert (first["group"], first["examples"], first["accuracy"]) == ("a", 1, 1.0)
    assert (second["group"], second["accuracy"], second["most_frequent"]) == ("b", 2 / 3, 2 / 3)
