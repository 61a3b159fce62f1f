"""The inputs of the table of errors, its rows for a trained model, and its parts."""

import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import approximation
from benchmarks.approximation import INPUTS
from lra import data, train
from lra.figures.trained_run import Trained, unpadded
from nystromformer_jax import approximation_error
from nystromformer_jax.attention.functions import softmax_weights
from tests.lra.figures.tiny_run import BEST, params_at, small_config

RNG = jax.random.key(5)


def test_inputs_have_the_stated_statistics():
    """The standard deviation of Gaussian logits, the weight of a sink, and the width of smooth inputs."""
    for name, std in (("½", 0.25), ("1", 1.0), ("2", 4.0)):
        query, key = INPUTS[f"Gaussian, σ = {name}"](RNG)
        logits = jnp.einsum("LHD,THD->HLT", query[0], key[0]) / 32**0.5
        assert logits.std() == pytest.approx(std, rel=0.03)
    weights = softmax_weights(*INPUTS["one sink key"](RNG), None)[..., 0]
    assert weights.mean() == pytest.approx(0.39, abs=0.01)
    query, key = INPUTS["smooth in position"](RNG)
    weights = softmax_weights(query, key, None)
    assert (1 / (weights**2).sum(axis=-1)).mean() == pytest.approx(17, abs=3)
    for distance in (8, 16, 32):
        near = (key[:, distance:] * key[:, :-distance]).mean() / (key**2).mean()
        assert near == pytest.approx(np.exp(-((distance / 16) ** 2) / 2), abs=0.1)


def test_clusters_are_segments_then_contiguous_then_shuffled():
    aligned, in_order, shuffled = (
        np.asarray(INPUTS[f"clusters, {name}"](RNG)[1][0, :, 0])
        for name in ("one per segment", "in order", "shuffled")
    )

    def jumps(key):
        return np.flatnonzero(np.linalg.norm(np.diff(key, axis=0), axis=1) > 6) + 1

    np.testing.assert_array_equal(jumps(aligned), np.arange(32, 1024, 32))
    np.testing.assert_array_equal(jumps(in_order), np.arange(13, 1024, 32))
    assert len(jumps(shuffled)) > 900


@pytest.fixture
def small(monkeypatch):
    columns = {"M = 5, 12 iterations": {"num_landmarks": 5, "pinv_iters": 12}}
    monkeypatch.setattr(approximation, "COLUMNS", columns)


@pytest.mark.slow(minutes=0.1)
def test_row_of_a_layer_is_the_mean_error_on_its_real_tokens(small, monkeypatch):
    run = train.prepare(small_config(model__num_layers=2))
    task, params = data.load(run.data), params_at(run, BEST)
    trained = Trained(run, params, BEST, finished=True, name="run", task=task)
    monkeypatch.setattr(approximation, "LENGTH", 54)
    with pytest.raises(ValueError, match="run has no validation example of 54 tokens"):
        approximation.measure_run(trained, 2)
    monkeypatch.setattr(approximation, "LENGTH", 53)
    found = approximation.measure_run(trained, 2)
    assert found["examples"] == [0, 1]
    assert found["tokens"] == [53, 53]
    assert found["checkpoint"] == {"step": BEST, "best": True}
    assert [row["inputs"] for row in found["rows"]] == ["layer 1", "layer 2"]
    calls = [unpadded(trained.core_calls(example, "valid")[1]) for example in (0, 1)]
    measure = jax.jit(functools.partial(approximation_error, num_landmarks=5, pinv_iters=12))
    errors = [measure(*call) for call in calls]
    row = found["rows"][1]
    assert row["nystrom"] == [pytest.approx(np.mean([x.nystrom for x in errors]), abs=1e-4)]
    assert row["mean"] == pytest.approx(np.mean([x.mean_value for x in errors]), abs=1e-4)


def test_each_command_replaces_its_own_part(tmp_path, small, monkeypatch, capsys):
    trained = SimpleNamespace(task=SimpleNamespace(name="listops"))
    monkeypatch.setattr(approximation, "SHAPE", (1, 13, 4, 32))
    monkeypatch.setattr(approximation, "SEEDS", 2)
    monkeypatch.setattr(approximation, "INPUTS", {"noise": INPUTS["Gaussian, σ = 1"]})
    monkeypatch.setattr(approximation, "measure_run", lambda *_: {"rows": []})
    monkeypatch.setattr(approximation, "open_run", lambda *_, **__: trained)
    out = tmp_path / "new" / "errors.json"
    assert approximation.main(["--out", str(out)]) == 0
    assert approximation.main(["--out", str(out), "--run", "runs/listops"]) == 0
    results = json.loads(out.read_text())
    assert results["random"]["length"] == 13
    assert results["trained"]["listops"]["command"].endswith("--run runs/listops")
    assert approximation.markdown(results) in capsys.readouterr().out
    out.write_text('{"rows": []}')  # another table
    for run in ([], ["--run", "runs/listops"]):
        assert approximation.main(["--out", str(out), *run]) == 2
        assert "--out" in capsys.readouterr().err
    assert out.read_text() == '{"rows": []}'
