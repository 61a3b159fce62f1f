"""The benchmark's models: embeddings, the encoder, pooling and a head."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from lra.config import ModelConfig
from nystromformer_jax import Encoder, EncoderBlock
from nystromformer_jax.attention.checks import zero_padding
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.layers.encoder import Initializer
from nystromformer_jax.layers.gated_ema import GatedEmaBlock
from nystromformer_jax.layers.stem import ConvStem
from nystromformer_jax.typing import Array, Bool, Float, Int, Shaped


class Initializers(NamedTuple):
    """Initializers of kernels, biases and token embeddings."""

    embedding: Initializer
    kernel: Initializer
    bias: Initializer


INITIALIZATIONS = {
    "lecun": Initializers(
        nn.initializers.normal(0.02), nn.initializers.lecun_normal(), nn.initializers.zeros_init()
    ),
    # Source: google-research/long-range-arena, models/transformer/transformer.py.
    "google": Initializers(
        nn.initializers.normal(1.0), nn.initializers.xavier_uniform(), nn.initializers.normal(1e-6)
    ),
}


class SequenceEncoder(nn.Module):
    """Encodes a sequence: embeddings, pre-norm encoder and, if `pools`, pooling to one vector."""

    config: ModelConfig
    make_core: Callable[..., nn.Module]
    remat: bool = False
    pools: bool = True

    @nn.compact
    def __call__(
        self, inputs: Int[Array, "B L"], mask: Bool[Array, "B L"], *, deterministic: bool
    ) -> Float[Array, "B F"] | Float[Array, "B L E"]:
        """Returns one vector per sequence of token ids; F is E, or 3 E for `pooling="ends"`.

        Without pooling, it returns one vector per token.
        """
        x, mask = self._embed(inputs, mask)
        x = Dropout(self.config.dropout_rate)(x, deterministic=deterministic)
        x = self._encoder()(x, mask, deterministic=deterministic)
        return pool(x, mask, self.config.pooling) if self.pools else x

    def _embed(
        self, inputs: Int[Array, "B L"], mask: Bool[Array, "B L"]
    ) -> tuple[Float[Array, "B N E"], Bool[Array, "B N"]]:
        """Returns embeddings with the stem and positions, and their mask; N is L, or L + 1 for "cls"."""
        config = self.config
        dtype = jnp.dtype(config.dtype)
        init = INITIALIZATIONS[config.initialization]
        # The gradient of a row is a sum over its tokens. In bfloat16, it would stop growing.
        embed = functools.partial(nn.Embed, features=config.embed_dim, dtype=jnp.float32)
        token_init = init.embedding if config.token_init == "normal" else _fourier_init
        x = embed(config.vocab_size, embedding_init=token_init, name="token_embedding")(inputs)
        x = x.astype(dtype)
        if config.stem:
            stem = ConvStem(
                config.stem,
                config.activation,
                config.layer_norm_epsilon,
                config.stem_dilations,
                dtype=dtype,
                kernel_init=init.kernel,
                bias_init=init.bias,
                name="stem",
            )
            x = stem(x, mask)
        max_len = config.max_len
        if self.pools and config.pooling == "cls":
            cls = self.param("cls", nn.initializers.zeros_init(), (1, 1, config.embed_dim))
            cls = jnp.broadcast_to(cls.astype(dtype), (len(x), 1, config.embed_dim))
            x = jnp.concatenate([cls, x], axis=1)
            # The class token is masked if the first token is, as in the official code.
            mask = jnp.concatenate([mask[:, :1], mask], axis=1)
            max_len += 1
        if config.positions == "sinusoidal":
            positions = jnp.asarray(sinusoids(x.shape[1], config.embed_dim))
            x = x + positions.astype(x.dtype)[None]
        elif config.positions == "learned":
            table = embed(
                max_len, embedding_init=nn.initializers.normal(0.02), name="position_embedding"
            )
            # The gradient of a slice is a sum over the batch; that of a lookup is a scatter.
            x = x + table.embedding[: x.shape[1]].astype(x.dtype)[None]
        return x, mask

    def _encoder(self) -> Encoder:
        config = self.config
        init = INITIALIZATIONS[config.initialization]
        block: Callable[..., nn.Module]
        if config.block == "gated_ema":
            block = functools.partial(
                GatedEmaBlock,
                num_states=config.ema_states,
                max_time_scale=max(config.max_len, 2),
                ema_normalization=config.ema_normalization,
            )
        else:
            block = functools.partial(EncoderBlock, attention_bias=config.attention_bias)
        make_block = functools.partial(
            block,
            num_heads=config.num_heads,
            make_core=self.make_core,
            mlp_dim=config.mlp_dim,
            activation=config.activation,
            qkv_features=config.num_heads * config.head_dim,
            dropout_rate=config.dropout_rate,
            layer_norm_epsilon=config.layer_norm_epsilon,
            dtype=jnp.dtype(config.dtype),
            kernel_init=init.kernel,
            bias_init=init.bias,
        )
        make_final_norm = functools.partial(nn.LayerNorm, epsilon=config.layer_norm_epsilon)
        return Encoder(
            config.num_layers, make_block, make_final_norm, remat=self.remat, name="encoder"
        )


class Model(nn.Module):
    """Base class of `Classifier`, `DualEncoder` and `Tagger`."""

    batch_keys: ClassVar[tuple[str, ...]]  # keys of a batch that are passed to the model, in order

    config: ModelConfig
    make_core: Callable[..., nn.Module]  # returned by `nystromformer_jax.make_core`
    num_classes: int  # C
    remat: bool = False  # rematerializes activations; see `nystromformer_jax.Encoder`

    def _sequence_encoder(self, *, pools: bool = True) -> SequenceEncoder:
        return SequenceEncoder(
            self.config, self.make_core, self.remat, pools, name="sequence_encoder"
        )

    def _head(self, features: Float[Array, "B E"], mlp_dim: int) -> Float[Array, "B C"]:
        hidden = nn.relu(nn.Dense(mlp_dim, name="head_hidden")(features))
        return nn.Dense(self.num_classes, name="head_output")(hidden)


class Classifier(Model):
    """Classifies a sequence.

    Source: the authors' LRA model (mlpen/Nystromformer, `LRA/code/model.py`, `model_wrapper.py`).
    Differs: by default, pooling averages over real tokens only; see `ModelConfig.pooling`.
    """

    batch_keys: ClassVar = ("inputs", "mask")

    @nn.compact
    def __call__(
        self, inputs: Int[Array, "B L"], mask: Bool[Array, "B L"], *, deterministic: bool
    ) -> Float[Array, "B C"]:
        """Returns logits for token ids; `mask` is True at real tokens."""
        pooled = self._sequence_encoder()(inputs, mask, deterministic=deterministic)
        return self._head(pooled, self.config.mlp_dim)


class Tagger(Model):
    """Classifies some tokens of a sequence; `ModelConfig.pooling` has no effect."""

    batch_keys: ClassVar = ("inputs", "mask", "positions")

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"],
        positions: Int[Array, "B K"],
        *,
        deterministic: bool,
    ) -> Float[Array, "B K C"]:
        """Returns logits of the tokens at `positions`."""
        x = self._sequence_encoder(pools=False)(inputs, mask, deterministic=deterministic)
        x = jnp.take_along_axis(x, positions[..., None], axis=1).astype(jnp.float32)
        return nn.Dense(self.num_classes, name="head_output")(x)


class DualEncoder(Model):
    """Classifies a pair of sequences with a shared encoder and a head on the two encodings x and y.

    Source: Tay et al. 2020, section 3.3 and the authors' `LRA/code/model_wrapper.py`. The head of the
    official code uses x and y only.
    Differs: see `Classifier`.
    """

    batch_keys: ClassVar = ("inputs1", "mask1", "inputs2", "mask2")

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
        """Returns logits for pairs of sequences of token ids; masks are True at real tokens."""
        # The two texts of a pair are adjacent, so that sharding the batch keeps them on one device.
        inputs, mask = _interleave(inputs1, inputs2), _interleave(mask1, mask2)
        pooled = self._sequence_encoder()(inputs, mask, deterministic=deterministic)
        x, y = pooled[0::2], pooled[1::2]
        mlp_dim = self.config.mlp_dim
        if self.config.pair_features == "products":
            features = jnp.concatenate([x, y, x * y, x - y], axis=-1)
            return self._head(features, mlp_dim)
        features = jnp.concatenate([x, y], axis=-1)
        features = nn.relu(nn.Dense(mlp_dim, name="head_pair")(features))
        return self._head(features, mlp_dim // 2)


def pool(x: Float[Array, "B L E"], mask: Bool[Array, "B L"], pooling: str) -> Float[Array, "B F"]:
    """Returns one vector per sequence, in float32; see `ModelConfig.pooling`."""
    if pooling in ("first", "cls"):
        return x[:, 0].astype(jnp.float32)
    if pooling == "all_mean":
        return x.mean(axis=1, dtype=jnp.float32)
    mean = masked_mean(x, mask)
    if pooling == "ends":
        return jnp.concatenate([*first_and_last(x, mask), mean], axis=-1)
    if pooling == "padded_mean":
        return mean * (mask.sum(axis=1, dtype=jnp.float32) / mask.shape[1])[:, None]
    return mean


def first_and_last(
    x: Float[Array, "B L E"], mask: Bool[Array, "B L"]
) -> tuple[Float[Array, "B E"], Float[Array, "B E"]]:
    """Returns the first and last real token of each row in float32; zeros for an all-padding row."""
    length = mask.shape[1]
    positions = jnp.arange(length)[None]
    first = jnp.where(mask, positions, length).min(axis=1)
    last = jnp.where(mask, positions, -1).max(axis=1)

    def at(index: Int[Array, " B"]) -> Float[Array, "B E"]:
        # Masking instead of indexing: XLA can partition it when the sequence axis is sharded.
        selected = positions == index[:, None]
        return jnp.where(selected[..., None], x, 0).sum(axis=1, dtype=jnp.float32)

    return at(first), at(last)


def _interleave(first: Shaped[Array, "B L"], second: Shaped[Array, "B L"]) -> Array:
    """Interleaves two arrays [B, L] to [2 B, L]: rows 2 i and 2 i + 1 hold pair i."""
    return jnp.stack([first, second], axis=1).reshape(-1, first.shape[1])


def sinusoids(length: int, embed_dim: int) -> npt.NDArray[np.float32]:
    """Returns position embeddings [L, E]: sines in even columns, cosines in odd columns.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    rates = np.exp(-np.log(10_000) * np.arange(0, embed_dim, 2) / embed_dim)
    angles = np.arange(length)[:, None] * rates[None]
    waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, -1)
    return waves[:, :embed_dim].astype(np.float32)


def _fourier_init(rng: Array, shape: tuple[int, int], dtype: Any = jnp.float32) -> Array:
    """Initializes a token embedding [V, E] with `sinusoids`."""
    return jnp.asarray(sinusoids(*shape), dtype)


def masked_mean(x: Float[Array, "B L E"], mask: Bool[Array, "B L"]) -> Float[Array, "B E"]:
    """Averages `x` over real tokens, in float32; an all-padding row averages to zero."""
    total = zero_padding(x, mask).sum(axis=1, dtype=jnp.float32)
    return total / jnp.maximum(mask.sum(axis=1, dtype=jnp.float32), 1)[:, None]
