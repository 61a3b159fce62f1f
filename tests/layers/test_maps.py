"""Attention maps of layers: rows and rollout, compared with whole maps of short inputs."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import nystromformer_jax.nnx as native
from nystromformer_jax import (
    Encoder,
    EncoderBlock,
    MlpBlock,
    MultiHeadAttention,
    SelfAttention,
    attention_fn,
    attention_maps,
    attention_rollout,
    make_core,
    nystrom_attention_rows,
    nystrom_factors,
)
from nystromformer_jax.cores import CORES
from tests.cores.test_contract import OPTIONS
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    largest_array,
    mask_of_lengths,
    normal,
    random_variables,
)

B, L, H, E, F, M = 3, 29, 2, 10, 7, 7
MASK = mask_of_lengths([L, 17, 5], L)


def model_of(core, num_layers=2, **options):
    return Encoder(num_layers, functools.partial(EncoderBlock, H, core, F), **options)


def linen_model(rngs, core, length=L, **options):
    """Returns a model with random variables, and an input."""
    model, x = model_of(core, **options), normal(next(rngs), (B, length, E))
    return model, random_variables(next(rngs), model, x), x


def of_linen(model, variables, *inputs):
    """The maps of a linen model, compiled as a whole."""
    maps = functools.partial(attention_maps, model, deterministic=True)
    return jax.jit(maps)(variables, *inputs)


CORE = make_core("nystrom", num_landmarks=M, num_own_landmarks=1, conv_kernel_size=3)


@functools.cache
def two_layers():
    """A model of two layers with random variables, an input, and its maps under MASK."""
    rngs = iter(jax.random.split(jax.random.key(0), 2))
    model, variables, x = linen_model(rngs, CORE)
    return model, variables, x, of_linen(model, variables, x, MASK)


@jax.jit
def rows_of(layer, positions=(0,)):
    return layer.rows(positions)


def whole(layer):
    """All rows of a map [B H L T]."""
    return rows_of(layer, jnp.arange(layer.inputs.query.shape[1]))


@pytest.mark.parametrize(
    "options",
    [
        {"conv_kernel_size": 3, "num_own_landmarks": 2},
        {"landmark_selection": "kmeans", "pinv": "ridge", "normalize_rows": True},
        {"landmark_layout": "hf", "num_landmarks": 1},
    ],
    ids=str,
)
def test_rows_equal_those_of_nystrom_attention(rngs, options):
    """The third example has fewer tokens than landmarks, so its map is exact."""
    options = {"num_landmarks": M, **options}
    model, variables, x = linen_model(rngs, make_core("nystrom", **options), num_layers=1)
    options.pop("conv_kernel_size", None)
    positions = jnp.array([[0, 28, 3], [0, 16, 1], [4, 0, 2]])

    @jax.jit
    def both(variables, x):
        (layer,) = attention_maps(model, variables, x, MASK, deterministic=True)
        of_inputs = functools.partial(nystrom_attention_rows, *layer.inputs[:2], positions)
        return layer.rows(positions), of_inputs(mask=MASK, **options)

    assert_close(*both(variables, x), REFERENCE)


@pytest.mark.slow_except("softmax", "nystrom", "linformer")
@pytest.mark.parametrize("name", CORES)
def test_map_times_value_is_the_output_of_any_core(rngs, name):
    options = {**OPTIONS[name], "conv_kernel_size": 0}
    if "conv_kernel_size" not in OPTIONS[name]:
        del options["conv_kernel_size"]
    model, variables, x = linen_model(rngs, make_core(name, **options), num_layers=1)
    is_core = lambda module, method: module.name == "core"
    options = {"deterministic": True, "capture_intermediates": is_core}
    _, state = jax.jit(functools.partial(model.apply, **options))(variables, x, MASK)
    (output,) = state["intermediates"]["layer_0"]["attention"]["core"]["__call__"]
    (layer,) = of_linen(model, variables, x, MASK)
    value = jnp.where(MASK[..., None, None], layer.inputs.value, 0)
    product = jnp.einsum("BHLT,BTHD->BLHD", whole(layer), value)
    assert_close(product, output, REFERENCE, where=MASK)


def test_rollout_is_the_product_of_the_maps():
    *_, maps = two_layers()
    residual, rows = 0.3, np.array([0, 4])
    first, second = (
        residual * np.eye(L) + (1 - residual) * np.asarray(whole(layer)).mean(axis=1)
        for layer in maps
    )
    rollout = jax.jit(functools.partial(attention_rollout, residual=residual))
    actual = np.asarray(rollout(maps, rows))
    assert_close(actual, (second @ first)[:, rows], REFERENCE)
    assert (actual.swapaxes(1, 2)[~np.asarray(MASK)] == 0).all()


def test_remat_and_nnx_give_the_same_maps():
    _, variables, x, maps = two_layers()
    expected = [rows_of(layer) for layer in maps]
    assert [rows.shape for rows in expected] == 2 * [(B, H, 1, L)]
    maps = of_linen(model_of(CORE, remat=True), variables, x, MASK)
    assert_close([rows_of(layer) for layer in maps], expected, SAME_ARITHMETIC)
    block = native.EncoderBlock(H, E, CORE, F, rngs=nnx.Rngs(0))
    native.load_linen(block, {"params": variables["params"]["layer_0"]})
    block.eval()
    of_block = nnx.jit(lambda block, x: attention_maps(block, x, MASK)[0].rows())
    assert_close(of_block(block, x), expected[0], SAME_ARITHMETIC)


def test_maps_of_flax_modules_with_attention_fn(rngs):
    x = normal(next(rngs), (B, L, E))
    own = attention_fn("nystrom", num_landmarks=M)
    layer = nn.MultiHeadDotProductAttention(H, attention_fn=own, deterministic=True)
    variables = random_variables(next(rngs), layer, x, deterministic=None)
    maps_of = functools.partial(attention_maps, layer, mask=MASK[:, None, None])
    (found,) = jax.jit(maps_of)(variables, x)
    first = jnp.zeros((B, 1), jnp.int32)
    expected = nystrom_attention_rows(*found.inputs[:2], first, mask=MASK, num_landmarks=M)
    assert_close(rows_of(found), expected, REFERENCE)


def test_positions_count_from_the_end_and_are_nan_out_of_range():
    *_, (layer, _) = two_layers()
    rows = rows_of(layer, jnp.array([-1, L, 0, -L - 1]))
    assert_close(rows[:, :, :3:2], rows_of(layer, jnp.array([L - 1, 0])), SAME_ARITHMETIC)
    assert jnp.isnan(rows[:1, :, 1::2]).all()  # without padding, where rows are zero
    for positions in (0, [0.5], [[0], [1]]):
        with pytest.raises(ValueError, match="positions must be integers"):
            layer.rows(positions)


def test_gradients_equal_those_of_the_dense_map(rngs):
    layer = SelfAttention(H, make_core("nystrom", num_landmarks=M))
    x, weights = normal(next(rngs), (B, L, E)), normal(next(rngs), (B, H, 1, L))
    variables = random_variables(next(rngs), layer, x, MASK)

    def dense(x):
        (found,) = of_linen(layer, variables, x, MASK)
        factors = nystrom_factors(*found.inputs[:2], mask=MASK, num_landmarks=M)
        return (factors.kernel_1[:, :, :1] @ factors.inverse @ factors.kernel_3 * weights).sum()

    def transposed(x):
        return (of_linen(layer, variables, x, MASK)[0].rows() * weights).sum()

    assert_close(jax.jit(jax.grad(transposed))(x), jax.jit(jax.grad(dense))(x), REFERENCE)


def test_rows_and_rollout_allocate_no_quadratic_map():
    length, core = 4096, make_core("nystrom", num_landmarks=16, num_own_landmarks=1)
    model, x = model_of(core), jax.ShapeDtypeStruct((1, length, 8), jnp.float32)
    variables = jax.eval_shape(
        functools.partial(model.init, deterministic=True), jax.random.key(0), x
    )

    def run(variables, x):
        maps = of_linen(model, variables, x)
        return maps[0].rows([0, 1]), attention_rollout(maps)

    assert largest_array(run, variables, x) <= 2 * length * 16


def test_rows_are_the_same_with_the_length_on_a_mesh(rngs):
    core = make_core("nystrom", num_landmarks=M)
    model, variables, x = linen_model(rngs, core, length=64, num_layers=1)
    expected = attention_rollout(of_linen(model, variables, x))
    rollout = jax.jit(lambda x: attention_rollout(of_linen(model, variables, x)))
    with jax.set_mesh(jax.make_mesh((8,), ("sequence",), (jax.sharding.AxisType.Auto,))):
        assert_close(rollout(x), expected, REFERENCE)


class Wrapper(nn.Module):
    """A core around another core."""

    core: nn.Module

    def __call__(self, *inputs, deterministic):
        return self.core(*inputs, deterministic=deterministic)


def test_a_core_around_a_core_has_one_map_and_mutable_collections_are_allowed(rngs):
    inner, x = make_core("softmax"), normal(next(rngs), (B, L, E))
    layer = SelfAttention(H, lambda **_: Wrapper(inner(parent=None), name="core"))
    variables = random_variables(next(rngs), layer, x)
    options = {"mutable": ["intermediates"], "deterministic": True}
    (found,) = attention_maps(layer, variables, x, MASK, **options)
    (expected,) = of_linen(SelfAttention(H, inner), variables, x, MASK)
    assert_close(found.rows(), expected.rows(), SAME_ARITHMETIC)


def test_models_without_one_map_per_layer_are_errors(rngs):
    core, x = make_core("softmax"), normal(next(rngs), (B, L, E))
    mlp = MlpBlock(F)
    with pytest.raises(ValueError, match="no attention core"):
        of_linen(mlp, random_variables(next(rngs), mlp, x), x)
    cross = MultiHeadAttention(H, core)
    maps = of_linen(cross, random_variables(next(rngs), cross, x), x, x[:, :5])
    assert maps[0].rows().shape == (B, H, 1, 5)
    for wrong in (maps, []):
        with pytest.raises(ValueError, match="attention_rollout needs maps of self-attention"):
            attention_rollout(wrong)
    scan = nn.scan(
        lambda block, x, _: (block(x), None),
        length=2,
        variable_axes={"params": 0},
        split_rngs={"params": True},
    )

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            return scan(EncoderBlock(H, core, F, deterministic=True), x, None)[0]

    variables = random_variables(next(rngs), Stack(), x, deterministic=None)
    with pytest.raises(ValueError, match=r"layers inside nn\.scan"):
        attention_maps(Stack(), variables, x)
