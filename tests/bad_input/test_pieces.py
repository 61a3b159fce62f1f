"""The parts of Nyström attention: for any values and masks their results are finite and consistent."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nystromformer_jax import (
    distribute,
    iterative_pinv,
    pinv_residual,
    segment_means,
)
from tests.bad_input.fuzz import (
    DTYPES,
    FILLERS,
    SEEDS,
    Case,
    attention_inputs,
    compiled,
    filled,
    finite,
    fuzz,
    masks,
    same_bits,
    some,
    values,
)

SEQUENCES = (
    Case(1, 1, 1, batch=1),
    Case(2, 2, 7),
    Case(13, 13, 1, heads=1),
    Case(17, 17, 5),
    Case(15, 15, 5, dim=1),  # segments of one length
)
# M and N, and the leading axes.
MATRICES = ((2, 3, 5, 5), (3, 2, 5), (1, 1), (3, 7, 7), (2, 5, 3), (1, 13, 13))


@fuzz()
@given(attention_inputs(SEQUENCES), st.sampled_from(FILLERS), st.booleans())
def test_segment_means_lie_within_the_range_of_real_tokens(drawn, filler, masked):
    count, x = drawn.case.num_landmarks, drawn.filled(filler).inputs[0]
    x = x if masked else drawn.inputs[0]
    mask = drawn.mask if masked else None
    function = compiled(segment_means, num_landmarks=count)
    means, landmark_mask = function(x, mask=mask)
    assert means.shape == (drawn.case.batch, count, *x.shape[2:])
    assert (means.dtype, landmark_mask.dtype, landmark_mask.shape) == (
        x.dtype,
        bool,
        means.shape[:2],
    )
    assert finite(means)
    assert same_bits(means, function(drawn.filled(0).inputs[0] if masked else x, mask=mask)[0])
    assert not np.asarray(means, np.float64)[~np.asarray(landmark_mask)].any()
    real = np.ones(x.shape[:2], bool) if mask is None else mask
    assert (landmark_mask.sum(axis=1) == np.minimum(real.sum(axis=1), count)).all()
    largest = np.abs(np.where(real[..., None, None], np.asarray(x, np.float64), 0)).max(initial=0)
    assert np.abs(np.asarray(means, np.float64)).max() <= largest * 1.01


@st.composite
def matrices(draw):
    """Matrices of attention weights (rows sum to one), of any numbers, or of zeros."""
    shape = draw(st.sampled_from(some(MATRICES)))
    dtype = draw(st.sampled_from(some(DTYPES, 1)))
    kind = draw(st.sampled_from(["ordinary", "tiny", "zero", "huge"]))
    x = values(draw(SEEDS), kind, shape, dtype)
    return jax.nn.softmax(x, axis=-1) if draw(st.booleans()) else x


@fuzz()
@given(matrices(), st.sampled_from(some([6, 0, 1, 12], 1)), st.sampled_from(["exact", "batch_max"]))
def test_pseudoinverse_is_finite_and_zero_for_a_zero_matrix(kernel, num_iters, start):
    inverse = compiled(iterative_pinv, num_iters=num_iters, start="exact")(kernel)
    assert inverse.shape == kernel.mT.shape
    assert inverse.dtype == jnp.float32
    assert finite(inverse)
    if not np.asarray(kernel, np.float64).any():
        assert not inverse.any()
    residual = compiled(pinv_residual)(kernel, inverse)
    assert residual.shape == kernel.shape[:-2]
    assert finite(residual)
    of_rows = jax.nn.softmax(kernel.astype(jnp.float32), axis=-1)
    assert finite(compiled(iterative_pinv, num_iters=num_iters, start=start)(of_rows))


@fuzz()
@given(attention_inputs(), st.data())
def test_distribute_ignores_dead_landmarks(drawn, data):
    query, key, value = drawn.filled(0).inputs
    count = min(drawn.case.num_landmarks, key.shape[1])
    landmark_mask = data.draw(masks(drawn.case.batch, count)) | (np.arange(count) == 0)
    k_landmarks, landmark_values = key[:, :count], value[:, :count]
    function = compiled(distribute)
    output = function(query, k_landmarks, landmark_values, landmark_mask=landmark_mask)
    assert (output.shape, output.dtype) == (query.shape, query.dtype)
    assert finite(output)
    other = filled(landmark_values, landmark_mask, 3)  # another number at dead landmarks
    assert same_bits(output, function(query, k_landmarks, other, landmark_mask=landmark_mask))
