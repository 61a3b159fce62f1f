"""Attention layers as flax.nnx Modules, with the parameters of the linen layers of the same names.

`to_linen` and `load_linen` convert the parameters. A core remains a linen Module, and `Core` holds its
parameters. Modules start in training mode, as `nnx.Dropout` does: `model.eval()` disables dropout and new
random features, and `model.train()` enables them.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx, traverse_util
from flax.typing import PrecisionLike

from nystromformer_jax.attention.checks import check_array
from nystromformer_jax.attention.dropout import dropout
from nystromformer_jax.cores.parameters import core_params
from nystromformer_jax.layers.encoder import (
    ACTIVATIONS,
    TOKENS,
    Dtype,
    Initializer,
    LayerInputs,
    Norm,
    attend_in_heads,
    attention_features,
    finite_padding,
    new_core,
    over_tokens,
    projections,
    residual_block,
)
from nystromformer_jax.support.values import Activation, check_choice, check_rate, check_size
from nystromformer_jax.typing import Array, Bool, Float

__all__ = [
    "Core",
    "EncoderBlock",
    "MlpBlock",
    "MultiHeadAttention",
    "SelfAttention",
    "load_linen",
    "to_linen",
]

MakeCore = Callable[..., nn.Module]


class DenseOptions(TypedDict, total=False):
    """Keyword arguments for every `nnx.Linear` of a layer; the dtypes are also for layer norms."""

    dtype: Dtype | None
    param_dtype: Dtype
    kernel_init: Initializer
    bias_init: Initializer
    precision: PrecisionLike


class Stochastic(nnx.Module):
    """Base class of Modules with a training and an evaluation mode, and a stream of random numbers.

    Args:
      needs_rng: If False, no random numbers are needed, and the Module has no stream.
      deterministic: Initial mode. `eval()` sets it to True, and `train()` to False.
      rngs: Source of the stream "dropout".
    """

    def __init__(self, needs_rng: bool, deterministic: bool, rngs: nnx.Rngs) -> None:
        self.deterministic = deterministic
        self.rngs = rngs["dropout"].fork() if needs_rng else None

    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets the mode, for `nnx.view`.

        Args:
          deterministic: The new mode; None keeps the current one.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def next_rng(
        self, deterministic: bool | None, rngs: nnx.Rngs | nnx.RngStream | None
    ) -> tuple[bool, Array | None]:
        """Returns the mode of a call, and a random key if the call needs one.

        Arguments of a call take precedence over attributes.
        """
        deterministic = self.deterministic if deterministic is None else deterministic
        if deterministic or self.rngs is None:
            return deterministic, None
        stream = self.rngs if rngs is None else rngs
        if isinstance(stream, jax.Array):  # several layers would draw the same numbers
            raise ValueError("rngs must be an nnx.Rngs, got a key: pass nnx.Rngs(key).")
        return deterministic, (stream["dropout"] if isinstance(stream, nnx.Rngs) else stream)()


class Dropout(Stochastic):
    """Applies `nystromformer_jax.attention.dropout.dropout`."""

    def __init__(self, rate: float, *, deterministic: bool = False, rngs: nnx.Rngs) -> None:
        check_rate("dropout_rate", rate)
        super().__init__(rate > 0, deterministic, rngs)
        self.rate = rate

    def __call__(
        self,
        x: Float[Array, "*shape"],
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Float[Array, "*shape"]:
        """Applies dropout, unless the mode is deterministic or the rate is 0."""
        _, rng = self.next_rng(deterministic, rngs)
        return x if rng is None else dropout(rng, x, self.rate)


class Core(Stochastic):
    """Holds the parameters of an attention core and applies the core, which is a linen Module.

    Args:
      make_core: Factory of the core. The constant random numbers of Performer and Reformer are those of a
        single linen layer; several layers need different seeds, or the option `layer_name`.
      num_heads: H.
      head_dim: D.
      deterministic: If True, dropout and redrawing of random features are disabled.
      rngs: Random numbers; the streams are "params" and "dropout".

    Raises:
      ValueError: The sizes of the parameters depend on the length of the input.
    """

    def __init__(
        self,
        make_core: MakeCore,
        num_heads: int,
        head_dim: int,
        *,
        deterministic: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        core = new_core(make_core, parent=None)
        has_stream = "dropout" in rngs or "default" in rngs
        super().__init__(getattr(core, "needs_dropout_rng", has_stream), deterministic, rngs)
        self.make_core = make_core
        self.projections = projections(core)
        # As in a linen layer of its own, whose core has this path.
        self.layer_name = getattr(core, "layer_name", "") or "core"
        for name, value in core_params(core, rngs.params(), num_heads, head_dim).items():
            setattr(self, name, _as_nnx(value))

    def __call__(
        self,
        query: Float[Array, "B L H D"],
        key: Float[Array, "B T H D"],
        value: Float[Array, "B T H D"],
        mask: Bool[Array, "B T"] | None = None,
        query_mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Float[Array, "B L H D"]:
        """Returns the attention output; see `AttentionCore`."""
        deterministic, rng = self.next_rng(deterministic, rngs)
        core = new_core(self.make_core, parent=None)
        if hasattr(core, "layer_name"):
            core = core.clone(layer_name=self.layer_name)
        output: Any = core.apply(
            to_linen(self),
            *(query, key, value, mask, query_mask),
            deterministic=deterministic,
            rngs=None if rng is None else {"dropout": rng},
        )
        return output


class MultiHeadAttention(nnx.Module):
    """Multi-head attention; see the linen `MultiHeadAttention`.

    Args:
      num_heads: H.
      in_features: Width of `inputs_q`.
      make_core: Factory of the core, for example `make_core("nystrom", num_landmarks=64)`. Linformer
        attention needs its option `max_len`.
      in_kv_features: Width of the inputs of keys and values; None for `in_features`.
      qkv_features: H · D; None for `in_features`.
      out_features: Width of the output; None for `in_features`.
      use_bias: If True, the projections have a bias.
      normalize_qk: If True, a layer norm without bias normalizes queries and keys over D.
      transform_qk: Function applied to queries and to keys, [B, L, H, D], before the core, such as
        `rotary_embedding`.
      out_kernel_init: Kernel initializer of the output projection; None for `kernel_init`.
      out_bias_init: Bias initializer of the output projection; None for `bias_init`.
      deterministic: If True, dropout is disabled.
      rngs: Random numbers; the streams are "params" and "dropout".
      **dense_options: `dtype`, `param_dtype`, `kernel_init`, `bias_init` and `precision`, as in
        `nnx.Linear`.
    """

    query: nnx.Linear  # absent if the core reads the value only
    key: nnx.Linear  # absent if the core has no keys of its own
    value: nnx.Linear

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        make_core: MakeCore,
        *,
        in_kv_features: int | None = None,
        qkv_features: int | None = None,
        out_features: int | None = None,
        use_bias: bool = True,
        normalize_qk: bool = False,
        transform_qk: Callable[[Array], Array] | None = None,
        out_kernel_init: Initializer | None = None,
        out_bias_init: Initializer | None = None,
        deterministic: bool = False,
        rngs: nnx.Rngs,
        **dense_options: Unpack[DenseOptions],
    ) -> None:
        in_kv_features = in_features if in_kv_features is None else in_kv_features
        check_size("in_features", in_features)
        check_size("in_kv_features", in_kv_features)
        features, out_features = attention_features(
            num_heads, in_features, qkv_features, out_features
        )
        self.num_heads = num_heads
        self.normalize_qk = normalize_qk
        self.transform_qk = transform_qk
        self.core = Core(
            make_core,
            num_heads,
            features // num_heads,
            deterministic=deterministic,
            rngs=rngs,
        )
        dense = functools.partial(nnx.Linear, use_bias=use_bias, rngs=rngs, **dense_options)
        for name in self.core.projections:
            width = in_features if name == "query" else in_kv_features
            setattr(self, name, dense(width, features))
            if normalize_qk and name != "value":
                norm = _layer_norm(features // num_heads, dense_options, use_bias=False, rngs=rngs)
                setattr(self, f"{name}_ln", norm)
        inits = {"kernel_init": out_kernel_init, "bias_init": out_bias_init}
        given: Any = {name: init for name, init in inits.items() if init is not None}
        self.out = dense(features, out_features, **given)

    def __call__(
        self,
        inputs_q: Float[Array, "B L E"],
        inputs_kv: Float[Array, "B T E2"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        query_mask: Bool[Array, "B L"] | None = None,
        *,
        inputs_k: Float[Array, "B T E2"] | None = None,
        inputs_v: Float[Array, "B T E2"] | None = None,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
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
          deterministic: If True, dropout is disabled; None for the mode of the Module.
          rngs: Random numbers of dropout: a stream, or `nnx.Rngs` with the stream "dropout"; None for the
            stream of the Module.

        Raises:
          ValueError: An input is invalid.
        """
        inputs = LayerInputs.create(inputs_q, inputs_kv, inputs_k, inputs_v, mask, query_mask)
        attend = functools.partial(self.core, deterministic=deterministic, rngs=rngs)

        def project(name: str, x: Array) -> Array:
            return _linear(name, getattr(self, name), x)

        def transform(name: str, x: Array) -> Array:
            x = getattr(self, f"{name}_ln")(x) if self.normalize_qk else x
            return x if self.transform_qk is None else self.transform_qk(x)

        attended = attend_in_heads(
            attend, self.core.projections, project, inputs, self.num_heads, transform
        )
        return _linear("out", self.out, attended)


class SelfAttention(MultiHeadAttention):
    """Multi-head self-attention; arguments are as in `MultiHeadAttention`."""

    def __call__(  # type: ignore[override]  # has no inputs_kv
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Float[Array, "B L F"]:
        """Applies self-attention to `x`; `mask` is True at real tokens."""
        return super().__call__(x, None, mask, deterministic=deterministic, rngs=rngs)


class MlpBlock(nnx.Module):
    """Two dense layers with an activation in between, and dropout after each.

    Args:
      in_features: Width of the input and the output.
      mlp_dim: Width of the hidden layer.
      activation: `"gelu"` (exact), `"gelu_tanh"` (its approximation), `"relu"` or `"tanh"`.
      dropout_rate: Dropout rate of the output.
      hidden_dropout_rate: Dropout rate of the hidden units; None for `dropout_rate`.
      deterministic: If True, dropout is disabled.
      rngs: Random numbers; the streams are "params" and "dropout".
      **dense_options: `dtype`, `param_dtype`, `kernel_init`, `bias_init` and `precision`, as in
        `nnx.Linear`.
    """

    def __init__(
        self,
        in_features: int,
        mlp_dim: int,
        *,
        activation: Activation = "gelu",
        dropout_rate: float = 0.0,
        hidden_dropout_rate: float | None = None,
        deterministic: bool = False,
        rngs: nnx.Rngs,
        **dense_options: Unpack[DenseOptions],
    ) -> None:
        check_size("in_features", in_features)
        check_size("mlp_dim", mlp_dim)
        check_choice("activation", activation, Activation)
        if hidden_dropout_rate is not None:
            check_rate("hidden_dropout_rate", hidden_dropout_rate)
        self.activation = activation
        self.hidden = nnx.Linear(in_features, mlp_dim, rngs=rngs, **dense_options)
        self.output = nnx.Linear(mlp_dim, in_features, rngs=rngs, **dense_options)
        rate = dropout_rate if hidden_dropout_rate is None else hidden_dropout_rate
        self.hidden_dropout = Dropout(rate, deterministic=deterministic, rngs=rngs)
        self.output_dropout = Dropout(dropout_rate, deterministic=deterministic, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B L E"],
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Float[Array, "B L E"]:
        """Applies the block to each token."""
        check_array("x", x, TOKENS)
        hidden = ACTIVATIONS[self.activation](_linear("hidden", self.hidden, x))
        hidden = self.hidden_dropout(hidden, deterministic=deterministic, rngs=rngs)
        output = _linear("output", self.output, hidden)
        return self.output_dropout(output, deterministic=deterministic, rngs=rngs)


class EncoderBlock(nnx.Module):
    """Attention and MLP, each with a residual connection and a layer norm.

    Arguments that are not listed are as in `MultiHeadAttention` and `MlpBlock`.

    Args:
      num_heads: H.
      in_features: E, width of the input and the output.
      make_core: Factory of the core.
      mlp_dim: Width of the MLP's hidden layer.
      norm: `"pre"` normalizes the inputs of attention and MLP (LRA). `"post"` normalizes the outputs
        after the residual connection (BERT).
      attention_bias: If True, the projections of attention have a bias.
      dropout_rate: Dropout rate of attention output, MLP output and hidden units of the MLP.
      hidden_dropout_rate: Dropout rate of the MLP's hidden units; None for `dropout_rate`; 0 in BERT.
      layer_norm_epsilon: 1e-5 in the authors' code; the default of Flax is 1e-6.
      **dense_options: `dtype`, `param_dtype`, `kernel_init`, `bias_init` and `precision`, as in
        `nnx.Linear`.
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        make_core: MakeCore,
        mlp_dim: int,
        *,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        qkv_features: int | None = None,
        attention_bias: bool = True,
        dropout_rate: float = 0.0,
        hidden_dropout_rate: float | None = None,
        layer_norm_epsilon: float = 1e-5,
        deterministic: bool = False,
        rngs: nnx.Rngs,
        **dense_options: Unpack[DenseOptions],
    ) -> None:
        check_choice("norm", norm, Norm)
        self.norm = norm
        self.attention = SelfAttention(
            num_heads,
            in_features,
            make_core,
            qkv_features=qkv_features,
            use_bias=attention_bias,
            deterministic=deterministic,
            rngs=rngs,
            **dense_options,
        )
        core = self.attention.core
        core.layer_name = "attention/core" if core.layer_name == "core" else core.layer_name
        self.attention_dropout = Dropout(dropout_rate, deterministic=deterministic, rngs=rngs)
        self.mlp = MlpBlock(
            in_features,
            mlp_dim,
            activation=activation,
            dropout_rate=dropout_rate,
            hidden_dropout_rate=hidden_dropout_rate,
            deterministic=deterministic,
            rngs=rngs,
            **dense_options,
        )
        options: Any = {"epsilon": layer_norm_epsilon, "rngs": rngs}
        self.attention_norm = _layer_norm(in_features, dense_options, **options)
        self.mlp_norm = _layer_norm(in_features, dense_options, **options)

    def __call__(
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ) -> Float[Array, "B L E"]:
        """Applies the block; `mask` is True at real tokens."""
        check_array("x", x, TOKENS)
        x = finite_padding(x, mask)
        mode: Any = {"deterministic": deterministic, "rngs": rngs}

        def attend(x: Array) -> Array:
            return self.attention_dropout(self.attention(x, mask, **mode), **mode)

        mlp = functools.partial(self.mlp, **mode)
        return residual_block(self.norm, x, attend, mlp, self.attention_norm, self.mlp_norm)


def to_linen(module: nnx.Module) -> dict[str, Any]:
    """Returns the parameters of `module` as variables of the linen Module of the same name."""
    return {"params": nnx.to_pure_dict(nnx.state(module, nnx.Param))}


def load_linen(module: nnx.Module, variables: Mapping[str, Any]) -> None:
    """Replaces the parameters of `module` with those of the linen Module of the same name.

    Args:
      module: Module of this package, or any NNX Module with the same tree of parameters.
      variables: `{"params": …}`, as returned by `init` of the linen Module. Other collections are ignored.
        The dtypes of the arrays are kept.

    Raises:
      ValueError: A parameter is missing, is unexpected, has a different shape or has integers in place of
        floats.
    """
    if "params" not in variables:
        raise ValueError(
            f'variables must have the collection "params", got {sorted(variables)}. Pass'
            ' {"params": …}, as returned by init.'
        )
    state = nnx.state(module, nnx.Param)
    expected = traverse_util.flatten_dict(nnx.to_pure_dict(state))
    given = traverse_util.flatten_dict(nn.meta.unbox(variables["params"]))
    for kind, paths in (
        ("lack the", expected.keys() - given.keys()),
        ("have unexpected", given.keys() - expected.keys()),
    ):
        if paths:
            names = ", ".join(sorted("/".join(map(str, path)) for path in paths))
            raise ValueError(f"The linen variables {kind} parameters {names}.")
    for path, value in expected.items():
        if jnp.shape(given[path]) != value.shape:
            raise ValueError(
                f"The parameter {'/'.join(map(str, path))} must have shape {value.shape}, got"
                f" {jnp.shape(given[path])}."
            )
        dtype = jnp.result_type(given[path])
        if jnp.issubdtype(value.dtype, jnp.floating) and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(
                f"The parameter {'/'.join(map(str, path))} must have a float dtype, got {dtype}."
            )
    arrays = {path: jnp.asarray(value) for path, value in given.items()}
    nnx.replace_by_pure_dict(state, traverse_util.unflatten_dict(arrays))
    nnx.update(module, state)


def _as_nnx(params: Any) -> Any:
    """Returns a tree of arrays as a tree of `nnx.Param`."""
    if isinstance(params, Mapping):
        return nnx.Dict({name: _as_nnx(value) for name, value in params.items()})
    return nnx.Param(params)


class _LayerNorm(nnx.LayerNorm):
    """A layer norm that rounds its output to `dtype`, as in linen; `nnx.LayerNorm` rounds its input first."""

    def __init__(self, features: int, *, dtype: Any = None, **options: Any) -> None:
        super().__init__(features, **options)
        self.output_dtype = dtype

    def __call__(self, x: Float[Array, "*batch E"], **options: Any) -> Float[Array, "*batch E"]:
        output = super().__call__(x, **options)
        return output if self.output_dtype is None else output.astype(self.output_dtype)


def _layer_norm(features: int, dense_options: DenseOptions, **options: Any) -> nnx.LayerNorm:
    """Returns a layer norm with the dtypes of `dense_options`."""
    types: Any = {
        name: dense_options[name] for name in ("dtype", "param_dtype") if name in dense_options
    }
    return _LayerNorm(features, **types, **options)


def _linear(name: str, layer: nnx.Linear, x: Float[Array, "B L E"]) -> Float[Array, "B L F"]:
    """Applies a layer to each token; raises ValueError unless `x` has the layer's width."""
    if x.shape[-1] != layer.in_features:
        raise ValueError(
            f"The input of {name!r} must have {layer.in_features} features, as set at construction; got"
            f" {x.shape[-1]}."
        )
    return over_tokens(layer, x)
