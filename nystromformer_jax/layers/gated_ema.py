"""Encoder block with gated attention, and moving averages before queries, keys and gates."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from nystromformer_jax.attention.checks import accum_dtype, check_array
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.attention.ema import multi_scale_ema
from nystromformer_jax.attention.sequence_parallel import sequence_mesh
from nystromformer_jax.layers.encoder import (
    TOKENS,
    Dtype,
    Layer,
    LayerInputs,
    MlpBlock,
    attend_in_heads,
    attention_features,
    finite_padding,
    new_core,
    over_tokens,
    projections,
)
from nystromformer_jax.support.values import Activation, EmaNormalization, check_choice, check_size
from nystromformer_jax.typing import Array, Bool, Float


class MultiScaleEma(nn.Module):
    """Moving averages of the past and the future of each token, and the token itself, per channel.

        output = multi_scale_ema(x, time_scales, weights) + skip · x

    The time scales of a channel are initialized log-uniformly from 2 to `max_time_scale`, differently for
    each channel. If the ambient mesh splits the length, the devices exchange the states.

    Attributes:
      num_states: N, number of time scales per channel and direction.
      max_time_scale: Longest initial time scale, in tokens, for example the length of the sequences.
      normalization: `"mean"` scales a state to a weighted mean, so that a constant input keeps its size.
        `"variance"` scales it so that white noise keeps its variance; a constant input then grows by about
        √(2 · time scale), which can hide the differences between the tokens of a text.
      dtype: Dtype of the computation; None for the promoted dtype of input and parameters.
      param_dtype: Dtype of the parameters.
    """

    num_states: int = 16
    max_time_scale: int = 1024
    normalization: EmaNormalization = "mean"
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L C"], mask: Bool[Array, "B L"] | None = None
    ) -> Float[Array, "B L C"]:
        """Applies the averages to each channel; `mask` is True at real tokens.

        Raises:
          ValueError: `num_states` is not an integer of at least 1, `max_time_scale` is not one of at least 2,
            `normalization` is unknown, or an input is invalid.
        """
        check_array("x", x, TOKENS)
        check_size("num_states", self.num_states)
        check_size("max_time_scale", self.max_time_scale, 2)
        check_choice("normalization", self.normalization, EmaNormalization)
        x = finite_padding(x, mask)
        channels = x.shape[-1]
        shape = (2, channels, self.num_states)
        # The parameter is added to the log of the initial time scale; weight decay pulls towards that scale.
        change = self.param("time_scale", nn.initializers.zeros_init(), shape, self.param_dtype)
        dtype = accum_dtype(self.param_dtype)
        # The offset differs by channel, from 0 to 1.
        offset = (jnp.arange(channels, dtype=dtype) + 0.5) / channels
        states = jnp.arange(self.num_states, dtype=dtype)
        exponent = (states[None] + offset[:, None]) / self.num_states
        initial = 2 * (self.max_time_scale / 2) ** exponent
        time_scales = initial[None] * jnp.exp(change.astype(dtype))
        init = nn.initializers.normal((2 * self.num_states) ** -0.5)
        weights = self.param("weight", init, shape, self.param_dtype).astype(dtype)
        if self.normalization == "mean":
            weights = weights * -jnp.expm1(-1 / time_scales)
        else:
            weights = weights * jnp.sqrt(-jnp.expm1(-2 / time_scales))
        skip = self.param("skip", nn.initializers.ones_init(), (channels,), self.param_dtype)
        x, skip = nn.dtypes.promote_dtype(x, skip, dtype=self.dtype)
        averages = multi_scale_ema(x, time_scales, weights, mask=mask, mesh=sequence_mesh())
        return averages + skip[None, None] * x


class GatedEmaBlock(Layer):
    """Gated attention whose queries, keys and gates read moving averages, then an MLP.

        X = layer_norm(x);  E = silu(ema(X));  Z = silu(E W_z);  V = silu(X W_v)
        O = core(γ_q ∘ Z + β_q, γ_k ∘ Z + β_k, V)
        H = silu(E W_h + (silu(E W_r) ∘ O) U_h);  U = sigmoid(E W_u)
        y = x + U ∘ (H − x)
        output = y + mlp(layer_norm(y))

    All dense layers have biases. The block needs no position embeddings: the moving averages depend on the
    order of the tokens. Attributes that are not listed are as in `EncoderBlock`.

    Attributes:
      num_states: Number of time scales per channel and direction, see `MultiScaleEma`; 0 for no averages.
      max_time_scale: Longest initial time scale, in tokens.
      ema_normalization: `"mean"` or `"variance"`, the `normalization` of `MultiScaleEma`.
      qkv_features: Width of Z, V and O; None for the width of `x`.
      dropout_rate: Dropout rate of H, of the hidden units of the MLP and of its output.

    Source: Ma et al. 2022 (MEGA), arXiv:2209.10655, Eq. 6–15.
    Differs: any core in place of softmax with relative positions; several heads; V is as wide as Z; γ starts
    with a standard deviation of 1, not 0.02.
    """

    num_heads: int
    make_core: Callable[..., nn.Module]
    mlp_dim: int
    num_states: int = 16
    max_time_scale: int = 1024
    ema_normalization: EmaNormalization = "mean"
    activation: Activation = "gelu"
    qkv_features: int | None = None
    dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-5
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Float[Array, "B L E"]:
        """Applies the block; `mask` is True at real tokens.

        Raises:
          ValueError: A size or an input is invalid.
        """
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        check_array("x", x, TOKENS)
        check_size("num_states", self.num_states, least=0)
        x = finite_padding(x, mask)
        width = x.shape[-1]
        features, _ = attention_features(self.num_heads, width, self.qkv_features, None)
        layer_norm = functools.partial(nn.LayerNorm, epsilon=self.layer_norm_epsilon, **self.dtypes)
        dropout = Dropout(self.dropout_rate)

        def dense(name: str, width: int, x: Array) -> Array:
            return over_tokens(nn.Dense(width, **self.dense_options, name=name), x)

        normed = layer_norm(name="attention_norm")(x)
        averages = normed
        if self.num_states:
            ema = MultiScaleEma(
                self.num_states,
                self.max_time_scale,
                self.ema_normalization,
                **self.dtypes,
                name="ema",
            )
            averages = ema(normed, mask)
        averages = nn.silu(averages)
        attended = self._attend(normed, averages, features, dense, mask, deterministic)
        reset = nn.silu(dense("reset", features, averages))
        hidden = dense("hidden", width, averages) + dense("out", width, reset * attended)
        hidden = dropout(nn.silu(hidden), deterministic=deterministic)
        update = nn.sigmoid(dense("update", width, averages))
        y = x + update * (hidden - x)
        mlp = MlpBlock(
            self.mlp_dim, self.activation, self.dropout_rate, **self.dense_options, name="mlp"
        )
        return y + mlp(layer_norm(name="mlp_norm")(y), deterministic=deterministic)

    def _attend(
        self,
        normed: Float[Array, "B L E"],
        averages: Float[Array, "B L E"],
        features: int,
        dense: Callable[[str, int, Array], Array],
        mask: Bool[Array, "B L"] | None,
        deterministic: bool,
    ) -> Float[Array, "B L F"]:
        """Returns the output O of the core."""
        core = new_core(self.make_core, name="core")
        names = projections(core)
        # A core that reads only values needs no projection of queries and keys.
        shared = nn.silu(dense("shared", features, averages)) if "query" in names else averages

        def project(name: str, x: Array) -> Array:
            if name == "value":
                return nn.silu(dense("value", features, x))
            inits = {"scale": nn.initializers.normal(1.0), "shift": nn.initializers.zeros_init()}
            scale, shift = (
                self.param(f"{name}_{kind}", init, (features,), self.param_dtype)
                for kind, init in inits.items()
            )
            x, scale, shift = nn.dtypes.promote_dtype(x, scale, shift, dtype=self.dtype)
            return scale[None, None] * x + shift[None, None]

        attend = functools.partial(core, deterministic=deterministic)
        inputs = LayerInputs(shared, shared, normed, mask, None, is_cross_attention=False)
        return attend_in_heads(attend, names, project, inputs, self.num_heads)
