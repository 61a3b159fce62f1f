"""The benchmark's models: embeddings, the encoder, pooling and a head."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp

from nystromformer_jax import Encoder, EncoderBlock
from nystromformer_jax.dropout import Dropout
from nystromformer_jax.typing import Array, Bool, Float, Int, Shaped


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a model; the defaults are the paper's on the Long Range Arena.

    Args:
      vocab_size: rows of the token embedding; at least the ids that occur.
      max_len: rows of the position embedding; at least the tokens of a sequence.
      head_dim: D; heads times D may differ from `embed_dim`.
      dropout_rate: of embeddings, attention output, and the MLP's hidden units and output.
      pooling: "mean" is over real tokens; "padded_mean", the authors', divides by the padded length.
      dtype: of activations; parameters, landmark kernel and pseudoinverse stay float32.
    """

    vocab_size: int
    max_len: int
    num_layers: int = 2
    embed_dim: int = 64
    num_heads: int = 2
    head_dim: int = 32
    mlp_dim: int = 128
    dropout_rate: float = 0.1
    pooling: Literal["mean", "padded_mean"] = "mean"
    dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "max_len",
            "num_layers",
            "embed_dim",
            "num_heads",
            "head_dim",
            "mlp_dim",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}: needs 1 or more, got {getattr(self, name)}.")
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(
                f"model.dropout_rate: needs a number in [0, 1), got {self.dropout_rate}."
            )


class SequenceEncoder(nn.Module):
    """Token and position embeddings, pre-norm encoder, mean over the sequence."""

    config: ModelConfig
    make_core: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, inputs: Int[Array, "B L"], mask: Bool[Array, "B L"], *, deterministic: bool
    ) -> Float[Array, "B E"]:
        """Encodes token ids; `mask` is True at real tokens."""
        config = self.config
        embed = functools.partial(
            nn.Embed,
            features=config.embed_dim,
            embedding_init=nn.initializers.normal(0.02),
            dtype=jnp.dtype(config.dtype),
        )
        tokens = embed(config.vocab_size, name="token_embedding")(inputs)
        # A slice, not a look-up: its gradient is a sum over the batch, not a scatter of B · L rows.
        positions = embed(config.max_len, name="position_embedding").embedding[: inputs.shape[1]]
        x = tokens + positions.astype(tokens.dtype)[None]
        x = Dropout(config.dropout_rate)(x, deterministic=deterministic)
        make_block = functools.partial(
            EncoderBlock,
            config.num_heads,
            self.make_core,
            config.mlp_dim,
            qkv_features=config.num_heads * config.head_dim,
            dropout_rate=config.dropout_rate,
            dtype=jnp.dtype(config.dtype),
        )
        x = Encoder(config.num_layers, make_block, name="encoder")(
            x, mask, deterministic=deterministic
        )
        pooled = masked_mean(x, mask)
        if config.pooling == "padded_mean":
            pooled = pooled * (mask.sum(axis=1) / mask.shape[1])[:, None]
        return pooled


class Classifier(nn.Module):
    """One sequence in, one class out.

    Attributes:
      config: Sizes.
      make_core: Makes the attention; see `nystromformer_jax.make_core`.
      num_classes: C.

    Source: the authors' LRA model (mlpen/Nystromformer, `LRA/code/model.py`, `model_wrapper.py`).
    Differs: the mean is over real tokens, unless `config.pooling` says otherwise.
    """

    batch_keys: ClassVar = ("inputs", "mask")

    config: ModelConfig
    make_core: Callable[..., nn.Module]
    num_classes: int

    @nn.compact
    def __call__(
        self, inputs: Int[Array, "B L"], mask: Bool[Array, "B L"], *, deterministic: bool
    ) -> Float[Array, "B C"]:
        """Gives the logits of token ids; `mask` is True at real tokens."""
        encoder = SequenceEncoder(self.config, self.make_core, name="sequence_encoder")
        pooled = encoder(inputs, mask, deterministic=deterministic)
        return _head(pooled, self.config.mlp_dim, self.num_classes)


class DualEncoder(nn.Module):
    """Two sequences in, one class out: one encoder for both, and a head over x, y, x · y and x − y.

    Attributes:
      config: Sizes.
      make_core: Makes the attention; see `nystromformer_jax.make_core`.
      num_classes: C.

    Source: Tay et al. 2020, section 3.3 and the authors' `LRA/code/model_wrapper.py`. The official code
    passes the head x and y alone.
    Differs: as `Classifier`.
    """

    batch_keys: ClassVar = ("inputs1", "mask1", "inputs2", "mask2")

    config: ModelConfig
    make_core: Callable[..., nn.Module]
    num_classes: int

    @nn.compact
    def __call__(
        self,
        inputs1: Int[Array, "B L"],
        mask1: Bool[Array, "B L"],
        inputs2: Int[Array, "B L"],
        mask2: Bool[Array, "B L"],
        *,
        deterministic: bool,
    ) -> Float[Array, "B C"]:
        """Gives the logits of pairs of token ids; masks are True at real tokens."""
        encoder = SequenceEncoder(self.config, self.make_core, name="sequence_encoder")
        # Both texts of a pair side by side: where the batch is split over devices, no pair is torn apart.
        pooled = encoder(
            _side_by_side(inputs1, inputs2),
            _side_by_side(mask1, mask2),
            deterministic=deterministic,
        )
        x, y = pooled[0::2], pooled[1::2]
        features = jnp.concatenate([x, y, x * y, x - y], axis=-1)
        return _head(features, self.config.mlp_dim, self.num_classes)


def _head(features: Float[Array, "B E"], mlp_dim: int, num_classes: int) -> Float[Array, "B C"]:
    """Two layers; their parameters belong to the module that calls."""
    hidden = nn.relu(nn.Dense(mlp_dim, name="head_hidden")(features))
    return nn.Dense(num_classes, name="head_output")(hidden)


def _side_by_side(first: Shaped[Array, "B L"], second: Shaped[Array, "B L"]) -> Array:
    """[B, L] and [B, L] to [2 B, L]: rows 2 i and 2 i + 1 are those of pair i."""
    return jnp.stack([first, second], axis=1).reshape(-1, first.shape[1])


def masked_mean(x: Float[Array, "B L E"], mask: Bool[Array, "B L"]) -> Float[Array, "B E"]:
    """Averages `x` over real tokens, in float32; an all-padding row averages to zero."""
    total = jnp.where(mask[..., None], x, 0).sum(axis=1, dtype=jnp.float32)  # where: 0 * NaN is NaN
    return total / jnp.maximum(mask.sum(axis=1), 1)[:, None]
