import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.attention import clusters
from nystromformer_jax.attention.factors import nystrom_attention_rows, nystrom_factors
from nystromformer_jax.attention.functions import softmax_weights
from tests.attention.contract import assert_equals_plain_jnp, cases_of
from tests.helpers import (
    REFERENCE,
    assert_close,
    largest_array,
    mask_of_lengths,
    normal,
    random_inputs,
)

HEADS, DIM = 2, 5


def full_map(factors):
    return factors.kernel_1 @ factors.inverse @ factors.kernel_3


@cases_of("factors", "two masks")
def test_product_of_the_factors_and_the_value_equals_the_output(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "factors", case)


@pytest.mark.slow_except("5-33-kmeans", "33-5-segments")
@pytest.mark.parametrize("selection", ["segments", "kmeans"])
@pytest.mark.parametrize(("queries", "keys"), [(5, 33), (33, 5)])
def test_factors_are_exact_for_short_inputs_without_masks(
    rngs, monkeypatch, queries, keys, selection
):
    """Clusters that start at tokens far apart are not in the order of the tokens."""

    def far_apart(x, *_):
        return jnp.take_along_axis(x, clusters._far_apart(x, 16)[..., None], axis=1)

    monkeypatch.setattr(clusters, "_initial_centers", far_apart)
    query, key = (normal(next(rngs), (11, length, HEADS, DIM)) for length in (queries, keys))
    options = {"num_landmarks": 16, "landmark_selection": selection}
    factors = jax.jit(functools.partial(nystrom_factors, **options))(query, key)
    assert_close(full_map(factors), softmax_weights(query, key, None), REFERENCE)


def test_factors_without_a_real_key_are_zero(rngs):
    """Also in layouts that read padding."""
    query, key, _ = random_inputs(rngs, 2, 35, HEADS, DIM)
    mask = mask_of_lengths([35, 0], 35)
    factors = nystrom_factors(query, key, num_landmarks=7, mask=mask, landmark_layout="hf")
    assert (factors.kernel_3[1] == 0).all()
    assert (factors.kernel_3[0] != 0).any()


def test_rows_equal_rows_of_the_full_map(rngs):
    """Negative rows count from the end, and rows out of range are NaN."""
    query, key, _ = random_inputs(rngs, 3, 67, HEADS, DIM)
    mask = mask_of_lengths([67, 40, 6], 67)
    rows = np.array([[0, 66, -1], [39, 0, -67], [5, 2, -62]])
    expected = np.asarray(full_map(nystrom_factors(query, key, num_landmarks=7, mask=mask)))
    of_rows = jax.jit(functools.partial(nystrom_attention_rows, num_landmarks=7, mask=mask))
    actual = np.asarray(of_rows(query, key, rows))
    for b in range(3):
        assert_close(actual[b], expected[b][:, rows[b]], REFERENCE)
    assert (actual.transpose(0, 3, 1, 2)[~np.asarray(mask)] == 0).all()
    outside = of_rows(query, key, np.array(3 * [[67, -68, 99]]))
    assert jnp.isnan(outside).all()


def test_rows_never_allocate_a_quadratic_map():
    length = 4096
    shape = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    rows = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    of_rows = functools.partial(nystrom_attention_rows, num_landmarks=16)
    assert largest_array(of_rows, shape, shape, rows) <= 2 * length * 16


@pytest.mark.parametrize("layout", ["real", "hf"])
@pytest.mark.parametrize("length", [7, 35])
def test_dtypes_are_never_promoted_implicitly(layout, length, rngs):
    query, key, _ = random_inputs(rngs, 2, length, HEADS, DIM, dtype=jnp.bfloat16)
    rows = jnp.zeros((2, 1), jnp.int32)
    options = {
        "num_landmarks": 7,
        "landmark_layout": layout,
        "mask": mask_of_lengths([7, 5], length),
    }
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        of_rows = functools.partial(nystrom_attention_rows, rows=rows, **options)
        assert jax.eval_shape(of_rows, query, key).dtype == jnp.float32
