"""Properties of the attention functions, forward and gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from nystromformer_jax.attention.convolution import depthwise_convolution
from nystromformer_jax.attention.factors import nystrom_factors
from nystromformer_jax.attention.functions import nystrom_attention, softmax_attention
from nystromformer_jax.attention.sequence_parallel import sharded_nystrom_attention
from nystromformer_jax.attention.stages import landmark_kernel
from nystromformer_jax.training import MeshConfig, make_mesh
from nystromformer_jax.training.collectives import find_collectives
from tests.helpers import (
    HALF,
    HALF_GRADIENT,
    REFERENCE,
    SAME_ARITHMETIC,
    Tolerance,
    assert_close,
    mask_of_lengths,
    normal,
    nystrom_by_the_paper,
    random_inputs,
    softmax_by_the_paper,
)

M, HEADS, DIM = 7, 2, 5
EXACT = Tolerance(2e-6)
# Compiled at once: without jit each operation is a program of its own.
OPTIONS = ("num_landmarks", "pinv", "pinv_iters", "landmark_layout", "normalize_rows")
jit_nystrom = jax.jit(nystrom_attention, static_argnames=OPTIONS)
jit_softmax = jax.jit(softmax_attention)


def value_and_gradients(attention, query, key, value, weights):
    """The output, and the gradients of a weighted sum of it, as one compiled function."""

    def total(query, key, value):
        output = attention(query, key, value)
        return (output * weights).sum(), output

    (_, output), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(
        query, key, value
    )
    return output, gradients


def place(x, positions, length, filler):
    """Puts the tokens of `x` at `positions` of a longer sequence that holds `filler` elsewhere."""
    return jnp.full((x.shape[0], length, *x.shape[2:]), filler, x.dtype).at[:, positions].set(x)


class TestSoftmax:
    def test_equals_equation_3_of_the_paper(self, rngs):
        query, key, value = random_inputs(rngs, 1, 11, HEADS, DIM, key_length=17)
        expected = softmax_by_the_paper(query[0], key[0], value[0])
        assert_close(softmax_attention(query, key, value)[0], expected, REFERENCE)

    @pytest.mark.parametrize("names", [["mask"], ["mask", "query_mask"]])
    def test_gradients_ignore_padded_queries(self, rngs, names):
        query, key, value = random_inputs(rngs, 2, 11, HEADS, DIM)
        mask = mask_of_lengths([11, 7], 11)
        attention = functools.partial(softmax_attention, **dict.fromkeys(names, mask))
        weights = normal(next(rngs), query.shape) * mask[..., None, None]
        expected = value_and_gradients(attention, query, key, value, weights)
        padded = [jnp.where(mask[..., None, None], x, jnp.nan) for x in (query, key, value)]
        actual = value_and_gradients(attention, *padded, weights)
        assert jnp.isfinite(actual[0]).all()
        assert_close(actual[0], expected[0], SAME_ARITHMETIC, where=mask)
        assert_close(actual[1], expected[1], SAME_ARITHMETIC)

    def test_agrees_with_jax_under_any_mask(self, rngs):
        query, key, value = random_inputs(rngs, 3, 11, HEADS, DIM, key_length=17)
        mask = jax.random.bernoulli(next(rngs), 0.5, (3, 17)).at[:, 0].set(True)
        expected = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None, None, :])
        assert_close(softmax_attention(query, key, value, mask=mask), expected, REFERENCE)


def test_every_length_from_1_to_130_equals_the_formula_of_the_paper(rngs):
    lengths = np.arange(1, 131)
    inputs = random_inputs(rngs, 130, 130, HEADS, DIM)
    mask = mask_of_lengths(lengths, 130)
    output = jax.jit(functools.partial(nystrom_attention, num_landmarks=M, mask=mask))(*inputs)
    output, inputs = jax.device_get((output, inputs))  # slices of jax arrays are programs
    for b, length in enumerate(lengths):
        expected = nystrom_by_the_paper(*(x[b, :length] for x in inputs), M)
        assert_close(output[b, :length], expected, REFERENCE)


@pytest.mark.slow_except("13")
@pytest.mark.parametrize("length", [1, 2, 6, 7, 8, 13, 64, 129, 130, 1000])
def test_one_length_equals_the_formula_of_the_paper_forward_and_gradient(rngs, length):
    inputs = random_inputs(rngs, 1, length, HEADS, DIM)
    weights = normal(next(rngs), inputs[0].shape)
    alone = functools.partial(nystrom_attention, num_landmarks=M)
    output, gradients = value_and_gradients(alone, *inputs, weights)
    assert_close(output[0], nystrom_by_the_paper(*(x[0] for x in inputs), M), REFERENCE)
    # The same with a mask, in a batch with longer and shorter examples.
    total = length + 37
    mask = mask_of_lengths([length, total, 3], total)
    mates = random_inputs(rngs, 2, total, HEADS, DIM)
    padded = [
        jnp.concatenate([place(x, jnp.arange(length), total, 9.0), mate])
        for x, mate in zip(inputs, mates, strict=True)
    ]
    in_batch = functools.partial(nystrom_attention, num_landmarks=M, mask=mask)
    weights = jnp.zeros_like(padded[0]).at[0, :length].set(weights[0])
    batch_output, batch_gradients = value_and_gradients(in_batch, *padded, weights)
    assert_close(batch_output[:1, :length], output, REFERENCE)
    assert_close([g[:1, :length] for g in batch_gradients], list(gradients), REFERENCE)
    assert all((g[1:] == 0).all() and (g[0, length:] == 0).all() for g in batch_gradients)


@pytest.mark.slow_except("9-nan")
@pytest.mark.parametrize("filler", [0.0, 1e30, jnp.nan, -jnp.inf])
@pytest.mark.parametrize("width", [0, 9])
def test_padding_at_the_ends_changes_nothing(rngs, width, filler):
    length, before, total = 53, 11, 97
    inputs = random_inputs(rngs, 2, length, HEADS, DIM)
    mask = jax.random.bernoulli(next(rngs), 0.8, (2, length))
    weights = normal(next(rngs), inputs[0].shape) * mask[..., None, None]
    kernel = normal(next(rngs), (HEADS, width)) if width else None
    positions = before + jnp.arange(length)
    attention = functools.partial(nystrom_attention, num_landmarks=M, conv_kernel=kernel)
    expected, expected_gradients = value_and_gradients(
        functools.partial(attention, mask=mask), *inputs, weights
    )
    padded_mask = jnp.zeros((2, total), bool).at[:, positions].set(mask)
    actual, gradients = value_and_gradients(
        functools.partial(attention, mask=padded_mask),
        *(place(x, positions, total, filler) for x in inputs),
        place(weights, positions, total, 0.0),
    )
    assert_close(actual[:, positions], expected, REFERENCE, where=mask)
    assert jnp.isfinite(actual).all()
    assert_close([g[:, positions] for g in gradients], list(expected_gradients), REFERENCE)


def test_padding_between_tokens_changes_nothing_without_the_convolution(rngs):
    length, total = 41, 89
    inputs = random_inputs(rngs, 2, length, HEADS, DIM)
    weights = normal(next(rngs), inputs[0].shape)
    positions = jnp.sort(jax.random.permutation(next(rngs), total)[:length])
    mask = jnp.zeros((2, total), bool).at[:, positions].set(True)
    attention = functools.partial(nystrom_attention, num_landmarks=M)
    expected, expected_gradients = value_and_gradients(attention, *inputs, weights)
    actual, gradients = value_and_gradients(
        functools.partial(attention, mask=mask),
        *(place(x, positions, total, jnp.nan) for x in inputs),
        place(weights, positions, total, 0.0),
    )
    assert_close(actual[:, positions], expected, REFERENCE)
    assert_close([g[:, positions] for g in gradients], list(expected_gradients), REFERENCE)


@pytest.mark.slow(minutes=0.1)
def test_a_batch_of_five_equals_five_batches_of_one(rngs):
    inputs = random_inputs(rngs, 5, 61, HEADS, DIM)
    mask = jax.random.bernoulli(next(rngs), 0.7, (5, 61)).at[2, 5:].set(False)
    kernel = normal(next(rngs), (HEADS, 5))
    weights = normal(next(rngs), inputs[0].shape) * mask[..., None, None]
    attention = functools.partial(nystrom_attention, num_landmarks=M, conv_kernel=kernel)

    def run(mask, *inputs_and_weights):
        return value_and_gradients(functools.partial(attention, mask=mask), *inputs_and_weights)

    together = run(mask, *inputs, weights)
    for b in range(5):
        alone = run(mask[b : b + 1], *(x[b : b + 1] for x in (*inputs, weights)))
        assert_close(together[0][b : b + 1], alone[0], SAME_ARITHMETIC, where=mask[b : b + 1])
        assert_close([g[b : b + 1] for g in together[1]], list(alone[1]), REFERENCE)


@pytest.mark.slow_except("7-50", "50-4")
@pytest.mark.parametrize(
    ("queries", "keys"),
    [(1, 50), (3, 50), (7, 50), (50, 1), (50, 4), (50, 7), (2, 3), (7, 7), (50, 0)],
)
def test_few_real_keys_or_queries_get_softmax_attention(rngs, queries, keys):
    """In a padded batch with a long example; alone, with and without a mask."""
    query, key, value = random_inputs(rngs, 2, 50, HEADS, DIM, key_length=59)
    query_mask = mask_of_lengths([queries, 47], 50)
    mask = mask_of_lengths([keys, 53], 59)
    weights = normal(next(rngs), query.shape).at[1].set(0)
    weights = weights * query_mask[..., None, None]

    def approximate(query, key, value):
        return nystrom_attention(
            query, key, value, num_landmarks=M, mask=mask, query_mask=query_mask
        )

    def exact(query, key, value):
        return softmax_attention(query, key, value, mask=mask)

    actual, gradients = value_and_gradients(approximate, query, key, value, weights)
    expected, expected_gradients = value_and_gradients(exact, query, key, value, weights)
    assert_close(actual[:1], expected[:1], EXACT, where=query_mask[:1])
    assert_close(gradients, expected_gradients, REFERENCE)
    if queries and keys:
        alone = jit_nystrom(query[:1, :queries], key[:1, :keys], value[:1, :keys], num_landmarks=M)
        assert_close(alone, expected[:1, :queries], EXACT)


def test_more_real_keys_than_real_queries_approximate_softmax_attention(rngs):
    """Landmarks without tokens have zero rows and columns; with unit rows the error would be a half."""
    keys = jnp.repeat(normal(next(rngs), (1, 10, 1, DIM)), 20, axis=1)
    value = jnp.repeat(normal(next(rngs), (1, 10, 1, DIM)), 20, axis=1)
    query = normal(next(rngs), (1, 200, 1, DIM))
    query_mask = mask_of_lengths([17], 200)
    output = jit_nystrom(query, keys, value, num_landmarks=16, query_mask=query_mask, pinv_iters=12)
    expected = jit_softmax(query, keys, value)
    assert float(jnp.abs(output - expected)[:, :17].max()) < 0.3


def test_output_and_gradient_without_real_tokens_are_finite(rngs):
    inputs = random_inputs(rngs, 2, 31, HEADS, DIM)
    mask = mask_of_lengths([0, 31], 31)
    kernel = normal(next(rngs), (HEADS, 5))
    for attention in (
        functools.partial(nystrom_attention, num_landmarks=M, mask=mask, conv_kernel=kernel),
        functools.partial(softmax_attention, mask=mask),
    ):
        output, gradients = value_and_gradients(attention, *inputs, jnp.ones_like(inputs[0]))
        assert jnp.isfinite(output).all()
        assert all(jnp.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.slow_except("False-ragged")
@pytest.mark.parametrize("mask_kind", ["none", "ragged", "short"])
@pytest.mark.parametrize("cross", [False, True])
def test_gradients_equal_finite_differences_in_float64(rngs, mask_kind, cross):
    with jax.enable_x64(True):
        key_length = 13 if cross else 11
        inputs = random_inputs(rngs, 2, 11, 1, 3, key_length=key_length, dtype=jnp.float64)
        kernel = None if cross else normal(next(rngs), (1, 3), jnp.float64)
        masks = {}
        if mask_kind != "none":
            real = {"ragged": [8, 11], "short": [3, 10]}[mask_kind]
            masks = {"mask": mask_of_lengths(real, key_length)}
            if cross:
                masks["query_mask"] = mask_of_lengths([2, 9], 11)

        @jax.jit
        def attention(query, key, value, kernel):
            output = nystrom_attention(
                query, key, value, num_landmarks=4, conv_kernel=kernel, **masks
            )
            kept = masks.get("query_mask", masks.get("mask"))
            return output if kept is None else jnp.where(kept[..., None, None], output, 0)

        # The convolution supports reverse mode only.
        modes = ["rev"] if kernel is not None else ["fwd", "rev"]
        check_grads(attention, (*inputs, kernel), order=1, modes=modes, atol=1e-6, rtol=1e-5)


@pytest.mark.slow_except("real")
@pytest.mark.parametrize("layout", ["real", "mlpen", "hf"])
def test_jit_and_vmap_change_nothing(rngs, layout):
    inputs = random_inputs(rngs, 3, 35, HEADS, DIM)
    mask = mask_of_lengths([35, 20, 5], 35)

    def attention(query, key, value, mask):
        return nystrom_attention(
            query, key, value, num_landmarks=M, mask=mask, landmark_layout=layout
        )

    expected = attention(*inputs, mask)
    assert_close(jax.jit(attention)(*inputs, mask), expected, REFERENCE)
    one_by_one = jax.vmap(lambda *x: attention(*(y[None] for y in x))[0])(*inputs, mask)
    assert_close(one_by_one, expected, REFERENCE)


def test_rows_and_columns_of_dead_landmarks_are_zero(rngs):
    q_landmarks, k_landmarks, _ = random_inputs(rngs, 2, 5, HEADS, DIM)
    q_landmark_mask = jnp.array([[True, False, True, True, True], [True] * 5])
    k_landmark_mask = jnp.array([[True, True, True, False, True], [True] * 5])
    kernel = landmark_kernel(q_landmarks, k_landmarks, q_landmark_mask, k_landmark_mask)
    assert (kernel[0, :, 1] == 0).all()
    assert (kernel[0, :, :, 3] == 0).all()
    sums = kernel.sum(axis=-1)
    expected = jnp.broadcast_to(q_landmark_mask[:, None].astype(jnp.float32), sums.shape)
    assert_close(sums, expected, SAME_ARITHMETIC)


def test_accepts_numpy_arrays(rngs, no_annotations):
    inputs = random_inputs(rngs, 1, 23, HEADS, DIM)
    as_numpy = [np.asarray(x, np.float64) for x in inputs]  # float32 without x64, and no warning
    output = nystrom_attention(*as_numpy, num_landmarks=M)
    assert_close(output, nystrom_attention(*inputs, num_landmarks=M), SAME_ARITHMETIC)


def test_error_falls_with_more_landmarks(rngs):
    query, key, value = random_inputs(rngs, 2, 128, HEADS, 16)
    smooth = lambda x: x.cumsum(axis=1) / jnp.arange(1, 129)[None, :, None, None] ** 0.5
    query, key = smooth(query), smooth(key)
    exact = jit_softmax(query, key, value)
    errors = [
        float(jnp.square(jit_nystrom(query, key, value, num_landmarks=m) - exact).mean())
        for m in (2, 8, 32, 128)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": jnp.ones((2, 5, 3))}, "same leading axes"),
        ({"query": jnp.ones((2, 0, 3, 4))}, "non-empty"),
        ({"key": jnp.ones((2, 6, 3, 4))}, "key and value must have the same shape"),
        ({"query": jnp.ones((2, 5, 3, 7))}, "may differ in length"),
        ({"query": jnp.ones((2, 5, 4, 4))}, "must be a multiple"),
        ({"mask": jnp.ones((2, 1, 5, 5), bool)}, "causal or block"),
        ({"mask": jnp.ones((2, 6), bool)}, r"shape \(2, 5\) .* got shape \(2, 6\)"),
        ({"mask": jnp.ones((2, 5), jnp.int32)}, "Pass mask != 0"),
        ({"query": jnp.ones((2, 6, 3, 4)), "mask": jnp.ones((2, 5), bool)}, "pass query_mask"),
        ({"num_landmarks": 0}, "an integer of at least 1"),
        ({"landmark_layout": "mlpn"}, "'mlpen'"),
        ({"landmark_layout": "mlpen", "num_landmarks": 3}, "multiple of M = 3"),
        ({"conv_kernel": jnp.ones((3, 4))}, "W odd"),
        ({"query": jnp.ones((2, 6, 3, 4)), "conv_kernel": jnp.ones((3, 3))}, "equal lengths"),
        ({"implementation": "cuda"}, "'auto', 'xla'"),
        ({"pinv_start": "original"}, "'exact', 'batch_max'"),
        ({"pinv_iters": -1}, "pinv_iters"),
        ({"num_landmarks": 16.0}, "must be an integer"),
        ({name: jnp.ones((2, 5, 3, 4), jnp.int32) for name in ("query", "key", "value")}, "int32"),
        (
            {"key": jnp.ones((2, 5, 3, 4), jnp.float8_e4m3fn)},
            "^key must have dtype float32, bfloat16, float16 or float64, got float8_e4m3fn: cast it"
            " before the call, for example key.astype",
        ),
    ],
)
def test_errors_state_what_was_needed_and_what_came(changes, words, no_annotations):
    arguments = {name: jnp.ones((2, 5, 3, 4)) for name in ("query", "key", "value")} | changes
    with pytest.raises(ValueError, match=words):
        nystrom_attention(**arguments)


class TestNormalizedRows:
    """`normalize_rows` makes each row of the map sum to one."""

    @pytest.mark.slow_except("True")
    @pytest.mark.parametrize("masked", [False, True])
    def test_a_constant_value_is_preserved(self, rngs, masked):
        query, key, _ = random_inputs(rngs, 3, 67, HEADS, DIM)
        mask = mask_of_lengths([67, 40, 5], 67)
        value = jnp.broadcast_to(jnp.arange(1.0, 6.0)[None, None, None], query.shape)
        options = {"num_landmarks": M, "mask": mask if masked else None}
        normal = jit_nystrom(query, key, value, normalize_rows=True, **options)
        assert_close(normal, value, REFERENCE, where=mask)
        plain = jit_nystrom(query, key, value, **options)
        assert float(jnp.abs(plain - value)[:2, :40].max()) > 1e-3  # without it the rows differ

    def test_sharp_attention_is_bounded(self, rngs):
        """After six iterations, sums of rows can be near zero or negative."""
        query, key, value = random_inputs(rngs, 2, 300, HEADS, 8)
        for scale in (16, 64, 256):
            sharp = scale**0.5 * query, scale**0.5 * key, value
            plain = jit_nystrom(*sharp, num_landmarks=32)
            normal = jit_nystrom(*sharp, num_landmarks=32, normalize_rows=True)
            assert float(jnp.abs(normal / plain).max()) < 2.001

    def test_divides_by_the_row_sums(self, rngs):
        query, key, value = random_inputs(rngs, 2, 50, HEADS, DIM, key_length=59)
        options = {
            "num_landmarks": M,
            "mask": mask_of_lengths([40, 4], 59),
            "query_mask": mask_of_lengths([5, 50], 50),
        }
        factors = nystrom_factors(query, key, **options)
        weights = factors.kernel_1 @ factors.inverse @ factors.kernel_3
        weights = weights / weights.sum(axis=-1, keepdims=True)
        expected = jnp.einsum("BHLT,BTHD->BLHD", weights, value)
        actual = jit_nystrom(query, key, value, normalize_rows=True, **options)
        assert_close(actual, expected, REFERENCE, where=options["query_mask"])

    @pytest.mark.slow_except("True")
    @pytest.mark.parametrize("sharded", [False, True])
    def test_output_without_real_tokens_is_zero_with_a_finite_gradient(self, rngs, sharded):
        inputs = random_inputs(rngs, 2, 50, HEADS, DIM)
        mask = mask_of_lengths([50, 0], 50)
        attention = functools.partial(
            nystrom_attention, num_landmarks=M, mask=mask, normalize_rows=True
        )
        if sharded:
            mesh = make_mesh(MeshConfig(sequence=8))
            attention = functools.partial(
                sharded_nystrom_attention, mesh=mesh, **attention.keywords
            )
        weights = jnp.ones_like(inputs[0])
        output, gradients = value_and_gradients(attention, *inputs, weights)
        assert (output[1] == 0).all()
        assert all(jnp.isfinite(gradient).all() for gradient in gradients)

    @pytest.mark.parametrize("groups", [(HEADS,), (HEADS, DIM)])
    @pytest.mark.parametrize("num_landmarks", [M, 53])  # 53: softmax attention
    def test_convolution_is_added_after_normalization(self, rngs, groups, num_landmarks):
        inputs = random_inputs(rngs, 2, 50, HEADS, DIM)
        kernel = normal(next(rngs), (*groups, 5))
        options = {"num_landmarks": num_landmarks, "normalize_rows": True}
        expected = jit_nystrom(*inputs, **options) + depthwise_convolution(inputs[2], kernel)
        actual = jit_nystrom(*inputs, conv_kernel=kernel, **options)
        assert_close(actual, expected, SAME_ARITHMETIC)


@pytest.mark.slow_except("iterative-16", "iterative-256", "ridge-16")
@pytest.mark.parametrize("num_landmarks", [1, 2, 16, 64, 128, 256])
@pytest.mark.parametrize("pinv", ["iterative", "ridge"])
def test_any_number_of_landmarks_equals_the_formula_of_the_paper(rngs, num_landmarks, pinv):
    inputs = random_inputs(rngs, 1, 301, 1, DIM)
    actual = jit_nystrom(*inputs, num_landmarks=num_landmarks, pinv=pinv)
    expected = nystrom_by_the_paper(*(x[0] for x in inputs), num_landmarks, pinv=pinv)
    # 256 landmarks of 301 are ill-conditioned
    assert_close(actual[0], expected, Tolerance(1e-4))


@pytest.mark.slow_except("bfloat16-9")
@pytest.mark.parametrize(
    ("dtype", "width"), [(jnp.bfloat16, 0), (jnp.bfloat16, 9), (jnp.float16, 9)]
)
def test_half_precision_is_near_float32_forward_and_gradient(rngs, dtype, width):
    inputs = random_inputs(rngs, 2, 301, HEADS, 16, dtype=dtype)
    mask = mask_of_lengths([301, 200], 301)
    kernel = normal(next(rngs), (HEADS, width)) if width else None
    weights = normal(next(rngs), inputs[0].shape) * mask[..., None, None]
    attention = functools.partial(
        nystrom_attention, num_landmarks=16, mask=mask, conv_kernel=kernel
    )
    half, half_gradients = value_and_gradients(attention, *inputs, weights.astype(dtype))
    full, full_gradients = value_and_gradients(
        attention, *(x.astype(jnp.float32) for x in inputs), weights
    )
    assert half.dtype == dtype
    assert {gradient.dtype for gradient in half_gradients} == {jnp.dtype(dtype)}
    assert_relative(half, full, HALF)
    for one, other in zip(half_gradients, full_gradients, strict=True):
        assert_relative(one, other, HALF_GRADIENT)


def assert_relative(actual, expected, tolerance):
    """Compares relative to the largest expected entry, however small."""
    scale = jnp.abs(expected).max()
    assert_close(actual.astype(jnp.float32) / scale, expected / scale, tolerance)


@pytest.mark.slow_except("False-True")
@pytest.mark.parametrize("query_mask", [False, True])
@pytest.mark.parametrize("normalize_rows", [False, True])
def test_no_program_has_a_conditional(query_mask, normalize_rows):
    """A conditional runs both branches under `vmap`, gathers a split batch and stops a GPU's queue."""
    tokens = jax.ShapeDtypeStruct((2, 61, 2, 5), jnp.float32)
    mask = jax.ShapeDtypeStruct((2, 61), bool)

    def total(query, key, value, mask):
        output = nystrom_attention(
            query,
            key,
            value,
            num_landmarks=7,
            mask=mask,
            query_mask=mask if query_mask else None,
            normalize_rows=normalize_rows,
        )
        return output.sum()

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    compiled = gradient.lower(tokens, tokens, tokens, mask).compile().as_text()
    assert " conditional(" not in compiled


def test_a_vmapped_mask_costs_as_much_as_a_batched_one():
    tokens = jax.ShapeDtypeStruct((3, 61, 2, 5), jnp.float32)
    mask = jax.ShapeDtypeStruct((3, 61), bool)
    attend = lambda *x: nystrom_attention(*x[:3], num_landmarks=7, mask=x[3])
    one = lambda *x: attend(*(array[None] for array in x))[0]
    flops = [
        jax.jit(function).lower(tokens, tokens, tokens, mask).compile().cost_analysis()["flops"]
        for function in (attend, jax.vmap(one))
    ]
    assert flops[1] <= 1.05 * flops[0]


def test_a_batch_split_over_devices_needs_no_collectives():
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
