"""Bounds of the memory of one attention on a TPU, with the figures of the compiler beside them."""

import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks import attention, budgets
from benchmarks.compiled import compile_ahead
from nystromformer_jax import SelfAttention, make_core, nystrom_attention
from nystromformer_jax.training.topology import topology_devices
from tests.helpers import pallas_calls

MIB = 2**20
QKV = 3 * attention.BATCH * attention.HEADS * attention.DIM * 2  # bytes per position


@pytest.mark.parametrize("length", [512, 131_072])
def test_residuals_of_the_gradient_do_not_grow_with_the_length(length):
    function, arguments, kept = budgets.program("kernels", "gradient", length)
    assert kept <= 3.1 * MIB
    passes = pallas_calls(jax.make_jaxpr(function)(*arguments).jaxpr)
    assert len(passes) == 4 + 3  # forward: sums twice, collect, distribute; backward: three


# Length, heads, their dimension, landmarks, width of the convolution, type.
SHAPES = [
    (2048, 2, 32, 64, 35, jnp.float32),  # the paper's ListOps
    (4000, 8, 64, 64, 65, jnp.bfloat16),
    (1000, 4, 128, 128, 129, jnp.bfloat16),
    (1024, 4, 32, 256, 257, jnp.bfloat16),
    (3000, 4, 32, 128, 33, jnp.float32),
    (20, 2, 64, 16, 5, jnp.float32),
]


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("shape", SHAPES)
def test_tpu_compiler_accepts_all_supported_shapes(shape):
    """Separate masks for queries and keys, forward and backward."""
    pytest.importorskip("libtpu")
    length, heads, dim, num_landmarks, width, dtype = shape
    tokens = jax.ShapeDtypeStruct((2, length, heads, dim), dtype)
    mask = jax.ShapeDtypeStruct((2, length), bool)
    kernel = jax.ShapeDtypeStruct((heads, width), jnp.float32)

    def gradient(query, key, value, kernel, mask, query_mask, cotangent):
        def attend(query, key, value, kernel):
            return nystrom_attention(
                query,
                key,
                value,
                num_landmarks=num_landmarks,
                mask=mask,
                query_mask=query_mask,
                conv_kernel=kernel,
                pinv_iters=1,  # not tested here, and slow to compile
            )

        output, pull_back = jax.vjp(attend, query, key, value, kernel)
        return output, pull_back(cotangent)

    for query_mask in (None, mask):
        arguments = (tokens, tokens, tokens, kernel, mask, query_mask, tokens)
        compiled = compile_ahead(gradient, arguments, topology_devices("v5e:1x1")[0])
        program = compiled.run.as_text()
        assert program.count("tpu_custom_call") >= 7
        assert " conditional(" not in program


@pytest.mark.slow(minutes=1)
def test_projections_copy_no_tokens():
    pytest.importorskip("libtpu")
    module = SelfAttention(8, make_core("nystrom"), dtype=jnp.bfloat16, deterministic=True)
    x = jax.ShapeDtypeStruct((8, 4096, 512), jnp.bfloat16)
    variables = jax.eval_shape(module.init, jax.random.key(0), x)
    total = lambda variables, x: module.apply(variables, x).astype(jnp.float32).sum()
    for function in (module.apply, jax.grad(total, argnums=(0, 1))):
        compiled = compile_ahead(function, (variables, x), topology_devices("v5e:1x1")[0])
        program = compiled.run.as_text()
        assert program.count("tpu_custom_call") >= 4
        assert not re.search(r"= bf16\[8,4096,512\]\S* copy\(", program)


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize(
    ("mode", "length", "most"),
    [
        *(("forward", length, 8 * MIB) for length in (512, 4096, 16_384)),  # 7.75, at 4,096
        # Two numbers for each number of a token.
        *(("gradient", length, 2 / 3 * QKV * length) for length in (4096, 16_384)),
    ],
)
def test_memory_of_the_forward_pass_is_constant_and_of_the_gradient_linear(mode, length, most):
    pytest.importorskip("libtpu")
    assert budgets.budget("v5e:1x1", mode, length, "kernels")["temp_bytes"] <= most
