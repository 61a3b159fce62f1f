"""The numbers of the figures, compared with float64 and with each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra.figures import approximation
from lra.figures.approximation import nystrom_options
from lra.figures.trained_run import CoreCall
from nystromformer_jax import (
    approximation_error,
    iterative_pinv,
    nystrom_attention,
    pinv_residual,
    softmax_attention,
)
from nystromformer_jax.attention.functions import find_landmarks, softmax_weights
from nystromformer_jax.attention.options import NystromOptions
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    normal,
    random_inputs,
)


def frobenius(x):
    return np.sqrt((np.asarray(x, np.float64) ** 2).sum())


def test_block_means_preserve_the_mean(rngs):
    x = np.asarray(normal(next(rngs), (23, 23)), np.float64)
    edges = approximation.block_edges(23, 7)
    assert edges.tolist() == [0, 4, 7, 10, 14, 17, 20, 23]
    means = approximation.block_means(x, edges, edges)
    assert means.shape == (7, 7)
    np.testing.assert_allclose(means[1, 3], x[4:7, 10:14].mean(), rtol=1e-12)
    sizes = np.diff(edges)
    weights = sizes[:, None] * sizes[None]
    np.testing.assert_allclose((means * weights).sum() / 23**2, x.mean(), rtol=1e-12)
    every = approximation.block_edges(23, 512)
    np.testing.assert_array_equal(approximation.block_means(x, every, every), x)


@pytest.mark.slow_except("True-real")
@pytest.mark.parametrize("layout", ["real", "mlpen"])
@pytest.mark.parametrize("normalize_rows", [False, True])
def test_maps_times_values_equal_the_attention_outputs(layout, normalize_rows, rngs, monkeypatch):
    """On real tokens only, with padding between them too, with padding in segments, and in chunks."""
    real = np.arange(44) < 37
    real[5:8] = False
    masks = jnp.asarray([real, ~real])  # the maps are those of the first sequence
    layer = CoreCall(*random_inputs(rngs, 2, 44, 2, 3), masks)
    nystrom = NystromOptions(
        num_landmarks=11, landmark_layout=layout, normalize_rows=normalize_rows
    )
    attend = jax.jit(functools.partial(nystrom_attention, **dataclasses.asdict(nystrom)))
    exact, approximate = (
        np.asarray(function(*layer[:3], mask=layer.mask))[0, real]
        for function in (jax.jit(softmax_attention), attend)
    )
    for head, maps in enumerate(approximation.head_maps(layer, nystrom)):
        assert maps.exact.shape == maps.approximate.shape == (34, 34)
        value = np.asarray(layer.value[0, real, head], np.float64)
        assert_close(maps.exact @ value, exact[:, head], REFERENCE)
        assert_close(maps.approximate @ value, approximate[:, head], REFERENCE)
        difference = maps.approximate - maps.exact
        assert maps.map_error == pytest.approx(frobenius(difference) / frobenius(maps.exact), 1e-4)
        error = frobenius(approximate[:, head] - exact[:, head]) / frobenius(exact[:, head])
        assert maps.output_error == pytest.approx(error, 1e-4)
    whole = approximation.head_maps(layer, nystrom, max_pixels=13)
    assert whole[1].exact.shape == (13, 13)
    held = []
    spy = lambda query, *rest: [held.append(query.shape[1]), softmax_weights(query, *rest)][1]
    monkeypatch.setattr(approximation, "softmax_weights", spy)
    monkeypatch.setattr(approximation, "MAX_WEIGHTS", 2 * 44 * 8)
    assert_close(approximation.head_maps(layer, nystrom, max_pixels=13), whole, SAME_ARITHMETIC)
    assert (max(held) <= 8, sum(held)) == (True, 34)


@pytest.mark.slow(minutes=0.1)
def test_curves_agree_at_shared_points(rngs, monkeypatch):
    few = {"LANDMARKS": (2, 5, 8, 64), "FIXED_LANDMARKS": (8, 5), "SHORTEST": 7, "MAX_ITERS": 9}
    for name, value in few.items():
        monkeypatch.setattr(approximation, name, value)
    layers = [random_inputs(rngs, 2, 31, 2, 3), random_inputs(rngs, 2, 31, 2, 3)]
    # Without padding all layouts give the same landmarks.
    nystrom = NystromOptions(num_landmarks=5, landmark_layout="hf")
    curves = approximation.curves(layers, nystrom)
    own = approximation.curves(layers, NystromOptions(num_landmarks=5, num_own_landmarks=2))
    assert [row["num_landmarks"] for row in own["by_landmarks"]] == [5, 8]
    by_landmarks = {row["num_landmarks"]: row["median"] for row in curves["by_landmarks"]}
    assert list(by_landmarks) == [2, 5, 8]  # with 64 the attention is exact
    by_length = {
        (row["num_landmarks"], row["length"]): row["median"] for row in curves["by_length"]
    }
    assert list(by_length) == [(8, 31), (5, 31), (8, 15), (5, 15), (5, 7)]
    assert by_length[5, 31] == by_landmarks[5]
    assert by_length[5, 7] < by_length[5, 31]
    for start in ("exact", "batch_max"):
        rows = curves["by_iteration"][start]
        assert [row["iterations"] for row in rows] == list(range(10))
        assert rows[9]["residual"]["median"] < rows[6]["residual"]["median"] < 1
    row = curves["by_iteration"]["exact"][6]
    assert row["output_error"]["median"] == pytest.approx(by_landmarks[5], 1e-4)
    errors = [approximation_error(*tokens, num_landmarks=5).nystrom for tokens in layers]
    found = curves["by_landmarks"][1]
    quartiles = np.percentile(np.stack(errors), (25, 50, 75))
    assert [found[name] for name in ("lower", "median", "upper")] == pytest.approx(quartiles, 1e-4)


def test_residuals_are_those_of_the_start_and_the_iterations(rngs, monkeypatch):
    for name, value in (("LANDMARKS", ()), ("FIXED_LANDMARKS", ()), ("MAX_ITERS", 1)):
        monkeypatch.setattr(approximation, name, value)
    # Errors of the output are not compared here.
    monkeypatch.setattr(approximation, "nystrom_attention", lambda *tokens, **_: tokens[2])
    tokens = random_inputs(rngs, 1, 29, 2, 3)
    curves = approximation.curves([tokens], NystromOptions(num_landmarks=5))
    starts = curves["by_iteration"]
    assert starts["exact"][0]["residual"] != starts["batch_max"][0]["residual"]
    kernel = find_landmarks(*tokens[:2], None, None, NystromOptions(num_landmarks=5)).kernel_2
    expected = np.median(pinv_residual(kernel, iterative_pinv(kernel, num_iters=1)))
    assert starts["exact"][1]["residual"]["median"] == pytest.approx(expected)


def test_nystrom_options_are_those_of_the_run_or_the_defaults():
    section = {"name": "nystrom", "num_landmarks": 32, "conv_kernel_size": 35, "pinv_iters": 4}
    assert nystrom_options(section) == NystromOptions(num_landmarks=32, pinv_iters=4)
    assert nystrom_options({"name": "softmax", "dropout_rate": 0.1}) == NystromOptions()
