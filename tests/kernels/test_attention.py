"""The kernels in interpret mode against plain jnp: values, all gradients, and the effect of padding."""

import functools

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax import nystrom_attention
from nystromformer_jax.kernels import choice, collect, distribute, segments
from tests.helpers import (
    GRADIENT,
    HALF,
    HALF_GRADIENT,
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    mask_of_lengths,
    normal,
    pallas_calls,
    random_inputs,
)

# Length, heads, their dimension, landmarks, width of the convolution, and whether there is a mask.
SHAPES = [
    (300, 4, 32, 16, 35, True),  # a last block that reaches over the end
    (300, 2, 32, 32, 0, False),  # half of the lanes
    (20, 2, 64, 16, 5, True),  # a block is longer than all of it
]
MORE_SHAPES = [
    (173, 1, 128, 48, 129, True),
    (389, 2, 64, 128, 65, True),
    (389, 2, 64, 128, 65, False),
    (173, 1, 128, 48, 129, False),
    (300, 4, 32, 16, 35, False),
]


@pytest.fixture
def short_blocks(monkeypatch):
    """Blocks so short that sums, halos and the end of the sequence are in different blocks."""
    for module in (collect, distribute):
        for name in ("FORWARD_BLOCK", "BACKWARD_BLOCK"):
            monkeypatch.setattr(module, name, 128)
    monkeypatch.setattr(segments, "BLOCK", 128)
    jax.clear_caches()
    yield
    jax.clear_caches()


def masks_of_all_kinds(rngs, batch, length, num_landmarks):
    """Masks with holes, with fewer real tokens than landmarks, with none, and with padding at the end."""
    holes = jax.random.bernoulli(next(rngs), 0.7, (length,))
    few = (jnp.arange(length) >= 11) & (jnp.arange(length) < 9 + num_landmarks)
    none = jnp.zeros(length, bool)
    short = mask_of_lengths([length - 37], length)[0]
    return jnp.stack([holes, few, none, short])[:batch]


def output_and_gradients(inputs, kernel, cotangent, **options):
    """Returns output and gradients of the kernels, and of plain jnp in float32."""

    def run(implementation, *arguments):
        def attend(query, key, value, kernel):
            return nystrom_attention(
                query, key, value, conv_kernel=kernel, implementation=implementation, **options
            )

        output, pull_back = jax.vjp(attend, *arguments)
        return output, pull_back(cotangent.astype(output.dtype))

    float32 = [None if x is None else x.astype(jnp.float32) for x in (*inputs, kernel)]
    kernels, plain = (jax.jit(functools.partial(run, name)) for name in ("pallas_tpu", "xla"))
    return kernels(*inputs, kernel), plain(*float32)


@pytest.mark.slow_except("shape0")
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_plain_jnp(rngs, short_blocks, shape):
    assert_same(rngs, shape)


@pytest.mark.slow(minutes=0.1)
def test_equals_plain_jnp_with_the_ridge_inverse(rngs, short_blocks):
    assert_same(rngs, SHAPES[0], pinv="ridge")


@pytest.mark.slow(minutes=0.5)
@pytest.mark.parametrize("shape", MORE_SHAPES)
def test_equals_plain_jnp_at_other_shapes(rngs, short_blocks, shape):
    assert_same(rngs, shape)


# The benchmarks' shapes and block lengths, except for the batch and the number of heads.
@pytest.mark.slow(minutes=0.3)
@pytest.mark.parametrize(
    ("length", "masked"),
    [
        (512, False),
        pytest.param(512, True, marks=pytest.mark.slow(minutes=0.2)),
        pytest.param(4096, True, marks=pytest.mark.slow(minutes=0.2)),
        pytest.param(16_384, False, marks=pytest.mark.slow(minutes=0.3)),
        pytest.param(16_384, True, marks=pytest.mark.slow(minutes=0.3)),
    ],
)
def test_equals_plain_jnp_at_long_lengths(rngs, length, masked):
    assert_same(rngs, (length, 2, 64, 64, 33, masked))


def assert_same(rngs, shape, **options):
    length, heads, dim, num_landmarks, width, masked = shape
    inputs = random_inputs(rngs, 4, length, heads, dim)
    mask = masks_of_all_kinds(rngs, 4, length, num_landmarks) if masked else None
    kernel = normal(next(rngs), (heads, width)) if width else None
    cotangent = normal(next(rngs), inputs[0].shape)
    real = jnp.ones((4, length), bool) if mask is None else mask
    cotangent = jnp.where(real[..., None, None], cotangent, 0)
    actual, expected = output_and_gradients(
        inputs, kernel, cotangent, num_landmarks=num_landmarks, mask=mask, **options
    )
    assert_close(actual[0], expected[0], REFERENCE, where=real)
    assert_close(actual[1], expected[1], REFERENCE)


@pytest.mark.parametrize("masked", [True, False])
def test_kernels_and_gradients_can_be_traced_with_x64(masked):
    """Index arithmetic of the kernels is in int32, also if Python integers are int64."""
    length, heads, dim, num_landmarks, width, _ = SHAPES[0]

    def attend(query, key, value, kernel, mask):
        options = {"num_landmarks": num_landmarks, "mask": mask if masked else None}
        return nystrom_attention(
            query, key, value, conv_kernel=kernel, implementation="pallas_tpu", **options
        ).sum()

    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((2, length, heads, dim), jnp.float32)
        kernel = jax.ShapeDtypeStruct((heads, width), jnp.float32)
        mask = jax.ShapeDtypeStruct((2, length), bool)
        program = jax.make_jaxpr(jax.grad(attend, (0, 1, 2, 3)))(x, x, x, kernel, mask)
    assert [g.dtype for g in program.out_avals] == 4 * [jnp.float32]
    calls = pallas_calls(program.jaxpr)
    assert len(calls) == 7
    assert all(x.aval.dtype.itemsize <= 4 for eqn in calls for x in (*eqn.invars, *eqn.outvars))


@pytest.mark.slow(minutes=0.4)
@pytest.mark.filterwarnings("error")
def test_convolution_per_channel_is_added_outside_the_kernels(rngs, short_blocks):
    choice._warn_once.cache_clear()
    inputs = random_inputs(rngs, 4, 300, 2, 32)
    mask = masks_of_all_kinds(rngs, 4, 300, 16)
    kernel = normal(next(rngs), (2, 32, 5))
    cotangent = jnp.where(mask[..., None, None], inputs[0] + 1, 0)
    masked_inputs = [jnp.where(mask[..., None, None], x, 7.0) for x in inputs]
    actual, expected = output_and_gradients(
        masked_inputs, kernel, cotangent, num_landmarks=16, mask=mask
    )
    assert_close(actual[0], expected[0], REFERENCE, where=mask)
    assert_close(actual[1], expected[1], REFERENCE)


@pytest.mark.slow(minutes=0.4)
@pytest.mark.parametrize("masked", [True, pytest.param(False, marks=pytest.mark.slow(minutes=0.2))])
def test_bfloat16_is_near_float32(rngs, masked):
    inputs = random_inputs(rngs, 4, 512, 2, 64, dtype=jnp.bfloat16)
    mask = masks_of_all_kinds(rngs, 4, 512, 64) if masked else None
    real = jnp.ones((4, 512), bool) if mask is None else mask
    kernel = normal(next(rngs), (2, 33))
    cotangent = normal(next(rngs), inputs[0].shape, jnp.bfloat16)
    cotangent = jnp.where(real[..., None, None], cotangent, 0)
    actual, expected = output_and_gradients(inputs, kernel, cotangent, num_landmarks=64, mask=mask)
    assert [x.dtype for x in (actual[0], *actual[1])] == 4 * [jnp.bfloat16] + [jnp.float32]
    assert_close(actual[0], expected[0], HALF, where=real)
    assert_close(actual[1], expected[1], HALF_GRADIENT)


@pytest.mark.slow(minutes=0.4)
@pytest.mark.parametrize("width", [5, pytest.param(0, marks=pytest.mark.slow(minutes=0.2))])
def test_queries_may_have_another_mask(rngs, short_blocks, width):
    inputs = random_inputs(rngs, 4, 300, 2, 64)
    mask = masks_of_all_kinds(rngs, 4, 300, 16)
    query_mask = mask[jnp.array([1, 3, 0, 2])]
    kernel = normal(next(rngs), (2, width)) if width else None
    cotangent = jnp.where(query_mask[..., None, None], inputs[0] + 1, 0)
    actual, expected = output_and_gradients(
        inputs, kernel, cotangent, num_landmarks=16, mask=mask, query_mask=query_mask
    )
    assert_close(actual[0], expected[0], REFERENCE, where=query_mask)
    assert_close(actual[1], expected[1], REFERENCE)


@pytest.mark.slow(minutes=0.2)
def test_keys_may_be_longer_than_queries(rngs, short_blocks):
    inputs = random_inputs(rngs, 4, 200, 2, 64, key_length=300)
    mask = masks_of_all_kinds(rngs, 4, 300, 16)
    query_mask = masks_of_all_kinds(rngs, 4, 200, 16)[jnp.array([3, 0, 2, 1])]
    cotangent = jnp.where(query_mask[..., None, None], inputs[0] + 1, 0)
    actual, expected = output_and_gradients(
        inputs, None, cotangent, num_landmarks=16, mask=mask, query_mask=query_mask
    )
    assert_close(actual[0], expected[0], REFERENCE, where=query_mask)
    assert_close(actual[1], expected[1], REFERENCE)


@pytest.mark.slow(minutes=0.2)
def test_output_and_gradients_ignore_the_content_of_padding(rngs, short_blocks):
    inputs = random_inputs(rngs, 4, 300, 2, 64)
    mask = masks_of_all_kinds(rngs, 4, 300, 16)
    real = mask[..., None, None]
    kernel = normal(next(rngs), (2, 33))

    @functools.partial(jax.grad, argnums=(0, 1, 2, 3), has_aux=True)
    def gradients_and_output(query, key, value, kernel):
        output = nystrom_attention(
            query,
            key,
            value,
            num_landmarks=16,
            mask=mask,
            conv_kernel=kernel,
            implementation="pallas_tpu",
        )
        return jnp.where(real, output * 3, 0).sum(), output

    def holding(filler):
        return gradients_and_output(*(jnp.where(real, x, filler) for x in inputs), kernel)

    gradients, output = holding(jnp.nan)
    expected_gradients, expected = holding(0.0)
    assert jnp.isfinite(output).all()
    assert (output == expected).all()
    assert_close(gradients, expected_gradients, REFERENCE)
    for gradient in gradients[:3]:
        assert (jnp.where(real, 0, gradient) == 0).all()


def test_bfloat16_kernels_ignore_the_default_matmul_precision():
    tokens = jax.ShapeDtypeStruct((1, 140, 2, 64), jnp.bfloat16)
    attend = functools.partial(nystrom_attention, num_landmarks=16, implementation="pallas_tpu")
    with jax.default_matmul_precision("highest"):
        program = jax.make_jaxpr(attend)(tokens, tokens, tokens)

    def precisions(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield equation.params["precision"]
            for branch in equation.params.get("branches", ()):
                yield from precisions(branch.jaxpr)

    kernels = [equation.params["jaxpr"] for equation in pallas_calls(program.jaxpr)]
    found = {precision for kernel in kernels for precision in precisions(kernel)}
    assert len(kernels) == 4
    assert found == {(jax.lax.Precision.DEFAULT, jax.lax.Precision.DEFAULT)}


def test_an_example_is_independent_of_its_batch(rngs):
    inputs = random_inputs(rngs, 3, 300, 2, 64)
    mask = masks_of_all_kinds(rngs, 3, 300, 16)
    attend = jax.jit(
        functools.partial(nystrom_attention, num_landmarks=16, implementation="pallas_tpu")
    )
    together = attend(*inputs, mask=mask)
    for row in (slice(0, 1), slice(1, 2), slice(2, 3)):
        alone = attend(*(x[row] for x in inputs), mask=mask[row])
        assert_close(together[row], alone, SAME_ARITHMETIC)


@pytest.mark.slow(minutes=0.2)
def test_gradients_agree_with_finite_differences(rngs):
    inputs = random_inputs(rngs, 1, 200, 2, 32)
    direction = random_inputs(rngs, 1, 200, 2, 32)

    def loss(*inputs):
        output = nystrom_attention(*inputs, num_landmarks=16, implementation="pallas_tpu")
        return jnp.sin(output).sum()

    gradients = jax.grad(loss, argnums=(0, 1, 2))(*inputs)
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    step = 3e-3
    ahead, behind = (
        loss(*(x + sign * step * d for x, d in zip(inputs, direction, strict=True)))
        for sign in (1, -1)
    )
    assert_close((ahead - behind) / (2 * step), slope, GRADIENT)
