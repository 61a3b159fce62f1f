"""BERT-style models: embeddings, a post-norm encoder around any attention, and heads."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.linen as nn
import jax.numpy as jnp

from nystromformer_jax.attention import Implementation
from nystromformer_jax.cores import make_core
from nystromformer_jax.dropout import Dropout
from nystromformer_jax.landmarks import Layout
from nystromformer_jax.modules import ACTIVATIONS, Activation, Encoder, EncoderBlock
from nystromformer_jax.pinv import Start
from nystromformer_jax.sizes import check_size
from nystromformer_jax.spelling import nearest
from nystromformer_jax.typing import Array, Bool, Float, Int

AttentionName = Literal[
    "nystrom", "softmax", "reformer", "linformer", "performer", "longformer", "linear"
]

# BERT-base of Devlin et al. 2019 (arXiv:1810.04805), BERT-small of Turc et al. 2019 (arXiv:1908.08962).
PRESETS: dict[str, dict[str, int]] = {
    "small": {"num_layers": 4, "embed_dim": 512, "num_heads": 8, "mlp_dim": 2048},
    "base": {"num_layers": 12, "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NystromformerConfig:
    """Sizes and choices of a model; the defaults are BERT-base's, with Nyström attention.

    Args:
      vocab_size: V, rows of the token embedding.
      max_len: rows of the position embedding, all of them usable.
      embed_dim: E.
      num_types: rows of the token type embedding (sentence A and B).
      attention: a choice, and never inferred from sizes. "nystrom" and "softmax" read the fields below;
        the others stand beside them with their defaults, to be compared.
      num_landmarks: M, of Nyström attention.
      conv_kernel_size: of the value's convolution, odd, 0 for none. The authors have 33 at 512 tokens and
        65 at 4,096. Softmax attention has it too, as in Hugging Face's exact mode: set 0 for BERT's.
      pinv_iters: see `nystrom_attention`, as for the four that follow.
      attention_dropout_rate: of softmax attention's weights; landmark attention has none.
      activation: of MLPs and the masked-token head; BERT's is "gelu", the authors' "gelu_tanh".
      dropout_rate: of embeddings, attention output, MLP output and heads.
      num_labels: C, of the classification heads.
      classifier_activation: between the two layers of the sequence classifier; None for `activation`.
      initializer_range: standard deviation of kernels and embeddings.
      dtype: of activations; parameters, layer norms' statistics and logits stay float32.
      sequence_axis: of the ambient mesh, over which Nyström attention splits the length; None: it is
        whole. This and `remat` say how the model is computed, and are not saved with it.
      remat: see `Encoder`.
    """

    vocab_size: int
    max_len: int = 512
    embed_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    num_types: int = 2
    attention: AttentionName = "nystrom"
    num_landmarks: int = 64
    conv_kernel_size: int = 33
    pinv_iters: int = 6
    pinv_start: Start = "exact"
    landmark_layout: Layout = "real"
    mask_conv: bool = True
    implementation: Implementation = "auto"
    attention_dropout_rate: float = 0.1
    activation: Activation = "gelu_tanh"
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-5
    num_labels: int = 2
    classifier_activation: Activation | None = "tanh"
    initializer_range: float = 0.02
    dtype: Literal["float32", "bfloat16"] = "float32"
    sequence_axis: str | None = None
    remat: bool = False

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "max_len",
            "embed_dim",
            "num_layers",
            "num_heads",
            "mlp_dim",
            "num_types",
            "num_labels",
        ):
            check_size(name, getattr(self, name))
        if self.num_layers > 1000:  # each is traced by itself
            raise ValueError(f"num_layers must be 1,000 or fewer, got {self.num_layers}.")
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads, got {self.embed_dim} and {self.num_heads}."
            )
        for name in ("dropout_rate", "attention_dropout_rate"):
            rate = getattr(self, name)
            if not isinstance(rate, int | float) or not 0 <= rate < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, got {rate!r}.")
        for name, known in (
            ("attention", get_args(AttentionName)),
            ("activation", get_args(Activation)),
            ("classifier_activation", (None, *get_args(Activation))),
            ("dtype", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, known))}, got"
                    f" {getattr(self, name)!r}."
                )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "NystromformerConfig":
        """BERT-"small" or BERT-"base", with `changes`; `vocab_size` is always among these.

        Raises:
          ValueError: An unknown preset.
        """
        if name not in PRESETS:
            raise ValueError(f"There is no preset {name!r}{nearest(name, PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    def make_core(self) -> Callable[..., nn.Module]:
        """A factory of the attention that `attention` names; see `nystromformer_jax.make_core`."""
        convolution = {"conv_kernel_size": self.conv_kernel_size, "mask_conv": self.mask_conv}
        if self.attention == "nystrom":
            return make_core(
                "nystrom",
                num_landmarks=self.num_landmarks,
                pinv_iters=self.pinv_iters,
                pinv_start=self.pinv_start,
                landmark_layout=self.landmark_layout,
                implementation=self.implementation,
                sequence_axis=self.sequence_axis,
                **convolution,
            )
        if self.attention == "softmax":
            return make_core("softmax", dropout_rate=self.attention_dropout_rate, **convolution)
        return make_core(self.attention)


def _kernel_init(config: NystromformerConfig) -> Callable[..., Array]:
    return nn.initializers.normal(config.initializer_range)


def _dense(config: NystromformerConfig, features: int, name: str) -> nn.Dense:
    return nn.Dense(features, dtype=config.dtype, kernel_init=_kernel_init(config), name=name)


def _layer_norm(config: NystromformerConfig, name: str) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=config.layer_norm_epsilon, dtype=config.dtype, name=name)


class Embeddings(nn.Module):
    """Token, position and type embeddings, summed; then layer norm and dropout."""

    config: NystromformerConfig

    def setup(self) -> None:
        """Makes the parts; flax calls it."""
        config = self.config
        embed = functools.partial(
            nn.Embed,
            features=config.embed_dim,
            embedding_init=_kernel_init(config),
            dtype=config.dtype,
        )
        self.word = embed(config.vocab_size)
        self.position = embed(config.max_len)
        self.type = embed(config.num_types)
        self.norm = nn.LayerNorm(epsilon=config.layer_norm_epsilon, dtype=config.dtype)
        self.dropout = Dropout(config.dropout_rate)

    def __call__(
        self, inputs: Int[Array, "B L"], types: Int[Array, "B L"] | None, *, deterministic: bool
    ) -> Float[Array, "B L E"]:
        """Embeds token ids; the first token has the first position."""
        length = inputs.shape[1]
        types = jnp.zeros_like(inputs) if types is None else types
        positions = self.position(jnp.arange(length))
        x = self.word(inputs) + positions[None] + self.type(types)
        return self.dropout(self.norm(x), deterministic=deterministic)

    def attend(self, x: Float[Array, "*tokens E"]) -> Float[Array, "*tokens V"]:
        """Logits against the token embeddings, in float32."""
        table = self.word.embedding.astype(self.config.dtype)
        return jnp.einsum("...E,VE->...V", x, table, preferred_element_type=jnp.float32)


class Nystromformer(nn.Module):
    """Embeddings and encoder, without a head.

    Differs from pre-norm encoders: no last layer norm, for post-norm blocks end in one.
    """

    config: NystromformerConfig

    def setup(self) -> None:
        """Makes the parts; flax calls it."""
        config = self.config
        block = functools.partial(
            EncoderBlock,
            config.num_heads,
            config.make_core(),
            config.mlp_dim,
            norm="post",
            activation=config.activation,
            dropout_rate=config.dropout_rate,
            hidden_dropout_rate=0.0,
            layer_norm_epsilon=config.layer_norm_epsilon,
            dtype=config.dtype,
            kernel_init=_kernel_init(config),
        )
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config.num_layers, block, make_final_norm=None, remat=config.remat)

    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L E"]:
        """Gives the last hidden states.

        Args:
          inputs: Token ids, at most `config.max_len` of them.
          mask: True at real tokens; None: all are.
          types: 0 in the first sentence, 1 in the second; None: 0 everywhere.
          deterministic: Whether nothing is dropped.

        Raises:
          ValueError: More tokens than positions, or what are no token ids `[B L]`.
        """
        for name, ids in (("inputs", inputs), ("types", types)):
            if ids is not None and (
                ids.shape != inputs.shape
                or ids.ndim != 2
                or 0 in ids.shape
                or not jnp.issubdtype(ids.dtype, jnp.integer)
            ):
                raise ValueError(
                    f"{name} must be whole numbers [B L], no axis empty, and types as long as inputs;"
                    f" got shape {ids.shape} of {ids.dtype}."
                )
        if inputs.shape[1] > self.config.max_len:
            raise ValueError(
                f"{inputs.shape[1]} tokens are more than the {self.config.max_len} positions of this"
                " model: cut them, or load the model with a larger max_len."
            )
        x = self.embeddings(inputs, types, deterministic=deterministic)
        return self.encoder(x, mask, deterministic=deterministic)

    def attend(self, x: Float[Array, "*tokens E"]) -> Float[Array, "*tokens V"]:
        """Logits against the token embeddings, in float32."""
        return self.embeddings.attend(x)


class MaskedTokenHead(nn.Module):
    """Dense, activation, layer norm, and the token embeddings again, with a bias of their own.

    Attributes:
      attend: Multiplies by the token embeddings.
    """

    config: NystromformerConfig
    attend: Callable[[Array], Array]

    @nn.compact
    def __call__(self, hidden: Float[Array, "B P E"]) -> Float[Array, "B P V"]:
        """Gives logits over the vocabulary, in float32."""
        config = self.config
        x = ACTIVATIONS[config.activation](_dense(config, config.embed_dim, "dense")(hidden))
        bias = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,))
        return self.attend(_layer_norm(config, "norm")(x)) + bias[None, None]


class NystromformerForMaskedLM(nn.Module):
    """Guesses tokens: logits [B L V], or [B P V] at the positions asked for."""

    config: NystromformerConfig

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        positions: Int[Array, "B P"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B P V"]:
        """Gives logits at `positions`, which saves the others' cost; None: at all (P = L)."""
        backbone = Nystromformer(self.config, name="nystromformer")
        hidden = backbone(inputs, mask, types, deterministic=deterministic)
        head = MaskedTokenHead(self.config, backbone.attend, name="mlm")
        return head(_at(hidden, positions))


class NystromformerForPreTraining(nn.Module):
    """Guesses tokens, and whether the second sentence came second (class 0) or first (class 1).

    Source: the order head is that of the authors' reorganized_code/BERT/model.py at 5689313: a dense
    layer with tanh on the first token, dropout, and one layer more.
    """

    config: NystromformerConfig

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        positions: Int[Array, "B P"] | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Float[Array, "B P V"], Float[Array, "B 2"]]:
        """Gives logits of tokens, as `NystromformerForMaskedLM`, and of the order."""
        config = self.config
        backbone = Nystromformer(config, name="nystromformer")
        hidden = backbone(inputs, mask, types, deterministic=deterministic)
        tokens = MaskedTokenHead(config, backbone.attend, name="mlm")(_at(hidden, positions))
        pooled = nn.tanh(_dense(config, config.embed_dim, "pooler")(hidden[:, 0]))
        pooled = Dropout(config.dropout_rate)(pooled, deterministic=deterministic)
        order = _dense(config, 2, "sentence_order")(pooled)
        return tokens, order.astype(jnp.float32)


class NystromformerForSequenceClassification(nn.Module):
    """Classifies a sequence by its first token: logits [B C]; for a regression C is 1."""

    config: NystromformerConfig

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B C"]:
        """Gives logits, in float32."""
        config = self.config
        dropout = Dropout(config.dropout_rate)
        hidden = Nystromformer(config, name="nystromformer")(
            inputs, mask, types, deterministic=deterministic
        )
        first = dropout(hidden[:, 0], deterministic=deterministic)
        activation = ACTIVATIONS[config.classifier_activation or config.activation]
        x = activation(_dense(config, config.embed_dim, "dense")(first))
        x = dropout(x, deterministic=deterministic)
        return _dense(config, config.num_labels, "output")(x).astype(jnp.float32)


class NystromformerForTokenClassification(nn.Module):
    """Classifies every token: logits [B L C]."""

    config: NystromformerConfig

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L C"]:
        """Gives logits, in float32."""
        config = self.config
        hidden = Nystromformer(config, name="nystromformer")(
            inputs, mask, types, deterministic=deterministic
        )
        hidden = Dropout(config.dropout_rate)(hidden, deterministic=deterministic)
        return _dense(config, config.num_labels, "output")(hidden).astype(jnp.float32)


class NystromformerForQuestionAnswering(nn.Module):
    """Finds where an answer starts and ends: two logits a token, each [B L]."""

    config: NystromformerConfig

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
        """Gives the logits of starts and those of ends, in float32."""
        hidden = Nystromformer(self.config, name="nystromformer")(
            inputs, mask, types, deterministic=deterministic
        )
        logits = _dense(self.config, 2, "output")(hidden).astype(jnp.float32)
        return logits[..., 0], logits[..., 1]


class NystromformerForMultipleChoice(nn.Module):
    """Chooses between sequences: logits [B N] of N choices each, by their first tokens."""

    config: NystromformerConfig

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B N L"],
        mask: Bool[Array, "B N L"] | None = None,
        types: Int[Array, "B N L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B N"]:
        """Gives one logit a choice, in float32."""
        config = self.config
        mask, types = (None if x is None else x.reshape(-1, x.shape[-1]) for x in (mask, types))
        hidden = Nystromformer(config, name="nystromformer")(
            inputs.reshape(-1, inputs.shape[-1]), mask, types, deterministic=deterministic
        )
        x = nn.relu(_dense(config, config.embed_dim, "dense")(hidden[:, 0]))
        x = Dropout(config.dropout_rate)(x, deterministic=deterministic)
        logits = _dense(config, 1, "output")(x).astype(jnp.float32)
        return logits.reshape(inputs.shape[:2])


def _at(
    hidden: Float[Array, "B L E"], positions: Int[Array, "B P"] | None
) -> Float[Array, "B P E"]:
    """The hidden states at `positions`; all of them where that is None."""
    if positions is None:
        return hidden
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)
