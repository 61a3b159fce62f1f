"""Properties of the attention functions for any values of real tokens and padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer_jax import (
    nystrom_attention,
    nystrom_attention_rows,
    nystrom_factors,
    sharded_nystrom_attention,
    softmax_attention,
)
from nystromformer_jax.training import MeshConfig, make_mesh
from tests.bad_input.fuzz import (
    CASES,
    FILLERS,
    ORDINARY,
    Case,
    Drawn,
    attention_call,
    attention_inputs,
    compiled,
    finite,
    fuzz,
    same_bits,
    values,
)

SHARDED_CASES = (*CASES[:4], Case(18, 18, 5, width=3), Case(11, 19, 5))


def two_devices():
    return make_mesh(MeshConfig(sequence=2), jax.devices()[:2])


def softmax(drawn, **masks):
    return compiled(softmax_attention)(*drawn.inputs, **masks)


def nystrom(drawn, normalize_rows=False, **masks):
    options = {"num_landmarks": drawn.case.num_landmarks, "normalize_rows": normalize_rows}
    return compiled(nystrom_attention, **options)(*drawn.inputs, conv_kernel=drawn.kernel, **masks)


def normalized(drawn, **masks):
    return nystrom(drawn, normalize_rows=True, **masks)


def sharded(drawn, **masks):
    options = {"num_landmarks": drawn.case.num_landmarks, "mesh": two_devices()}
    function = compiled(sharded_nystrom_attention, **options)
    return function(*drawn.inputs, conv_kernel=drawn.kernel, **masks)


def masks_of(drawn):
    same = drawn.query_mask is drawn.mask
    return {"mask": drawn.mask, "query_mask": None if same else drawn.query_mask}


attentions = pytest.mark.parametrize(
    ("attend", "cases"),
    [
        pytest.param(softmax, CASES, id="softmax"),
        pytest.param(nystrom, CASES, id="nystrom"),
        pytest.param(normalized, CASES, id="normalized"),
        pytest.param(sharded, SHARDED_CASES, id="sharded"),
    ],
)


@pytest.mark.slow_except("nystrom", "softmax")
@attentions
def test_output_is_finite_and_independent_of_padding_and_of_the_rest_of_the_batch(attend, cases):
    @fuzz()
    @given(attention_inputs(cases), st.sampled_from(FILLERS), st.data())
    def holds(drawn, filler, data):
        expected = attend(drawn.filled(0), **masks_of(drawn))
        output = attend(drawn.filled(filler), **masks_of(drawn))
        assert output.shape == drawn.inputs[0].shape
        assert output.dtype == drawn.inputs[0].dtype
        assert finite(output)
        assert same_bits(output, expected, drawn.query_mask)
        first = data.draw(st.integers(0, drawn.case.batch - 1))
        keep = (np.arange(drawn.case.batch) == first)[:, None]
        mates = data.draw(attention_call(drawn.case, drawn.inputs[0].dtype))
        mask = np.where(keep, drawn.mask, mates.mask)
        query_mask = np.where(keep, drawn.query_mask, mates.query_mask)
        both = zip(drawn.inputs, mates.inputs, strict=True)
        mixed = drawn._replace(
            inputs=tuple(jnp.where(keep[..., None, None], x, y) for x, y in both),
            mask=mask,
            query_mask=mask if drawn.query_mask is drawn.mask else query_mask,
        )
        where = keep & drawn.query_mask
        assert same_bits(attend(mixed, **masks_of(mixed)), expected, where)

    holds()


@pytest.mark.slow_except("nystrom")
@attentions
def test_gradients_are_finite_and_zero_at_padding(attend, cases):
    @functools.cache
    def gradients(case):
        def total(inputs, kernel, masks, cotangent):
            drawn = Drawn(case, inputs, None, None, kernel, 0)
            return (attend(drawn, **masks) * cotangent).sum()

        return jax.jit(jax.grad(total, argnums=(0, 1) if case.width else 0))

    @fuzz()
    @given(attention_inputs(cases, ORDINARY), st.sampled_from(FILLERS))
    def holds(drawn, filler):
        cotangent = values(drawn.seed + 5, "ordinary", drawn.inputs[0].shape, drawn.inputs[0].dtype)
        cotangent = jnp.where(drawn.query_mask[..., None, None], cotangent, 0)
        masks = masks_of(drawn)
        inputs = drawn.filled(filler).inputs
        found = gradients(drawn.case)(inputs, drawn.kernel, masks, cotangent)
        assert finite(found)
        query, key, value = found[0] if drawn.case.width else found
        assert not np.asarray(query, np.float64)[~drawn.query_mask].any()
        assert not np.asarray(key, np.float64)[~drawn.mask].any()
        assert not np.asarray(value, np.float64)[~drawn.mask].any()

    holds()


@fuzz()
@given(attention_inputs(), st.sampled_from(FILLERS))
def test_factors_and_rows_are_finite_and_zero_at_padding(drawn, filler):
    case, masks = drawn.case, masks_of(drawn)
    query, key, _ = drawn.filled(filler).inputs
    factors = compiled(nystrom_factors, num_landmarks=case.num_landmarks)(query, key, **masks)
    shape = (case.batch, case.heads)
    assert [factor.shape for factor in factors] == [
        (*shape, case.length, case.num_landmarks),
        (*shape, case.num_landmarks, case.num_landmarks),
        (*shape, case.num_landmarks, case.key_length),
    ]
    assert finite(factors)
    rows = np.random.default_rng(drawn.seed).integers(0, case.length, (case.batch, 2))
    chosen = compiled(nystrom_attention_rows, num_landmarks=case.num_landmarks)(
        query, key, jnp.asarray(rows), **masks
    )
    assert chosen.shape == (*shape, 2, case.key_length)
    assert finite(chosen)
    real = drawn.mask[:, None, None, :]
    assert not np.where(~real, np.asarray(chosen), 0).any()
