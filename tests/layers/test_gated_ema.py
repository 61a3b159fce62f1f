import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import make_core, nystrom_attention
from nystromformer_jax.attention.ema import multi_scale_ema
from nystromformer_jax.layers.encoder import MlpBlock
from nystromformer_jax.layers.gated_ema import GatedEmaBlock, MultiScaleEma
from tests.helpers import (
    HALF,
    REFERENCE,
    assert_close,
    dropped_shapes,
    mask_of_lengths,
    normal,
    random_variables,
)

BATCH, LENGTH, WIDTH = 2, 70, 8
NYSTROM = make_core("nystrom", num_landmarks=4, conv_kernel_size=3)


def random_tokens(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    return x, mask_of_lengths([LENGTH, 41], LENGTH)


def initialised(block, rngs, *inputs):
    return random_variables(next(rngs), block, *inputs, scale=0.3)


class TestMultiScaleEma:
    def test_time_scales_cover_two_tokens_to_the_longest(self, rngs):
        layer = MultiScaleEma(num_states=4, max_time_scale=512)
        impulse = jnp.zeros((1, 9, 5)).at[0, 4].set(1.0)
        parameters = jax.jit(layer.init)(next(rngs), impulse)["params"]
        apply = jax.jit(layer.apply)
        weights = jnp.zeros((2, 5, 4))
        decays = []
        for state in range(4):
            only = {**parameters, "weight": weights.at[0, :, state].set(1.0)}
            after = np.asarray(apply({"params": only}, impulse))[0, 5:7]
            decays.append(-1 / np.log(after[1] / after[0]))
        scales = np.sort(np.ravel(decays))
        assert_close(scales, 2 * 256 ** ((np.arange(20) + 0.5) / 20), HALF)

    def test_initial_weights_have_a_unit_sum_of_squares(self, rngs):
        layer = MultiScaleEma(num_states=8)
        weights = jax.jit(layer.init)(next(rngs), jnp.ones((1, 3, 200)))["params"]["weight"]
        squares = (weights**2).sum(axis=(0, 2))
        assert float(squares.mean()) == pytest.approx(1, abs=0.1)

    @pytest.mark.parametrize("normalization", ["mean", "variance"])
    def test_equals_the_function_plus_the_token_itself(self, rngs, normalization):
        x, mask = random_tokens(rngs)
        layer = MultiScaleEma(num_states=1, max_time_scale=2, normalization=normalization)
        variables = jax.jit(layer.init)(next(rngs), x)
        variables = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf) + 0.3), variables)

        @jax.jit
        def formula(parameters, x):
            time_scales = 2 * jnp.exp(parameters["time_scale"])
            decay = jnp.exp(-1 / time_scales)
            scale = 1 - decay if normalization == "mean" else jnp.sqrt(1 - decay**2)
            weights = parameters["weight"] * scale
            return multi_scale_ema(x, time_scales, weights, mask=mask) + 1.3 * x

        expected = formula(variables["params"], x)
        assert_close(jax.jit(layer.apply)(variables, x, mask), expected, REFERENCE)


@pytest.mark.parametrize("normalization", ["mean", "variance"])
def test_gradients_of_float16_parameters_are_finite_for_long_time_scales(rngs, normalization):
    ema = MultiScaleEma(
        max_time_scale=10**5, normalization=normalization, param_dtype=jnp.float16
    )  # 10⁵ is not finite in float16
    x = normal(next(rngs), (2, 30, 4), jnp.float16)
    variables = random_variables(next(rngs), ema, x, scale=0.1, deterministic=None)
    total = lambda variables: ema.apply(variables, x).astype(jnp.float32).sum()
    gradients = jax.jit(jax.grad(total))(variables)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_a_block_equals_its_formula(rngs):
    x, mask = random_tokens(rngs)
    block = GatedEmaBlock(2, NYSTROM, 16, num_states=3, max_time_scale=LENGTH)
    variables = initialised(block, rngs, x, mask)

    @jax.jit
    def formula(weights, x):
        def dense(name, x):
            return x @ weights[name]["kernel"] + weights[name]["bias"][None, None]

        def norm(name, x):
            return nn.LayerNorm(epsilon=1e-5).apply({"params": weights[name]}, x)

        def scaled(name, x):
            scale, shift = weights[f"{name}_scale"], weights[f"{name}_shift"]
            return scale[None, None] * x + shift[None, None]

        normed = norm("attention_norm", x)
        ema = MultiScaleEma(3, LENGTH)
        averages = nn.silu(ema.apply({"params": weights["ema"]}, normed, mask))
        shared = nn.silu(dense("shared", averages))
        inputs = scaled("query", shared), scaled("key", shared), nn.silu(dense("value", normed))
        attended = nystrom_attention(
            *(x.reshape(BATCH, LENGTH, 2, WIDTH // 2) for x in inputs),
            num_landmarks=4,
            mask=mask,
            conv_kernel=weights["core"]["conv_kernel"],
        ).reshape(x.shape)
        reset = nn.silu(dense("reset", averages))
        hidden = nn.silu(dense("hidden", averages) + dense("out", reset * attended))
        update = nn.sigmoid(dense("update", averages))
        y = x + update * (hidden - x)
        mlp = MlpBlock(16).bind({"params": weights["mlp"]})
        return y + mlp(norm("mlp_norm", y), deterministic=True)

    actual = jax.jit(functools.partial(block.apply, deterministic=True))(variables, x, mask)
    assert_close(actual, formula(variables["params"], x), REFERENCE, where=mask)


def test_dropout_applies_to_the_hidden_state_and_twice_in_the_mlp(rngs):
    x, _ = random_tokens(rngs)
    block = GatedEmaBlock(2, NYSTROM, 16, dropout_rate=0.5)
    variables = initialised(block, rngs, x)
    assert dropped_shapes(block, variables, x) == [x.shape, (BATCH, LENGTH, 16), x.shape]


def test_without_states_tokens_mix_by_the_core_alone(rngs):
    x, mask = random_tokens(rngs)
    block = GatedEmaBlock(2, make_core("none"), 16, num_states=0)
    variables = initialised(block, rngs, x, mask)
    assert "ema" not in variables["params"]
    apply = jax.jit(functools.partial(block.apply, variables, deterministic=True))
    changes = np.asarray(apply(x, mask) != apply(x.at[:, 5].add(1.0), mask)).any(axis=(0, 2))
    assert np.flatnonzero(changes) == [5]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"num_states": -1}, "num_states"),
        ({"max_time_scale": 1}, "max_time_scale"),
        ({"ema_normalization": "sum"}, "'variance'"),
        ({"qkv_features": 7}, "7 and 2"),
        ({"activation": "gel"}, "'gelu'"),
    ],
)
def test_rejects_invalid_options(no_annotations, options, word):
    block = GatedEmaBlock(2, NYSTROM, 16, **options)
    with pytest.raises(ValueError, match=word):
        random_variables(jax.random.key(0), block, jnp.ones((1, LENGTH, WIDTH)))
