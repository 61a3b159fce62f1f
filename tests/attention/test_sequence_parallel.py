"""Attention with its length split over eight devices equals that of one device."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nystromformer_jax.attention.functions import nystrom_attention
from nystromformer_jax.attention.sequence_parallel import sharded_nystrom_attention
from nystromformer_jax.cores import make_core
from nystromformer_jax.layers.encoder import EncoderBlock, SelfAttention
from nystromformer_jax.layers.gated_ema import GatedEmaBlock, MultiScaleEma
from nystromformer_jax.training import MeshConfig, batch_sharding, make_mesh, on_mesh
from nystromformer_jax.training.collectives import find_collectives
from tests.attention.contract import assert_equals_plain_jnp, cases_of
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    masks_of_all_kinds,
    normal,
    random_inputs,
)

M, BATCH, HEADS, DIM = 7, 8, 2, 5


def mesh_of(data, sequence):
    return make_mesh(MeshConfig(data=data, sequence=sequence))


@cases_of("split", "devices without a token", "two lengths")
def test_a_split_length_equals_one_device(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "split", case)


@cases_of("split, explicit axes", "own landmarks")
def test_a_length_on_an_explicit_axis_equals_one_device(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "split, explicit axes", case)


def test_works_without_implicit_promotion_with_x64(rngs):
    inputs = random_inputs(rngs, BATCH, 61, HEADS, DIM)
    attend = functools.partial(sharded_nystrom_attention, mesh=mesh_of(2, 4), num_landmarks=M)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        for mask in (None, masks_of_all_kinds(61, M)):
            output = jax.eval_shape(functools.partial(attend, mask=mask), *inputs)
            assert output.dtype == jnp.float32


@pytest.mark.parametrize(
    ("axis_type", "length", "part"), [(AxisType.Auto, 64, 8), (AxisType.Explicit, 61, 61)]
)
def test_output_stays_split_if_the_devices_divide_the_length(rngs, axis_type, length, part):
    mesh = jax.make_mesh((8,), ("sequence",), (axis_type,))
    inputs = random_inputs(rngs, 1, length, HEADS, DIM)
    attention = functools.partial(sharded_nystrom_attention, mesh=mesh, num_landmarks=M)
    output = attention(*inputs)
    assert {shard.data.shape[1] for shard in output.addressable_shards} == {part}


def test_a_block_runs_with_a_length_on_an_explicit_axis_and_a_replicated_mask(rngs):
    core = make_core("nystrom", num_landmarks=M, conv_kernel_size=3)
    run = jax.jit(EncoderBlock(2, core, 7, deterministic=True).init_with_output)
    x, mask = normal(next(rngs), (2, 64, 6)), masks_of_all_kinds(64, M, 2)
    expected = run(jax.random.key(0), x, mask)
    mesh = jax.make_mesh((4,), ("sequence",), (AxisType.Explicit,), devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        split = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "sequence")))
        assert_close(run(jax.random.key(0), split, mask), expected, REFERENCE)


@pytest.mark.parametrize(
    ("shape", "length", "key_length", "options"),
    [
        ((8, 1), 61, 61, {}),
        ((1, 8), 5, 61, {}),
        ((1, 8), 61, 7, {}),
        ((1, 8), 7, 7, {"landmark_layout": "hf"}),
        # Parts of 8 tokens are shorter than half of the convolution.
        ((1, 8), 61, 61, {"conv_kernel": jnp.ones((HEADS, DIM, 19))}),
    ],
)
def test_does_not_split_on_one_device_or_short_lengths(rngs, shape, length, key_length, options):
    inputs = random_inputs(rngs, BATCH, length, HEADS, DIM, key_length=key_length)
    options = {"num_landmarks": M, **options}
    attention = functools.partial(sharded_nystrom_attention, mesh=mesh_of(*shape), **options)
    assert "shard_map" not in str(jax.make_jaxpr(attention)(*inputs))
    expected = jax.jit(functools.partial(nystrom_attention, **options))(*inputs)
    assert_close(jax.jit(attention)(*inputs), expected, SAME_ARITHMETIC)


@pytest.mark.parametrize(
    ("block", "length"),
    [(EncoderBlock, 512), (functools.partial(GatedEmaBlock, num_states=2), 2048)],
    ids=["transformer", "gated ema"],
)
def test_a_block_does_not_gather_the_sequence(block, length):
    mesh, width = mesh_of(1, 8), 12
    core = make_core("nystrom", num_landmarks=8, conv_kernel_size=5)
    block = block(2, core, 24)
    params = jax.eval_shape(
        lambda x: block.init(jax.random.key(0), x, deterministic=True),
        jax.ShapeDtypeStruct((2, length, width), jnp.float32),
    )
    x = jax.ShapeDtypeStruct(
        (2, length, width), jnp.float32, sharding=batch_sharding(mesh, (2, length))
    )

    def gradient(params, x):
        return jax.grad(lambda x: (block.apply(params, x, deterministic=True) ** 2).sum())(x)

    found = find_collectives(jax.jit(on_mesh(gradient, mesh)).lower(params, x).compile().as_text())
    assert 0 < sum(kind.nbytes for kind in found.values()) < 2 * 4 * length * width


@pytest.mark.parametrize(
    "module",
    [
        SelfAttention(2, make_core("nystrom", num_landmarks=3), deterministic=True),
        MultiScaleEma(4),
    ],
)
def test_modules_run_inside_a_users_shard_map(rngs, module):
    """There the axis is already split: each device has sequences of its own."""
    x = normal(next(rngs), (1, 8 * 5, 6))
    variables = module.init(next(rngs), x)
    apply = functools.partial(module.apply, variables)
    spec = PartitionSpec(None, "sequence")
    each = jax.shard_map(apply, mesh=mesh_of(1, 8), in_specs=spec, out_specs=spec)
    alone = jax.jit(apply)
    expected = jnp.concatenate([alone(part) for part in jnp.split(x, 8, axis=1)], axis=1)
    assert_close(jax.jit(each)(x), expected, REFERENCE)


@pytest.mark.slow_except("True-True")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_communication_does_not_depend_on_the_length(masked, backwards):
    devices, num_landmarks, width = 8, 8, 5
    landmarks = num_landmarks * HEADS * DIM
    edges = 2 * (width // 2) * HEADS * DIM
    # Landmarks of queries and of keys, and the collected values with a maximum and a sum.
    numbers = 3 * landmarks + 2 * num_landmarks * HEADS + edges
    if masked:  # counts of tokens, and the values of examples with few tokens
        numbers += devices + landmarks
    if backwards:
        numbers += (4 if masked else 3) * landmarks + edges + HEADS * width

    mesh, options = mesh_of(1, devices), {"num_landmarks": num_landmarks, "pinv_iters": 1}

    def attend(tokens, kernel, mask):
        masks = {"mask": mask, "conv_kernel": kernel}
        return sharded_nystrom_attention(*tokens, mesh=mesh, **masks, **options)

    def spec(shape, dtype, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    gradient = jax.grad(lambda *arguments: attend(*arguments).sum(), argnums=(0, 1))
    function = gradient if backwards else attend
    kernel = spec((HEADS, width), jnp.float32)
    tokens = [spec((1, 512, HEADS, DIM), jnp.float32, None, "sequence")] * 3
    mask = spec((1, 512), bool, None, "sequence") if masked else None
    program = jax.jit(function).lower(tokens, kernel, mask).compile().as_text()
    assert sum(found.nbytes for found in find_collectives(program).values()) == 4 * numbers
