"""Predictions of a run's checkpoint on new inputs."""

import functools

import jax
import numpy as np
import pytest

from lra import train
from lra.data import describe
from lra.data.listops import encode
from lra.data.text import decode
from lra.predict import TrainedModel, open_model
from tests.helpers import REFERENCE, assert_close
from tests.lra.figures.tiny_run import BEST, params_at, small_config, write_run

TREES = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 1 2 ]", "[MED 1 2 3 [MAX 8 1 ] ]"]
BYTES = {"model__vocab_size": 257, "model__num_layers": 1}


def model_of(argument="softmax", **changes):
    """A model with random parameters, without a folder."""
    run = train.prepare(small_config(argument, **changes))
    return TrainedModel(run, params_at(run, BEST), BEST, finished=True)


def test_three_lines_predict_with_the_checkpoint_and_without_data(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", small_config())
    monkeypatch.setattr("lra.data.load", None)
    model = open_model(str(folder))
    probabilities = model.predict(TREES)
    assert (model.step, model.finished) == (BEST, True)
    inputs = np.zeros((3, 59), np.int32)
    for row, tree in zip(inputs, TREES, strict=True):
        row[: len(encode(tree))] = encode(tree)
    apply = jax.jit(functools.partial(model.run.model.apply, deterministic=True))
    output = apply({"params": params_at(model.run, BEST)}, inputs, inputs != 0)
    assert_close(probabilities, jax.nn.softmax(output), REFERENCE)


def test_predictions_do_not_depend_on_order_batches_and_the_form_of_an_input():
    model = model_of()
    together = model.predict(TREES, batch_size=2)
    alone = [model.predict([encode(tree).tolist()])[0] for tree in reversed(TREES)]
    assert_close(together, np.stack(alone[::-1]), REFERENCE)
    assert model.predict([]).shape == (0, 10)


def test_a_pair_is_two_texts_in_this_order():
    model = model_of(data__task="retrieval", **BYTES)
    first, second, again = model.predict([("ab", "cde"), ("cde", "ab"), ("ab", "cde")])
    assert_close(first, again, REFERENCE)
    assert abs(first - second).max() > 1e-3


def test_texts_are_encoded_as_in_the_task():
    model = model_of(data__task="text", **BYTES)
    assert decode(model._ids(" Grüße \n", describe("text"))) == "Grüße"
    assert_close(*model.predict(["Grüße\u3000", " Grüße\u3000\n"]), REFERENCE)
    assert (model.predict(["Grüße\u3000"]) != model.predict(["Grüße"])).any()


@pytest.mark.parametrize(
    ("task", "x", "word"),
    [
        ("listops", "[AVG 1 2 ]", "AVG"),
        ("listops", [], "at least one"),
        ("listops", [0.5], "integer"),
        ("listops", [1, 99], "0 to 15"),
        ("image", "a cat", "array"),
        ("image", np.zeros((32, 32, 3), np.uint8), "gray"),
        ("retrieval", "ab", "pair"),
        ("mqar-53-2", [1, 2], "labels tokens"),
    ],
)
def test_an_invalid_input_is_an_error(task, x, word):
    model = model_of(data__task=task, model__vocab_size=512)
    with pytest.raises(ValueError, match=word):
        model.predict([x])
