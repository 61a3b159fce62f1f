"""The numbers of the figures, compared with float64 and with each other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra.figures import approximation
from lra.figures.approximation import nystrom_options
from lra.figures.captured import QKV, CoreCall
from nystromformer_jax import nystrom_attention, softmax_attention
from nystromformer_jax.attention.functions import find_landmarks
from nystromformer_jax.attention.options import NystromOptions
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    normal,
    nystrom_by_the_paper,
    random_inputs,
    softmax_by_the_paper,
)


def random_layer(rngs, real, *, heads=2, dim=3):
    """Inputs of a core; `real` is a mask [L]."""
    query, key, value = random_inputs(rngs, 1, len(real), heads, dim)
    return CoreCall(query, key, value, jnp.asarray(real)[None])


def tokens_of(rngs, batch, length):
    return QKV(*random_inputs(rngs, batch, length, 2, 3))


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


def test_a_short_map_is_drawn_without_averaging():
    edges = approximation.block_edges(5, 512)
    np.testing.assert_array_equal(edges, np.arange(6))
    x = np.arange(25.0).reshape(5, 5)
    np.testing.assert_array_equal(approximation.block_means(x, edges, edges), x)


@pytest.mark.slow_except("True-real")
@pytest.mark.parametrize("layout", ["real", "mlpen"])
@pytest.mark.parametrize("normalize_rows", [False, True])
def test_maps_times_values_equal_the_attention_outputs(layout, normalize_rows, rngs):
    """On real tokens only, with padding between them too, and with padding in segments."""
    real = np.arange(44) < 37
    real[5:8] = False
    layer = random_layer(rngs, real)
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
        assert maps.length == 34


def test_chunked_maps_equal_full_maps(rngs, monkeypatch):
    layer = random_layer(rngs, np.arange(41) < 37)
    whole = approximation.head_maps(layer, NystromOptions(num_landmarks=7), max_pixels=13)
    monkeypatch.setattr(approximation, "MAX_WEIGHTS", 37 * 8)
    held = []
    rows_of_maps = approximation._rows_of_maps

    def spy(*arguments):
        held.append(len(arguments[0]))
        return rows_of_maps(*arguments)

    monkeypatch.setattr(approximation, "_rows_of_maps", spy)
    parts = approximation.head_maps(layer, NystromOptions(num_landmarks=7), max_pixels=13)
    assert max(held) <= 8
    assert sum(held) == 2 * 37
    assert parts[1].exact.shape == (13, 13)
    assert_close(parts, whole, SAME_ARITHMETIC)


def test_chunked_softmax_attention_equals_softmax_attention(rngs, monkeypatch):
    tokens = tokens_of(rngs, 2, 19)
    expected = softmax_attention(*tokens)
    assert_close(approximation.chunked_softmax_attention(tokens), expected, SAME_ARITHMETIC)
    monkeypatch.setattr(approximation, "MAX_WEIGHTS", 19 * 5)
    assert_close(approximation.chunked_softmax_attention(tokens), expected, SAME_ARITHMETIC)


def test_error_equals_the_definition_of_the_paper(rngs):
    tokens = tokens_of(rngs, 2, 29)
    exact = approximation.chunked_softmax_attention(tokens)
    (errors,) = approximation.output_errors([tokens], [exact], NystromOptions(num_landmarks=5))
    for example in range(2):
        inputs = [x[example] for x in tokens]
        truth = softmax_by_the_paper(*inputs)
        difference = nystrom_by_the_paper(*inputs, 5) - truth
        for head in range(2):
            expected = frobenius(difference[:, head]) / frobenius(truth[:, head])
            assert errors[example, head] == pytest.approx(expected, 1e-4)


def test_error_is_zero_with_as_many_landmarks_as_tokens(rngs):
    tokens = tokens_of(rngs, 1, 23)
    exact = approximation.chunked_softmax_attention(tokens)
    for count, low, high in ((3, 0.1, 10), (23, 0, 1e-6), (31, 0, 1e-6)):
        errors = approximation.output_errors([tokens], [exact], NystromOptions(num_landmarks=count))
        assert low <= errors.min() <= errors.max() <= high


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize("start", ["exact", "batch_max"])
def test_residuals_agree_with_float64(start, rngs):
    layers = [tokens_of(rngs, 2, 29), tokens_of(rngs, 2, 29)]
    exact = [approximation.chunked_softmax_attention(tokens) for tokens in layers]
    nystrom = NystromOptions(num_landmarks=5, pinv_start=start)
    residuals, errors = approximation.errors_by_iteration(layers, exact, nystrom, 7)
    assert residuals.shape == errors.shape == (8, 2, 2, 2)
    options = NystromOptions(
        num_landmarks=5, pinv_iters=0, pinv_start=start, landmark_layout="real"
    )
    for number, (query, key, _) in enumerate(layers):
        kernel = find_landmarks(query, key, None, None, options).kernel_2
        kernel = np.asarray(kernel, np.float64)
        sums = kernel.sum(axis=-2).max(axis=-1), kernel.sum(axis=-1).max(axis=-1)
        size = sums[0] * sums[1] if start == "exact" else np.full((2, 2), sums[0].max())
        inverse = kernel.swapaxes(-1, -2) / size[..., None, None]
        eye = np.eye(5)
        for iteration in range(8):
            for place in np.ndindex(2, 2):
                a, z = kernel[place], inverse[place]
                expected = frobenius(a @ z @ a - a) / frobenius(a)
                found = residuals[(iteration, number, *place)]
                assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
            az = kernel @ inverse
            inverse = inverse @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4


@pytest.mark.parametrize("normalize_rows", [False, True])
@pytest.mark.slow_except("False")
def test_error_by_iteration_agrees_with_the_attention(normalize_rows, rngs):
    layers = [tokens_of(rngs, 2, 29), tokens_of(rngs, 2, 29)]
    exact = [approximation.chunked_softmax_attention(tokens) for tokens in layers]
    nystrom = NystromOptions(num_landmarks=5, pinv_iters=4, normalize_rows=normalize_rows)
    _, errors = approximation.errors_by_iteration(layers, exact, nystrom, 5)
    expected = approximation.output_errors(layers, exact, nystrom)
    assert_close(errors[4], expected, REFERENCE)
    assert np.abs(errors[5] - expected).max() > 1e-3


@pytest.mark.slow(minutes=0.1)
def test_curves_agree_at_shared_points(rngs, monkeypatch):
    monkeypatch.setattr(approximation, "LANDMARKS", (2, 5, 8, 64))
    monkeypatch.setattr(approximation, "FIXED_LANDMARKS", (8, 5))
    monkeypatch.setattr(approximation, "SHORTEST", 7)
    monkeypatch.setattr(approximation, "MAX_ITERS", 9)
    layers = [tokens_of(rngs, 2, 31), tokens_of(rngs, 2, 31)]
    # Without padding all layouts give the same landmarks.
    nystrom = NystromOptions(num_landmarks=5, landmark_layout="hf")
    curves = approximation.curves(layers, nystrom)
    by_landmarks = {row["num_landmarks"]: row["median"] for row in curves["by_landmarks"]}
    assert list(by_landmarks) == [2, 5, 8]  # with 64 the attention is exact
    by_length = {
        (row["num_landmarks"], row["length"]): row["median"] for row in curves["by_length"]
    }
    assert list(by_length) == [(5, 31), (8, 31), (8, 15), (5, 15), (5, 7)]
    assert by_length[5, 31] == by_landmarks[5]
    assert by_length[5, 7] < by_length[5, 31]
    for start in ("exact", "batch_max"):
        rows = curves["by_iteration"][start]
        assert [row["iterations"] for row in rows] == list(range(10))
        assert rows[9]["residual"]["median"] < rows[6]["residual"]["median"] < 1
    row = curves["by_iteration"]["exact"][6]
    assert row["output_error"]["median"] == pytest.approx(by_landmarks[5], 1e-4)


def test_spread_is_the_median_and_the_quartiles():
    found = approximation.quartiles(np.arange(9.0).reshape(3, 3))
    assert found == {"lower": 2.0, "median": 4.0, "upper": 6.0}


def test_random_tokens_are_normal_and_reproducible():
    like = QKV(*(jnp.zeros((2, 101, 3, 5)),) * 3)
    one, again, other = (approximation.random_tokens(like, seed) for seed in (1, 1, 2))
    assert_close(one, again, SAME_ARITHMETIC)
    assert np.abs(one.query - other.query).max() > 1
    assert np.abs(one.query - one.key).max() > 1
    assert np.std(one.value) == pytest.approx(1, abs=0.05)


def test_nystrom_options_are_those_of_the_run_or_the_defaults():
    section = {"name": "nystrom", "num_landmarks": 32, "conv_kernel_size": 35, "pinv_iters": 4}
    assert nystrom_options(section) == NystromOptions(num_landmarks=32, pinv_iters=4)
    assert nystrom_options({"name": "softmax", "dropout_rate": 0.1}) == NystromOptions()
