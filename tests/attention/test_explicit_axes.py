"""Attention of arrays that are sharded over Explicit mesh axes, which are the default of `jax.make_mesh`."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nystromformer_jax import (
    make_core,
    nystrom_attention,
    sharded_nystrom_attention,
    softmax_attention,
)
from tests.attention.contract import assert_equals_plain_jnp, cases_of
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, normal

B, L, H, D, M = 4, 50, 4, 6, 7
MASK = mask_of_lengths([L, 33, 20, 5], L)
BATCH, HEADS = PartitionSpec("x"), PartitionSpec(None, None, "x")

CORES = {
    "nystrom": {"num_landmarks": M, "num_own_landmarks": 2},
    "softmax": {},
    "chunked": {"chunk_len": 16},
    "linear": {},
    "longformer": {"window": 9},
}


def place(mesh, spec, *arrays):
    return [None if x is None else jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]


@cases_of("batch, explicit axes")  # below, a smaller case is fast
def test_nystrom_attention_with_a_sharded_batch_equals_one_device(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "batch, explicit axes", case)


@pytest.mark.slow_except(
    "heads-replicated-nystrom",
    "batch-sharded-nystrom",
    "batch-sharded-chunked",
    "batch-none-longformer",
)
@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("masked", ["none", "replicated", "sharded"])
@pytest.mark.parametrize("spec", [BATCH, HEADS], ids=["batch", "heads"])
def test_sharded_batches_and_heads_equal_one_device(rngs, spec, masked, name):
    if name == "longformer" and spec == HEADS:
        pytest.skip("its global tokens are gathered from all heads at once")
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
    inputs = normal(next(rngs), (3, B, L, H, D))
    mask = None if masked == "none" else MASK
    core = make_core(name, **CORES[name])()

    def run(query, key, value, mask):
        def loss(*tokens):
            output = core.apply({}, *tokens, mask, deterministic=True)
            return jnp.sin(output).sum(), output

        return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(query, key, value)

    expected = jax.jit(run)(*inputs, mask)
    with jax.set_mesh(mesh):
        on_mask = BATCH if masked == "sharded" and spec == BATCH else PartitionSpec()
        arrays = [*place(mesh, spec, *inputs), *place(mesh, on_mask, mask)]
        assert_close(jax.jit(run)(*arrays), expected, REFERENCE)


def test_grouped_heads_and_split_lengths_may_share_a_mesh(rngs):
    kinds = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("sequence", "model"), axis_types=kinds)
    query = normal(next(rngs), (B, L + 2, 2 * H, D))
    key, value = normal(next(rngs), (2, B, L + 2, H, D))
    mask = jnp.pad(MASK, ((0, 0), (0, 2)))
    attend = jax.jit(functools.partial(nystrom_attention, num_landmarks=M, mask=mask))
    expected = attend(query, key, value)
    with jax.set_mesh(mesh):
        heads = place(mesh, PartitionSpec(None, None, "model"), query, key, value)
        assert_close(attend(*heads), expected, REFERENCE)
        key, value = jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2)
        split = place(mesh, PartitionSpec(None, "sequence", "model"), query, key, value)
        options = {"mesh": mesh, "axis": "sequence", "num_landmarks": M, "mask": mask}
        attend = jax.jit(functools.partial(sharded_nystrom_attention, **options))
        assert_close(attend(*split), expected, REFERENCE)


def test_a_length_over_an_explicit_axis_is_an_error(rngs):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
    none, tokens = make_core("none", conv_kernel_size=3)(), jnp.ones((3, B, 52, H, D))
    kernel = none.init(jax.random.key(0), *tokens, deterministic=True)
    with jax.set_mesh(mesh):
        arrays = place(mesh, PartitionSpec(None, "x"), *normal(next(rngs), (3, B, 52, H, D)))
        convolve = functools.partial(none.apply, kernel, deterministic=True)
        for attend in (softmax_attention, nystrom_attention, convolve):
            with pytest.raises(ValueError, match="sharded_nystrom_attention"):
                attend(*arrays)
