"""The TPU kernels in interpret mode."""

import functools

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax import nystrom_attention
from tests.attention.contract import assert_equals_plain_jnp, cases_of
from tests.helpers import (
    REFERENCE,
    assert_close,
    masks_of_all_kinds,
    normal,
    output_and_gradients,
    pallas_calls,
    random_inputs,
)

# Length, heads, their dimension, landmarks, width of the convolution, and whether there is a mask.
SHAPES = [
    (300, 4, 32, 16, 35, False),  # a last block that reaches over the end
    (300, 2, 32, 32, 0, False),  # half of the lanes
    (20, 2, 64, 16, 5, True),  # a block is longer than all of it
    (173, 1, 128, 48, 129, True),
    (389, 2, 64, 128, 65, True),
    (389, 2, 64, 128, 65, False),
]
# The benchmarks' shapes and block lengths, except for the batch and the number of heads.
LONG = [(512, False), (512, True), (4096, True), (16_384, False), (16_384, True)]


@cases_of("pallas_tpu", "own landmarks")
def test_equals_plain_jnp_with_every_option(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "pallas_tpu", case)


@cases_of("pallas_tpu, devices", "convolution per channel")
def test_several_devices_equal_one(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "pallas_tpu, devices", case)


@pytest.mark.slow(minutes=0.5)
@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        *((shape, "short_blocks") for shape in SHAPES),
        *(((length, 2, 64, 64, 33, masked), "rngs") for length, masked in LONG),
    ],
    ids=str,
)
def test_equals_plain_jnp_at_other_shapes(rngs, request, shape, blocks):
    request.getfixturevalue(blocks)
    length, heads, dim, num_landmarks, width, masked = shape
    inputs = random_inputs(rngs, 4, length, heads, dim)
    mask = masks_of_all_kinds(length, num_landmarks, 4) if masked else None
    kernel = normal(next(rngs), (heads, width)) if width else None
    cotangent = normal(next(rngs), inputs[0].shape)
    if masked:
        cotangent = jnp.where(mask[..., None, None], cotangent, 0)
    actual, expected = (
        output_and_gradients(
            functools.partial(nystrom_attention, implementation=implementation),
            inputs,
            kernel,
            cotangent,
            num_landmarks=num_landmarks,
            mask=mask,
        )
        for implementation in ("pallas_tpu", "xla")
    )
    assert_close(actual[0], expected[0], REFERENCE, where=mask)
    assert_close(actual[1], expected[1], REFERENCE)


def test_kernels_and_gradients_can_be_traced_with_x64():
    """Index arithmetic of the kernels is in int32, also if Python integers are int64."""
    length, heads, dim, num_landmarks, width, _ = SHAPES[0]

    def attend(query, key, value, kernel, mask):
        options = {"num_landmarks": num_landmarks, "mask": mask}
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
