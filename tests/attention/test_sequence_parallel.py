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
from nystromformer_jax.training.topology import topology_devices
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


@cases_of("split", "devices without a token", "own landmarks")
def test_a_split_length_equals_one_device(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "split", case)


@cases_of("split, explicit axes", "mask")
def test_a_length_on_an_explicit_axis_equals_one_device(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "split, explicit axes", case)


@pytest.mark.parametrize("length", [61, 64])
def test_works_without_implicit_promotion_with_x64(rngs, length):
    inputs = random_inputs(rngs, BATCH, length, HEADS, DIM)
    attend = functools.partial(sharded_nystrom_attention, mesh=mesh_of(2, 4), num_landmarks=M)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        for mask in (None, masks_of_all_kinds(length, M)):
            output = jax.eval_shape(functools.partial(attend, mask=mask), *inputs)
            assert output.dtype == jnp.float32


@pytest.mark.parametrize(
    ("axis_type", "length", "part"), [(AxisType.Auto, 64, 8), (AxisType.Explicit, 61, 61)]
)
def test_output_stays_split_if_the_devices_divide_the_length(rngs, axis_type, length, part):
    mesh = jax.make_mesh((8,), ("sequence",), (axis_type,))
    inputs = random_inputs(rngs, 1, length, HEADS, DIM)
    attention = functools.partial(sharded_nystrom_attention, mesh=mesh, num_landmarks=M)
    for output in (attention(*inputs), jax.jit(attention)(*inputs)):
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
    ("shape", "length", "key_length", "layout"),
    [
        ((8, 1), 61, 61, "real"),
        ((1, 8), 5, 61, "real"),
        ((1, 8), 61, 7, "real"),
        ((1, 8), 7, 7, "hf"),
    ],
)
def test_does_not_split_on_one_device_or_short_lengths(rngs, shape, length, key_length, layout):
    inputs = random_inputs(rngs, BATCH, length, HEADS, DIM, key_length=key_length)
    options = {"num_landmarks": M, "landmark_layout": layout}
    attention = functools.partial(sharded_nystrom_attention, mesh=mesh_of(*shape), **options)
    assert "shard_map" not in str(jax.make_jaxpr(attention)(*inputs))
    expected = jax.jit(functools.partial(nystrom_attention, **options))(*inputs)
    assert_close(jax.jit(attention)(*inputs), expected, SAME_ARITHMETIC)


def test_parts_shorter_than_half_the_convolution_are_not_split(rngs):
    inputs = random_inputs(rngs, 1, 61, HEADS, DIM)
    options = {"num_landmarks": M, "conv_kernel": normal(next(rngs), (HEADS, DIM, 19))}
    actual = sharded_nystrom_attention(*inputs, mesh=mesh_of(1, 8), **options)
    assert_close(actual, nystrom_attention(*inputs, **options), SAME_ARITHMETIC)


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


def received_bytes(mesh, length, heads, dim, width, dtype, *, masked, backwards, **options):
    """Returns the bytes that each device receives by collectives."""

    def spec(shape, dtype, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def attend(query, key, value, kernel, mask):
        masks = {"mask": mask, "conv_kernel": kernel}
        return sharded_nystrom_attention(query, key, value, mesh=mesh, **masks, **options)

    def total(*arguments):
        return attend(*arguments).astype(jnp.float32).sum()

    tokens = spec((1, length, heads, dim), dtype, None, "sequence")
    kernel = spec((heads, width), jnp.float32)
    mask = spec((1, length), bool, None, "sequence") if masked else None
    function = jax.grad(total, argnums=(0, 1, 2, 3)) if backwards else attend
    compiled = jax.jit(function).lower(tokens, tokens, tokens, kernel, mask).compile()
    return sum(found.nbytes for found in find_collectives(compiled.as_text()).values())


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

    received = functools.partial(
        received_bytes,
        masked=masked,
        backwards=backwards,
        num_landmarks=num_landmarks,
        pinv_iters=1,
    )
    for length in (512, 4096):
        nbytes = received(mesh_of(1, devices), length, HEADS, DIM, width, jnp.float32)
        assert nbytes == 4 * numbers


@pytest.mark.slow(minutes=0.4)
@pytest.mark.parametrize("topology", ["v5e:2x4", "v5e:4x4"])
@pytest.mark.parametrize(
    ("masked", "backwards", "most"),
    [(False, False, 0.3), (False, True, 0.6), (True, False, 0.45), (True, True, 0.9)],
)
def test_communication_of_tpus_is_bounded(topology, masked, backwards, most):
    pytest.importorskip("libtpu")
    mesh = make_mesh(MeshConfig(data=1, sequence=-1), topology_devices(topology))
    received = functools.partial(
        received_bytes, masked=masked, backwards=backwards, num_landmarks=64
    )
    short, long = (received(mesh, length, 8, 64, 33, jnp.bfloat16) for length in (16_384, 131_072))
    assert short == long
    assert 0 < short <= most * 2**20
