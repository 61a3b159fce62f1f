"""Properties of the attention functions, forward and gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from nystromformer_jax.attention.convolution import depthwise_convolution
from nystromformer_jax.attention.functions import nystrom_attention, softmax_attention
from nystromformer_jax.training.collectives import find_collectives
from tests.attention.contract import (
    assert_equals_plain_jnp,
    assert_independent_of_padding_and_batch,
    cases_of,
)
from tests.helpers import (
    REFERENCE,
    Tolerance,
    assert_close,
    forward_and_gradients,
    mask_of_lengths,
    normal,
    nystrom_by_the_paper,
    random_inputs,
)

M, HEADS, DIM = 7, 2, 5
# Compiled at once: without jit each operation is a program of its own.
OPTIONS = ("num_landmarks", "pinv", "pinv_iters", "landmark_layout", "normalize_rows")
jit_nystrom = jax.jit(nystrom_attention, static_argnames=OPTIONS)


@pytest.mark.parametrize("names", [["mask"], ["mask", "query_mask"]])
def test_softmax_attention_is_that_of_jax_under_any_mask_whatever_padding_contains(rngs, names):
    """Grouped heads, output and gradients; jax reads the padding of queries, which the loss ignores."""
    query = normal(next(rngs), (3, 11, 4, DIM))
    key, value = (normal(next(rngs), (3, 11, 2, DIM)) for _ in range(2))
    mask = jax.random.bernoulli(next(rngs), 0.5, (3, 11)).at[:, 0].set(True)
    real = mask[..., None, None]
    weights = normal(next(rngs), query.shape) * real
    theirs = functools.partial(jax.nn.dot_product_attention, mask=mask[:, None, None])
    expected = forward_and_gradients(theirs, (query, key, value), weights)
    ours = functools.partial(softmax_attention, **dict.fromkeys(names, mask))
    padded = [jnp.where(real, x, jnp.nan) for x in (query, key, value)]
    output, gradients = forward_and_gradients(ours, padded, weights)
    assert jnp.isfinite(output).all()
    assert_close(output, expected[0], REFERENCE, where=mask)
    assert_close(gradients, expected[1], REFERENCE)


@pytest.mark.slow_except("False-0", "True-3")
@pytest.mark.parametrize("num_own", [0, 3])
@pytest.mark.parametrize("cross", [False, True])
def test_every_number_of_tokens_equals_the_formula_of_the_paper_whatever_the_padding(
    rngs, cross, num_own
):
    """From 1 to 60 tokens between padding of NaN; in cross-attention, few queries have many keys."""
    counts, random = np.arange(1, 61), np.random.default_rng(0)
    inputs = [np.asarray(x) for x in random_inputs(rngs, 60, 60, HEADS, DIM)]

    def mask_of(counts, length):
        return random.permuted(np.arange(length)[None] < counts[:, None], axis=1)

    mask = mask_of(counts, 79)
    query_mask = mask_of(counts[::-1], 67) if cross else mask
    padded = []
    for x, real in zip(inputs, (query_mask, mask, mask), strict=True):
        own = np.full((*real.shape, HEADS, DIM), np.nan, np.float32)
        for b in range(60):
            own[b, real[b]] = x[b, : real[b].sum()]
        padded.append(own)
    masks = {"mask": mask, "query_mask": query_mask if cross else None}
    attend = functools.partial(nystrom_attention, num_landmarks=M, num_own_landmarks=num_own)
    output = np.asarray(jax.jit(attend)(*padded, **masks))
    for b, count in enumerate(counts):
        query, key, value = inputs[0][b, : query_mask[b].sum()], *(x[b, :count] for x in inputs[1:])
        expected = nystrom_by_the_paper(query, key, value, M, num_own=num_own)
        assert_close(output[b, query_mask[b]], expected, REFERENCE)


def test_the_output_of_an_own_query_is_exact_once_the_pseudoinverse_has_converged(rngs):
    """Its row of kernel_1 is a row of kernel_2, so its row of the map is its row of kernel_3."""
    with jax.enable_x64(True):
        tokens = [x.astype(jnp.float64) for x in random_inputs(rngs, 2, 61, HEADS, DIM)]
        options = {"num_landmarks": M, "num_own_landmarks": 2, "pinv_iters": 30}
        output = np.asarray(nystrom_attention(*tokens, **options))
        exact = np.asarray(softmax_attention(*tokens))
        assert_close(output[:, :2], exact[:, :2], REFERENCE)
        assert (np.abs(output - exact)[:, 2:].max(axis=(1, 3)) > 1e-2).all()


@pytest.mark.slow_except("iterative-1", "iterative-256", "ridge-16")
@pytest.mark.parametrize("num_landmarks", [1, 2, 16, 64, 128, 256])
@pytest.mark.parametrize("pinv", ["iterative", "ridge"])
def test_any_number_of_landmarks_equals_the_formula_of_the_paper(rngs, num_landmarks, pinv):
    inputs = random_inputs(rngs, 1, 301, 1, DIM)
    actual = jit_nystrom(*inputs, num_landmarks=num_landmarks, pinv=pinv)
    expected = nystrom_by_the_paper(*(x[0] for x in inputs), num_landmarks, pinv=pinv)
    # 256 landmarks of 301 are ill-conditioned
    assert_close(actual[0], expected, Tolerance(1e-4))


@pytest.mark.slow_except("paper-ends")
@pytest.mark.parametrize("padding", ["ends", "between"])
@pytest.mark.parametrize(
    "options",
    [{}, {"normalize_rows": True}, {"pinv": "ridge"}],
    ids=["paper", "normalized rows", "ridge"],
)
def test_an_example_in_a_padded_batch_equals_the_example_alone(rngs, padding, options):
    assert_independent_of_padding_and_batch(rngs, padding, options)


@cases_of("xla", "bfloat16")
def test_padding_may_contain_anything_and_half_precision_is_near_float32(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "xla", case)


@pytest.mark.slow_except("True-lengths2")
@pytest.mark.parametrize("lengths", [None, [8, 11], [3, 10]])
@pytest.mark.parametrize("cross", [False, True])
def test_gradients_equal_finite_differences_in_float64(rngs, lengths, cross):
    with jax.enable_x64(True):
        key_length = 13 if cross else 11
        inputs = random_inputs(rngs, 2, 11, 1, 3, key_length=key_length, dtype=jnp.float64)
        kernel = None if cross else normal(next(rngs), (1, 3), jnp.float64)
        mask = None if lengths is None else mask_of_lengths(lengths, key_length)
        query_mask = mask_of_lengths([2, 9], 11) if cross and lengths else None
        real = mask if query_mask is None else query_mask

        @jax.jit
        def attention(query, key, value, kernel):
            options = {"num_landmarks": 4, "num_own_landmarks": 2 if cross else 0}
            options |= {"mask": mask, "query_mask": query_mask, "conv_kernel": kernel}
            output = nystrom_attention(query, key, value, **options)
            return output if real is None else jnp.where(real[..., None, None], output, 0)

        # The convolution supports reverse mode only.
        modes = ["rev"] if kernel is not None else ["fwd", "rev"]
        check_grads(attention, (*inputs, kernel), order=1, modes=modes, atol=1e-6, rtol=1e-5)


def test_jit_and_vmap_change_nothing(rngs):
    inputs = random_inputs(rngs, 3, 35, HEADS, DIM)
    mask = mask_of_lengths([35, 20, 5], 35)
    attend = lambda *x: nystrom_attention(*x[:3], mask=x[3], num_landmarks=M)
    expected = attend(*inputs, mask)
    assert_close(jax.jit(attend)(*inputs, mask), expected, REFERENCE)
    one_by_one = jax.vmap(lambda *x: attend(*(y[None] for y in x))[0])(*inputs, mask)
    assert_close(one_by_one, expected, REFERENCE)


class TestNormalizedRows:
    """`normalize_rows` makes each row of the map sum to one."""

    @pytest.mark.parametrize("num_landmarks", [M, 68])  # 68: softmax attention
    def test_a_constant_value_is_preserved_before_the_convolution(self, rngs, num_landmarks):
        query, key, _ = random_inputs(rngs, 3, 67, HEADS, DIM)
        mask = mask_of_lengths([67, 40, 5], 67)
        value = jnp.broadcast_to(jnp.arange(1.0, 6.0)[None, None, None], query.shape)
        kernel = normal(next(rngs), (HEADS, DIM, 5))
        options = {"num_landmarks": num_landmarks, "mask": mask}
        actual = jit_nystrom(query, key, value, normalize_rows=True, conv_kernel=kernel, **options)
        convolved = depthwise_convolution(jnp.where(mask[..., None, None], value, 0), kernel)
        assert_close(actual, value + convolved, REFERENCE, where=mask)
        plain = jit_nystrom(query, key, value, **options)
        differs = float(jnp.abs(plain - value)[:2, :40].max()) > 1e-3
        assert differs == (num_landmarks == M)  # without normalization the sums of rows vary

    def test_sharp_attention_is_bounded(self, rngs):
        """After six iterations, sums of rows can be near zero or negative."""
        query, key, value = random_inputs(rngs, 2, 300, HEADS, 8)
        for scale in (16, 64, 256):
            sharp = scale**0.5 * query, scale**0.5 * key, value
            plain = jit_nystrom(*sharp, num_landmarks=32)
            normal = jit_nystrom(*sharp, num_landmarks=32, normalize_rows=True)
            assert float(jnp.abs(normal / plain).max()) < 2.001


def test_a_batch_split_over_devices_needs_no_collectives_and_no_conditional():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    tokens = jax.ShapeDtypeStruct((8, 61, 2, 5), jnp.float32, sharding=rows)
    mask = jax.ShapeDtypeStruct((8, 61), bool, sharding=rows)

    def total(query, key, value, mask):
        output = nystrom_attention(query, key, value, num_landmarks=7, mask=mask, query_mask=mask)
        return output.sum(axis=(1, 2, 3))

    gradient = jax.jit(
        lambda *x: jax.vjp(lambda *y: total(*y, x[3]), *x[:3])[1](jnp.ones(8)), out_shardings=rows
    )
    compiled = gradient.lower(tokens, tokens, tokens, mask).compile().as_text()
    assert not find_collectives(compiled)
    # It would run both branches under `vmap`, and stop a GPU's queue.
    assert " conditional(" not in compiled
