"""Modules over the functions: self-attention around any core, and the Transformer encoder."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from nystromformer_jax.dropout import Dropout
from nystromformer_jax.sequence_parallel import SEQUENCE_AXIS
from nystromformer_jax.sizes import check_size
from nystromformer_jax.typing import Array, Bool, Float

Initializer = Callable[..., Array]
Dtype = Any

# PyTorch's exact GELU is the authors'; flax's default is the tanh approximation.
Activation = Literal["gelu", "gelu_tanh", "relu", "tanh"]
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "tanh": nn.tanh,
}


def over_tokens(layer: nn.Module, x: Float[Array, "*tokens E"]) -> Float[Array, "*tokens F"]:
    """Applies a dense layer to all leading axes at once: one `[tokens, E]` matmul, backwards too.

    Left to itself, the gradient of the layer's kernel contracts over two axes, which costs a quarter
    of a training step on a CPU. Where the ambient mesh splits the length it is left to itself: one axis
    of batch and length would have to be gathered.
    """
    if jax.sharding.get_abstract_mesh().shape.get(SEQUENCE_AXIS, 1) > 1:
        return layer(x)
    flat = layer(x.reshape(-1, x.shape[-1]))
    return flat.reshape(*x.shape[:-1], flat.shape[-1])


def check_tokens(name: str, x: Array) -> None:
    """Refuses what is no sequence of vectors, in words."""
    if x.ndim != 3 or 0 in x.shape or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(
            f"{name} must be [batch, length, width] of a floating-point type, no axis empty; got shape"
            f" {x.shape} of {x.dtype}."
        )


class MultiHeadAttention(nn.Module):
    """Projects to query, key and value, attends by a core, and projects back.

    A core that `shares_query_and_key` gets the queries as keys, and no projection of keys is made.

    Attributes are those of `nn.MultiHeadDotProductAttention` where they mean the same.

    Attributes:
      num_heads: H.
      make_core: Makes the attention itself, for example `make_core("nystrom", num_landmarks=64)` or
        a core's class. A factory and no instance: one instance would share its parameters.
      qkv_features: H · D; None for the width of the queries' input.
      out_features: Width of the output; None for the width of the queries' input.
      use_bias: Whether the four projections have one.
      dtype: Of the activations; None follows input and parameters.
      param_dtype: Of the parameters.
      precision: Of the projections' matmuls.
      kernel_init: Of the projections' kernels.
      bias_init: Of their biases.
      out_kernel_init: Of the last projection's kernel; None for `kernel_init`.
      out_bias_init: Of its bias; None for `bias_init`.
    """

    num_heads: int
    make_core: Callable[..., nn.Module]
    qkv_features: int | None = None
    out_features: int | None = None
    use_bias: bool = True
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    precision: Any = None
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()
    out_kernel_init: Initializer | None = None
    out_bias_init: Initializer | None = None

    @nn.compact
    def __call__(
        self,
        inputs_q: Float[Array, "B L E"],
        inputs_kv: Float[Array, "B T E2"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        query_mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L F"]:
        """Attends from `inputs_q` to `inputs_kv`, or to itself where that is None.

        Args:
          inputs_q: What asks.
          inputs_kv: What is asked; may have another length and width.
          mask: True at real tokens of what is asked.
          query_mask: True at real tokens of what asks; None: it carries `mask`.
          deterministic: Whether nothing is dropped.

        Raises:
          ValueError: A width that the heads do not divide, what is no sequence of vectors, and what
            the core refuses.
        """
        check_tokens("inputs_q", inputs_q)
        if inputs_kv is not None:
            check_tokens("inputs_kv", inputs_kv)
        features = inputs_q.shape[-1] if self.qkv_features is None else self.qkv_features
        check_size("num_heads", self.num_heads)
        check_size("qkv_features", features)
        if features % self.num_heads:
            raise ValueError(
                f"qkv_features must be a multiple of num_heads, got {features} and {self.num_heads}."
            )
        out_features = inputs_q.shape[-1] if self.out_features is None else self.out_features
        check_size("out_features", out_features)
        crosses = inputs_kv is not None
        inputs_kv = inputs_q if inputs_kv is None else inputs_kv

        def project(
            name: str,
            x: Array,
            features: int,
            kernel_init: Initializer = self.kernel_init,
            bias_init: Initializer = self.bias_init,
        ) -> Array:
            layer = nn.Dense(
                features,
                use_bias=self.use_bias,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                precision=self.precision,
                name=name,
                kernel_init=kernel_init,
                bias_init=bias_init,
            )
            return over_tokens(layer, x)

        def heads(x: Array) -> Array:
            return x.reshape(*x.shape[:-1], self.num_heads, features // self.num_heads)

        core = self.make_core(name="core")
        query = heads(project("query", inputs_q, features))
        shared = getattr(core, "shares_query_and_key", False)
        if shared and crosses:
            raise ValueError(
                "This core takes its queries for its keys, so it attends within one sequence: pass"
                " inputs_kv=None, or another core."
            )
        attended = core(
            query,
            query if shared else heads(project("key", inputs_kv, features)),
            heads(project("value", inputs_kv, features)),
            mask,
            query_mask,
            deterministic=deterministic,
        )
        return project(
            "out",
            attended.reshape(*attended.shape[:-2], features),
            out_features,
            self.out_kernel_init or self.kernel_init,
            self.out_bias_init or self.bias_init,
        )


class SelfAttention(MultiHeadAttention):
    """`MultiHeadAttention` from a sequence to itself."""

    def __call__(  # type: ignore[override]  # attends to itself: one input fewer, on purpose
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L F"]:
        """Attends over `x`; `mask` is True at real tokens."""
        return super().__call__(x, None, mask, None, deterministic=deterministic)


class MlpBlock(nn.Module):
    """Two dense layers with an activation between, dropout after each of them.

    Attributes:
      mlp_dim: Width between the layers.
      activation: `"gelu"` is the exact one.
      dropout_rate: Of the output.
      hidden_dropout_rate: Of the hidden units; None for `dropout_rate`.
    """

    mlp_dim: int
    activation: Activation = "gelu"
    dropout_rate: float = 0.0
    hidden_dropout_rate: float | None = None
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()

    @nn.compact
    def __call__(self, x: Float[Array, "B L E"], *, deterministic: bool) -> Float[Array, "B L E"]:
        """Applies the block to each token.

        Raises:
          ValueError: A width below 1, an unknown activation, or what is no sequence of vectors.
        """
        check_tokens("x", x)
        check_size("mlp_dim", self.mlp_dim)
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(map(repr, ACTIVATIONS))}, got"
                f" {self.activation!r}."
            )

        def dense(name: str, features: int) -> nn.Dense:
            return nn.Dense(
                features,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                kernel_init=self.kernel_init,
                bias_init=self.bias_init,
                name=name,
            )

        dropout = Dropout(self.dropout_rate)
        rate = self.hidden_dropout_rate
        hidden = ACTIVATIONS[self.activation](over_tokens(dense("hidden", self.mlp_dim), x))
        hidden = (dropout if rate is None else Dropout(rate))(hidden, deterministic=deterministic)
        output = over_tokens(dense("output", x.shape[-1]), hidden)
        return dropout(output, deterministic=deterministic)


class EncoderBlock(nn.Module):
    """Attention and MLP, each with a residual connection and a layer norm.

    Attributes:
      num_heads: H.
      make_core: Makes the attention; see `SelfAttention`.
      mlp_dim: Width of the MLP.
      norm: `"pre"` normalises what enters each half (LRA), `"post"` what leaves it (BERT).
      qkv_features: H · D; None for the width of the input.
      attention_bias: Whether the attention's four projections have one.
      layer_norm_epsilon: 1e-5 in the authors' code; 1e-6 is flax's and Google's default.
      dropout_rate: Of the attention output, the MLP's hidden units and its output.
      hidden_dropout_rate: Of the MLP's hidden units where it differs; BERT has 0.
    """

    num_heads: int
    make_core: Callable[..., nn.Module]
    mlp_dim: int
    norm: Literal["pre", "post"] = "pre"
    activation: Activation = "gelu"
    qkv_features: int | None = None
    attention_bias: bool = True
    dropout_rate: float = 0.0
    hidden_dropout_rate: float | None = None
    layer_norm_epsilon: float = 1e-5
    dtype: Dtype | None = None
    param_dtype: Dtype = jnp.float32
    kernel_init: Initializer = nn.initializers.lecun_normal()
    bias_init: Initializer = nn.initializers.zeros_init()

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L E"]:
        """Applies the block; `mask` is True at real tokens.

        Raises:
          ValueError: An unknown order of norms, and what its parts refuse.
        """
        check_tokens("x", x)
        if self.norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post', got {self.norm!r}.")
        weights = {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "kernel_init": self.kernel_init,
            "bias_init": self.bias_init,
        }

        def layer_norm(name: str) -> nn.LayerNorm:
            return nn.LayerNorm(
                epsilon=self.layer_norm_epsilon,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                name=name,
            )

        def attend(x: Array) -> Array:
            attention = SelfAttention(
                self.num_heads,
                self.make_core,
                qkv_features=self.qkv_features,
                use_bias=self.attention_bias,
                **weights,
                name="attention",
            )
            x = attention(x, mask, deterministic=deterministic)
            return Dropout(self.dropout_rate)(x, deterministic=deterministic)

        mlp = MlpBlock(
            self.mlp_dim,
            self.activation,
            self.dropout_rate,
            self.hidden_dropout_rate,
            **weights,
            name="mlp",
        )
        attention_norm, mlp_norm = layer_norm("attention_norm"), layer_norm("mlp_norm")
        if self.norm == "pre":
            x = x + attend(attention_norm(x))
            return x + mlp(mlp_norm(x), deterministic=deterministic)
        x = attention_norm(x + attend(x))
        return mlp_norm(x + mlp(x, deterministic=deterministic))


class Encoder(nn.Module):
    """A stack of blocks, then a last layer norm.

    Attributes:
      num_layers: How many blocks.
      make_block: Makes a block; for example `functools.partial(EncoderBlock, 2, make_core, 128)`.
      make_final_norm: Makes the last layer norm; None for none (post-norm blocks end in one).
      remat: Whether a block's insides are computed again for the gradient instead of kept.
    """

    num_layers: int
    make_block: Callable[..., nn.Module]
    make_final_norm: Callable[..., nn.Module] | None = functools.partial(nn.LayerNorm, epsilon=1e-5)
    remat: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L E"],
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L E"]:
        """Encodes `x`; `mask` is True at real tokens.

        Raises:
          ValueError: Fewer than no layers, and what the blocks refuse.
        """
        check_tokens("x", x)
        check_size("num_layers", self.num_layers, least=0)

        def apply(block: nn.Module, x: Array, mask: Array | None) -> Array:
            return block(x, mask, deterministic=deterministic)

        if self.remat:
            apply = nn.remat(apply)
        for layer in range(self.num_layers):
            x = apply(self.make_block(name=f"layer_{layer}"), x, mask)
        return x if self.make_final_norm is None else self.make_final_norm(name="final_norm")(x)
