"""Flax Modules: multi-head attention with any core, and the Transformer encoder."""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from flax.typing import PrecisionLike

from nystromformer_jax.attention.checks import check_array, check_mask, check_output
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.attention.sequence_parallel import sequence_mesh
from nystromformer_jax.support.values import Activation, check_choice, check_rate, check_size
from nystromformer_jax.typing import Array, Bool, Float

Initializer = Callable[..., Array]
Dtype = Any

Norm = Literal["pre", "post"]
TOKENS = "batch, length, width"  # axis names of layer inputs, for messages
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "tanh": nn.tanh,
}


def over_tokens(
    layer: Callable[[Array], Array], x: Float[Array, "*tokens E"]
) -> Float[Array, "*tokens F"]:
    """Applies a dense layer to `x` with the leading axes merged: one `[tokens, E]` matmul.

    Otherwise the gradient of the kernel contracts over two axes, which costs a quarter of a training step
    on a CPU. If the ambient mesh splits the length, the axes are not merged, because this would gather
    the length.
    """
    if sequence_mesh() is not None:
        return layer(x)
    flat = layer(x.reshape(-1, x.shape[-1]))
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def finite_padding(
    x: Float[Array, "B L E"], mask: Bool[Array, "B L"] | None, meaning: str = "real tokens, [B L]"
) -> Float[Array, "B L E"]:
    """Replaces NaN and infinity at padding with zero.

    Otherwise they would propagate to the kernel gradient of a dense layer, which sums over all tokens
    (0 · NaN is NaN).

    Raises:
      ValueError: `mask` is not a boolean `[B L]`; `meaning` describes the mask in the message.
    """
    check_mask("mask", mask, x.shape[:2], meaning)
    return x if mask is None else jnp.where(mask[..., None] | jnp.isfinite(x), x, 0)


class LayerInputs(NamedTuple):
    """The inputs of multi-head attention before the projections."""

    query: Float[Array, "B L E"]
    key: Float[Array, "B T E2"]
    value: Float[Array, "B T E3"]
    mask: Bool[Array, "B T"] | None
    query_mask: Bool[Array, "B L"] | None
    is_cross_attention: bool  # False: keys and values are projected from the queries' input

    @classmethod
    def create(
        cls,
        inputs_q: Array,
        inputs_kv: Array | None,
        inputs_k: Array | None,
        inputs_v: Array | None,
        mask: Array | None,
        query_mask: Array | None,
    ) -> "LayerInputs":
        """Validates the arguments of a call, and replaces NaN and infinity at padding with zero.

        Raises:
          ValueError: An input is invalid, `inputs_kv` is given together with `inputs_k` or `inputs_v`,
            `inputs_v` without `inputs_k`, or in cross-attention a `mask` without a `query_mask`.
        """
        if mask is not None and getattr(mask, "ndim", 0) == 3 and "float" in str(mask.dtype):
            raise ValueError(
                f"mask must be boolean [B T], got {mask.dtype} of shape {tuple(mask.shape)}. If it is the"
                " third argument inputs_v of Flax, pass inputs_k and inputs_v by name."
            )
        if inputs_kv is not None and (inputs_k is not None or inputs_v is not None):
            raise ValueError(
                "inputs_kv is the input of both keys and values: pass it alone, or pass inputs_k and"
                " inputs_v by name without it."
            )
        if inputs_v is not None and inputs_k is None:
            raise ValueError("inputs_v needs inputs_k: pass both, or inputs_kv for both.")
        check_array("inputs_q", inputs_q, TOKENS)
        for name, x in (("inputs_kv", inputs_kv), ("inputs_k", inputs_k), ("inputs_v", inputs_v)):
            if x is not None:
                check_array(name, x, TOKENS)
        key = inputs_kv if inputs_k is None else inputs_k
        is_cross_attention = key is not None
        key = finite_padding(inputs_q if key is None else key, mask, "real keys, [B T]")
        if is_cross_attention and mask is not None and query_mask is None:
            raise ValueError(
                "`mask` marks the real keys, so the queries need their own mask: pass query_mask [B L] (all"
                " True if no query is padding). For self-attention, leave out inputs_kv and inputs_k."
            )
        if query_mask is None:
            query = finite_padding(inputs_q, mask)
        else:
            query = finite_padding(inputs_q, query_mask, "real queries, [B L]")
        if inputs_v is not None and inputs_v.shape[:2] != key.shape[:2]:
            raise ValueError(
                "inputs_k and inputs_v must have the same batch and length, got shapes"
                f" {key.shape} and {inputs_v.shape}."
            )
        value = key if inputs_v is None else finite_padding(inputs_v, mask, "real keys, [B T]")
        return cls(query, key, value, mask, query_mask, is_cross_attention)


def attention_features(
    num_heads: int, width: int, qkv_features: int | None, out_features: int | None
) -> tuple[int, int]:
    """Returns the widths of the projections to heads and of the output; None stands for `width`.

    Raises:
      ValueError: A size is invalid, or the width is not divisible by `num_heads`.
    """
    features = width if qkv_features is None else qkv_features
    out_features = width if out_features is None else out_features
    check_size("num_heads", num_heads)
    check_size("qkv_features", features)
    if features % num_heads:
        raise ValueError(
            f"qkv_features must be a multiple of num_heads, got {features} and {num_heads}."
        )
    check_size("out_features", out_features)
    return features, out_features


def new_core(make_core: Any, **attributes: Any) -> nn.Module:
    """Returns a new core; raises ValueError unless `make_core` is a factory of cores."""
    if isinstance(make_core, (str, nn.Module)) or not callable(make_core):
        raise ValueError(
            "make_core must be a factory of cores, such as make_core('nystrom', num_landmarks=64) or"
            f" a core's class, so that each layer has its own core; got {make_core!r}."
        )
    core: nn.Module = make_core(**attributes)
    return core


def projections(core: nn.Module | type[nn.Module]) -> tuple[str, ...]:
    """Returns the names of the projections whose output a core reads."""
    if getattr(core, "reads_value_only", False):
        return ("value",)
    if getattr(core, "shares_query_and_key", False):
        return ("query", "value")
    return ("query", "key", "value")


def attend_in_heads(
    attend: Callable[..., Array],
    names: tuple[str, ...],
    project: Callable[[str, Array], Array],
    inputs: LayerInputs,
    num_heads: int,
    transform: Callable[[str, Array], Array] = lambda name, x: x,
) -> Float[Array, "B L F"]:
    """Projects the inputs to heads, attends, and merges the heads.

    Args:
      attend: Function of query, key, value, mask and query mask, all with heads.
      names: Names of the projections, see `projections`. A missing key is the query, and a missing
        query is the value.
      project: Applies the projection of a name to its input.
      inputs: Inputs of the layer.
      num_heads: H.
      transform: Function of `"query"` or `"key"` and the projected heads, [B, L, H, D].

    Raises:
      ValueError: A projection is missing, so only self-attention is supported, but
        `inputs.is_cross_attention` is True, or the output of `attend` does not have the shape of the query.
    """
    if inputs.is_cross_attention and len(names) < 3:
        raise ValueError(
            "This core supports self-attention only: its keys are its queries, or it reads only the"
            " value. Pass inputs_kv=None, or another core."
        )
    heads = {}
    for name in names:
        x = project(name, getattr(inputs, name))
        x = x.reshape(*x.shape[:-1], num_heads, -1)
        heads[name] = x if name == "value" else transform(name, x)
    query = heads.get("query", heads["value"])
    output = attend(query, heads.get("key", query), heads["value"], inputs.mask, inputs.query_mask)
    check_output(output, query)
    return output.reshape(*output.shape[:-2], -1)


def residual_block(
    norm: Norm,
    x: Float[Array, "B L E"],
    attend: Callable[[Array], Array],
    mlp: Callable[[Array], Array],
    attention_norm: Callable[[Array], Array],
    mlp_norm: Callable[[Array], Array],
) -> Float[Array, "B L E"]:
    """Applies attention and MLP with residual connections; see `EncoderBlock`."""
    if norm == "pre":
        x = x + attend(attention_norm(x))
        return x + mlp(mlp_norm(x))
    x = attention_norm(x + attend(x))
    return mlp_norm(x + mlp(x))


class Layer(nn.Module, kw_only=True):
    """Base class of layers; the attributes have the names and defaults of `nn.Dense`."""

    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    precision: PrecisionLike = None

    @property
    def dense_options(self) -> dict[str, Any]:
        """All attributes, as keyword arguments for another layer."""
        return {
            **self.dtypes,
            "kernel_init": self.kernel_init,
            "bias_init": self.bias_init,
            "precision": self.precision,
        }

    @property
    def dtypes(self) -> dict[str, Any]:
        """The dtypes, as keyword arguments for a layer norm."""
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}


class MultiHeadAttention(Layer):
    """Multi-head attention: projections to query, key and value, a core, and an output projection.

    A core with `shares_query_and_key` has no key projection, and one with `reads_value_only` has neither a
    query nor a key projection. Other attributes are as in `nn.MultiHeadDotProductAttention`,
    but `precision` and `param_dtype` do not apply to the core.

    Attributes:
      num_heads: H.
      make_core: Factory of the core, for example `make_core("nystrom", num_landmarks=64)` or a core
        class. A core instance is not allowed, because layers would share it.
      qkv_features: H · D; None for the width of `inputs_q`.
      out_features: Width of the output; None for the width of `inputs_q`.
      use_bias: If True, the four projections have a bias.
      out_kernel_init: Kernel initializer of the output projection; None for `kernel_init`.
      out_bias_init: Bias initializer of the output projection; None for `bias_init`.
      normalize_qk: If True, a layer norm without bias normalizes queries and keys over D.
      transform_qk: Function applied to queries and to keys, [B, L, H, D], before the core, such as
        `rotary_embedding`.
      deterministic: If True, dropout is disabled. Set either this attribute or the argument of the call.
    """

    num_heads: int
    make_core: Callable[..., nn.Module]
    qkv_features: int | None = None
    out_features: int | None = None
    use_bias: bool = True
    out_kernel_init: Initializer | None = None
    out_bias_init: Initializer | None = None
    normalize_qk: bool = False
    transform_qk: Callable[[Array], Array] | None = None
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self,
        inputs_q: Float[Array, "B L E"],
        inputs_kv: Float[Array, "B T E2"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        query_mask: Bool[Array, "B L"] | None = None,
        *,
        inputs_k: Float[Array, "B T E2"] | None = None,
        inputs_v: Float[Array, "B T E3"] | None = None,
        deterministic: bool | None = None,
    ) -> Float[Array, "B L F"]:
        """Attends from `inputs_q` to `inputs_kv`, or to `inputs_k` and `inputs_v`; without them, to itself.

        Args:
          inputs_q: Input projected to queries, [batch, length, features].
          inputs_kv: Input projected to keys and values; length and width may differ from `inputs_q`.
          mask: True at real tokens of the keys' input: of `inputs_kv` or `inputs_k`, or of `inputs_q` in
            self-attention.
          query_mask: True at real tokens of `inputs_q`. If None, self-attention uses `mask`; in
            cross-attention, a `mask` needs a `query_mask`.
          inputs_k: Input projected to keys, instead of `inputs_kv`.
          inputs_v: Input projected to values, of the same length as `inputs_k`; None for `inputs_k`.
          deterministic: If True, dropout is disabled.

        Raises:
          ValueError: The width is not divisible by `num_heads`, or an input is invalid.
        """
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        inputs = LayerInputs.create(inputs_q, inputs_kv, inputs_k, inputs_v, mask, query_mask)
        features, out_features = attention_features(
            self.num_heads, inputs_q.shape[-1], self.qkv_features, self.out_features
        )
        dense = functools.partial(nn.Dense, use_bias=self.use_bias, **self.dense_options)

        def project(name: str, x: Array) -> Array:
            return over_tokens(dense(features=features, name=name), x)

        def transform(name: str, x: Array) -> Array:
            if self.normalize_qk:
                x = nn.LayerNorm(use_bias=False, **self.dtypes, name=f"{name}_ln")(x)
            return x if self.transform_qk is None else self.transform_qk(x)

        core = new_core(self.make_core, name="core")
        attend = functools.partial(core, deterministic=deterministic)
        attended = attend_in_heads(
            attend, projections(core), project, inputs, self.num_heads, transform
        )
        out = dense(
            features=out_features,
            kernel_init=self.out_kernel_init or self.kernel_init,
            bias_init=self.out_bias_init or self.bias_init,
            name="out",
        )
        return over_tokens(out, attended)


class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention."""

    def __call__(  # type: ignore[override]  # has no inputs_kv
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Float[Array, "B L F"]:
        """Applies self-attention to `x`; `mask` is True at real tokens."""
        return super().__call__(x, None, mask, None, deterministic=deterministic)


class MlpBlock(Layer):
    """Two dense layers with an activation in between, and dropout after each.

    Attributes:
      mlp_dim: Width of the hidden layer.
      activation: `"gelu"` (exact), `"gelu_tanh"` (its approximation), `"relu"` or `"tanh"`.
      dropout_rate: Dropout rate of the output.
      hidden_dropout_rate: Dropout rate of the hidden units; None for `dropout_rate`.
      deterministic: If True, dropout is disabled. Set either this attribute or the argument of the call.
    """

    mlp_dim: int
    activation: Activation = "gelu"
    dropout_rate: float = 0.0
    hidden_dropout_rate: float | None = None
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L E"], *, deterministic: bool | None = None
    ) -> Float[Array, "B L E"]:
        """Applies the block to each token.

        Raises:
          ValueError: `mlp_dim` is below 1, the activation is unknown, or `x` is invalid.
        """
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        check_array("x", x, TOKENS)
        check_size("mlp_dim", self.mlp_dim)
        check_choice("activation", self.activation, Activation)
        rate = self.hidden_dropout_rate
        if rate is not None:
            check_rate("hidden_dropout_rate", rate)

        hidden_layer = nn.Dense(self.mlp_dim, **self.dense_options, name="hidden")
        output_layer = nn.Dense(x.shape[-1], **self.dense_options, name="output")
        dropout = Dropout(self.dropout_rate)
        hidden = ACTIVATIONS[self.activation](over_tokens(hidden_layer, x))
        hidden = (dropout if rate is None else Dropout(rate))(hidden, deterministic=deterministic)
        output = over_tokens(output_layer, hidden)
        return dropout(output, deterministic=deterministic)


class EncoderBlock(Layer):
    """Attention and MLP, each with a residual connection and a layer norm.

    Attributes that are not listed are as in `MultiHeadAttention` and `MlpBlock`.

    Attributes:
      norm: `"pre"` normalizes the inputs of attention and MLP (LRA). `"post"` normalizes the outputs
        after the residual connection (BERT).
      attention_bias: If True, the four projections of attention have a bias.
      layer_norm_epsilon: 1e-5 in the authors' code; the default of Flax is 1e-6.
      dropout_rate: Dropout rate of attention output, MLP output and hidden units of the MLP.
      hidden_dropout_rate: Dropout rate of the MLP's hidden units; None for `dropout_rate`; 0 in BERT.
      deterministic: If True, dropout is disabled. Set either this attribute or the argument of the call.
    """

    num_heads: int
    make_core: Callable[..., nn.Module]
    mlp_dim: int
    norm: Norm = "pre"
    activation: Activation = "gelu"
    qkv_features: int | None = None
    attention_bias: bool = True
    dropout_rate: float = 0.0
    hidden_dropout_rate: float | None = None
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
          ValueError: `norm` is unknown, or an input is invalid.
        """
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        check_array("x", x, TOKENS)
        check_choice("norm", self.norm, Norm)
        x = finite_padding(x, mask)
        layer_norm = functools.partial(nn.LayerNorm, epsilon=self.layer_norm_epsilon, **self.dtypes)

        def attend(x: Array) -> Array:
            attention = SelfAttention(
                self.num_heads,
                self.make_core,
                qkv_features=self.qkv_features,
                use_bias=self.attention_bias,
                **self.dense_options,
                name="attention",
            )
            x = attention(x, mask, deterministic=deterministic)
            return Dropout(self.dropout_rate)(x, deterministic=deterministic)

        mlp = MlpBlock(
            self.mlp_dim,
            self.activation,
            self.dropout_rate,
            self.hidden_dropout_rate,
            **self.dense_options,
            name="mlp",
        )
        attention_norm, mlp_norm = layer_norm(name="attention_norm"), layer_norm(name="mlp_norm")
        apply_mlp = functools.partial(mlp, deterministic=deterministic)
        return residual_block(self.norm, x, attend, apply_mlp, attention_norm, mlp_norm)


class Encoder(nn.Module):
    """A stack of blocks and a final layer norm.

    Attributes:
      num_layers: Number of blocks.
      make_block: Factory of a block, such as
        `functools.partial(EncoderBlock, 2, make_core("nystrom"), 128)`.
      make_final_norm: Factory of the final layer norm, in float32 by default; None: no final norm, for
        post-norm blocks.
      remat: If True, the activations inside a block are recomputed in the backward pass.
      deterministic: If True, dropout is disabled. Set either this attribute or the argument of the call.
    """

    num_layers: int
    make_block: Callable[..., nn.Module]
    make_final_norm: Callable[..., nn.Module] | None = functools.partial(nn.LayerNorm, epsilon=1e-5)
    remat: bool = False
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Float[Array, "B L E"]:
        """Encodes `x`; `mask` is True at real tokens.

        Raises:
          ValueError: `num_layers` is negative, or an input is invalid.
        """
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        check_array("x", x, TOKENS)
        check_size("num_layers", self.num_layers, least=0)
        for name in ("make_block", "make_final_norm"):
            if isinstance(given := getattr(self, name), nn.Module):
                raise ValueError(
                    f"{name} must be a factory, such as functools.partial({type(given).__name__}, …), got"
                    f" the Module {type(given).__name__}(…)."
                )

        def apply(block: nn.Module, x: Array, mask: Array | None) -> Array:
            return block(x, mask, deterministic=deterministic)

        if self.remat:
            apply = nn.remat(apply)
        for layer in range(self.num_layers):
            x = apply(self.make_block(name=f"layer_{layer}"), x, mask)
        return x if self.make_final_norm is None else self.make_final_norm(name="final_norm")(x)
