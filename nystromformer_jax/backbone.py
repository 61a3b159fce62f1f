"""The config of BERT-style models, their embeddings, and the post-norm encoder with any attention."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.attention.arguments import check_options
from nystromformer_jax.attention.checks import (
    check_conv_kernel_size,
    check_ids,
    check_mask,
    check_tokens,
)
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.attention.options import options_of
from nystromformer_jax.cores import make_core
from nystromformer_jax.layers.encoder import Encoder, EncoderBlock
from nystromformer_jax.support.spelling import nearest
from nystromformer_jax.support.values import (
    Activation,
    ConfigDtype,
    Implementation,
    Layout,
    Pinv,
    Selection,
    Start,
    check_choice,
    check_rate,
    check_size,
    dtype_name,
)
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
    """Model config; the defaults are the sizes of BERT-base, with Nyström attention.

    Args:
      vocab_size: V, rows of the token embedding.
      max_len: Maximum length, rows of the position embedding.
      embed_dim: E, width of the model.
      num_types: Rows of the token type embedding (sentences A and B).
      attention: `"nystrom"`, `"softmax"`, `"reformer"`, `"linformer"`, `"performer"`, `"longformer"` or
        `"linear"`. The first two use the fields below, the others their default options.
      num_landmarks: M of Nyström attention.
      conv_kernel_size: Width of the convolution over values, odd; 0 for none. The authors use 33 at 512
        tokens and 65 at 4,096. It also applies to softmax attention, as in Hugging Face's exact mode; use
        0 for the attention of BERT.
      pinv: See `nystrom_attention`, also for `pinv_iters`, `pinv_start`, `landmark_layout`,
        `landmark_selection`, `num_own_landmarks`, `mask_conv`, `normalize_rows` and `implementation`.
      attention_dropout_rate: Dropout rate of softmax attention weights; unused by Nyström attention.
      activation: Activation of MLPs and the masked-token head: `"gelu"` (in BERT), `"gelu_tanh"` (in the
        authors' models), `"relu"` or `"tanh"`.
      dropout_rate: Dropout rate of embeddings, attention output, MLP output and heads.
      classifier_dropout_rate: Dropout rate of the heads of classification and multiple choice; None for
        `dropout_rate`.
      num_labels: C of the classification heads.
      classifier_activation: Activation in the head of sequence classification; None for `activation`.
      choice_activation: Activation in the head of multiple choice: "relu" as in Hugging Face's
        Nyströmformer, "tanh" in BERT.
      tie_word_embeddings: If True, the masked-token head multiplies by the token embeddings; if False,
        by a table of its own.
      initializer_range: Standard deviation of initial kernels and embeddings.
      dtype: Dtype of activations, such as jnp.bfloat16 or its name; parameters, layer norm statistics and
        logits are float32.
      remat: See `Encoder`.
      metadata: Fields of the loaded config.json that do not change the outputs, such as id2label,
        problem_type and pad_token_id. `save_pretrained` writes them back. Equality of configs ignores
        them.
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
    pinv: Pinv = "iterative"
    pinv_iters: int = 6
    pinv_start: Start = "exact"
    landmark_layout: Layout = "real"
    landmark_selection: Selection = "segments"
    num_own_landmarks: int = 0
    mask_conv: bool = True
    normalize_rows: bool = False
    implementation: Implementation = "auto"
    attention_dropout_rate: float = 0.1
    activation: Activation = "gelu_tanh"
    dropout_rate: float = 0.1
    classifier_dropout_rate: float | None = None
    layer_norm_epsilon: float = 1e-5
    num_labels: int = 2
    classifier_activation: Activation | None = "tanh"
    choice_activation: Activation = "relu"
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    dtype: ConfigDtype = "float32"
    remat: bool = False
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # JSON has no NumPy scalars
            if isinstance(value := getattr(self, field.name), np.generic):
                object.__setattr__(self, field.name, value.item())
        for name in (
            "vocab_size",
            "max_len",
            "embed_dim",
            "num_layers",
            "num_heads",
            "mlp_dim",
            "num_types",
            "num_labels",
            "num_landmarks",
        ):
            check_size(name, getattr(self, name))
        if self.num_layers > 1000:  # each is traced separately
            raise ValueError(f"num_layers must be 1,000 or fewer, got {self.num_layers}.")
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"embed_dim must be a multiple of num_heads, got {self.embed_dim} and {self.num_heads}."
            )
        check_rate("dropout_rate", self.dropout_rate)
        check_rate("attention_dropout_rate", self.attention_dropout_rate)
        if self.classifier_dropout_rate is not None:
            check_rate("classifier_dropout_rate", self.classifier_dropout_rate)
        if not self.layer_norm_epsilon > 0:
            raise ValueError(f"layer_norm_epsilon must be positive, got {self.layer_norm_epsilon}.")
        if not self.initializer_range >= 0:
            raise ValueError(f"initializer_range must be at least 0, got {self.initializer_range}.")
        check_conv_kernel_size(self.conv_kernel_size)
        check_options(options_of(self))
        check_choice("implementation", self.implementation, Implementation)
        check_choice("attention", self.attention, AttentionName)
        check_choice("activation", self.activation, Activation)
        check_choice("choice_activation", self.choice_activation, Activation)
        optional = Literal[None, Activation]
        check_choice("classifier_activation", self.classifier_activation, optional)
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "NystromformerConfig":
        """Returns the config of BERT "small" or "base" with `changes`, which must include `vocab_size`."""
        if name not in PRESETS:
            raise ValueError(f"Unknown preset {name!r}{nearest(name, PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    def make_core(self) -> Callable[..., nn.Module]:
        """Returns a factory of the attention core; see `nystromformer_jax.make_core`."""
        if self.attention == "nystrom":
            return make_core(
                "nystrom",
                **dataclasses.asdict(options_of(self)),
                conv_kernel_size=self.conv_kernel_size,
                implementation=self.implementation,
            )
        if self.attention == "softmax":
            return make_core(
                "softmax",
                dropout_rate=self.attention_dropout_rate,
                conv_kernel_size=self.conv_kernel_size,
                mask_conv=self.mask_conv,
            )
        if self.attention == "linformer":
            return make_core("linformer", max_len=self.max_len)
        return make_core(self.attention)


def kernel_init(config: NystromformerConfig) -> Callable[..., Array]:
    """Returns the initializer of dense kernels and embeddings."""
    return nn.initializers.normal(config.initializer_range)


class Embeddings(nn.Module):
    """Sum of token, position and type embeddings, then layer norm and dropout."""

    config: NystromformerConfig

    def setup(self) -> None:
        """Creates the submodules."""
        config = self.config
        embed = functools.partial(
            nn.Embed,
            features=config.embed_dim,
            embedding_init=kernel_init(config),
            # The gradient of a row is a sum over its tokens. In bfloat16, it would stop growing.
            dtype=jnp.float32,
        )
        self.word = embed(config.vocab_size)
        self.position = embed(config.max_len)
        self.type = embed(config.num_types)
        self.norm = nn.LayerNorm(epsilon=config.layer_norm_epsilon, dtype=config.dtype)
        self.dropout = Dropout(config.dropout_rate)

    def __call__(
        self,
        inputs: Int[Array, "B L"],
        types: Int[Array, "B L"] | None,
        mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L E"]:
        """Returns the embeddings; the position of a token is the number of real tokens before it.

        Differs from Hugging Face's BERT and Nyströmformer, which also count padding before the tokens.
        """
        positions = jnp.arange(inputs.shape[1], dtype=jnp.int32)[None]
        types = jnp.zeros_like(inputs) if types is None else types
        if mask is not None:
            # Padding keeps its absolute positions, which a convolution without a mask reads.
            ranks = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
            positions = jnp.where(mask, ranks, positions)
        x = self.word(inputs) + self.position(positions) + self.type(types)
        x = x.astype(self.config.dtype)
        return self.dropout(self.norm(x), deterministic=deterministic)

    def attend(self, x: Float[Array, "*tokens E"]) -> Float[Array, "*tokens V"]:
        """Returns logits, the product of `x` with the token embeddings, in float32."""
        return token_logits(x, self.word.embedding)


def token_logits(
    x: Float[Array, "*tokens E"], table: Float[Array, "V E"]
) -> Float[Array, "*tokens V"]:
    """Returns the product of `x` with the rows of `table`, in float32."""
    return jnp.einsum("...E,VE->...V", x, table.astype(x.dtype), preferred_element_type=jnp.float32)


class Nystromformer(nn.Module):
    """Embeddings and encoder, without a head.

    There is no final layer norm, because a post-norm block ends with a layer norm.
    """

    config: NystromformerConfig
    deterministic: bool | None = None

    def setup(self) -> None:
        """Creates the submodules."""
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
            kernel_init=kernel_init(config),
        )
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config.num_layers, block, make_final_norm=None, remat=config.remat)

    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Float[Array, "B L E"]:
        """Returns the last hidden states.

        Args:
          inputs: Token ids from 0 to `config.vocab_size` - 1; L is at most `config.max_len`.
          mask: True at real tokens; None: all are real. Positions count only real tokens.
          types: 0 in the first sentence, 1 in the second; None: 0 everywhere.
          deterministic: If True, dropout is disabled. Set either this argument or the attribute.

        Raises:
          ValueError: L exceeds `config.max_len`, or token ids are invalid. Ids out of range are detected
            only outside `jax.jit`. Under `jax.jit` an id that is too large gives NaN, and a negative id
            counts from the end of the table.
        """
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        check_tokens(inputs, types, "B L")
        if inputs.shape[1] > self.config.max_len:
            raise ValueError(
                f"The inputs have {inputs.shape[1]} tokens, but this model supports at most"
                f" {self.config.max_len}: truncate them, or load the model with a larger max_len."
            )
        check_mask("mask", mask, inputs.shape[:2], "real tokens, [B L]")
        check_ids("inputs", inputs, self.config.vocab_size, "vocab_size")
        check_ids("types", types, self.config.num_types, "num_types")
        x = self.embeddings(inputs, types, mask, deterministic=deterministic)
        return self.encoder(x, mask, deterministic=deterministic)
