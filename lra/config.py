"""The section "model" of the benchmark's configs. Does not import jax."""

import dataclasses
from typing import Literal

from nystromformer_jax.support.values import (
    Activation,
    ConfigDtype,
    EmaNormalization,
    check_rate,
    check_size,
    dtype_name,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and options of a model; the defaults are the paper's values for the Long Range Arena.

    Args:
      dropout_rate: Dropout rate of the embeddings, the attention output, and the MLP's hidden units
        and output.
      stem: Odd kernel sizes of the dense convolutions between the embedding and the first block; see
        `nystromformer_jax.layers.stem.ConvStem`.
      stem_dilations: Distance between the taps of each convolution of the stem, in tokens; empty for 1.
      block: "transformer" is `nystromformer_jax.EncoderBlock`; "gated_ema" is
        `nystromformer_jax.GatedEmaBlock`, whose layers always have biases: `attention_bias` has no effect.
      pooling: "mean" averages over real tokens; "padded_mean", as in the authors' code, divides their
        sum by the padded length; "all_mean" averages over padding too; "first" takes the first token;
        "cls" prepends a learned token and takes it; "ends" concatenates the first real token, the last
        real token and the mean.
      pair_features: Input of the head for the encodings x and y of a pair: "products" is x, y, x · y
        and x − y; "concatenation" is x and y, and adds a layer to the head.
      initialization: Initialization of kernels, biases and token embeddings, except for the head, which
        keeps Flax's defaults; see `INITIALIZATIONS`.
      token_init: "normal" follows `initialization`; "fourier" initializes the token embedding with
        sines and cosines of the token id, so that similar pixel values have similar embeddings.
      dtype: Type of activations; parameters, landmark kernel and pseudoinverse are float32.
    """

    vocab_size: int  # rows of the token embedding; at least the number of token ids
    max_len: int  # rows of the position embedding; at least the length of a sequence
    num_layers: int = 2  # number of blocks
    embed_dim: int = 64  # E, width of the model
    num_heads: int = 2  # H, number of attention heads
    head_dim: int = 32  # D, width of a head; H · D may differ from E
    mlp_dim: int = 128  # hidden units of the MLPs and of the head
    dropout_rate: float = 0.1
    stem: tuple[int, ...] = ()
    stem_dilations: tuple[int, ...] = ()
    block: Literal["transformer", "gated_ema"] = "transformer"
    ema_states: int = 16  # moving averages per channel and direction; for block="gated_ema"
    ema_normalization: EmaNormalization = "mean"  # see `MultiScaleEma`
    # Position embeddings that are added to those of the tokens.
    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    pooling: Literal["mean", "padded_mean", "all_mean", "first", "cls", "ends"] = "mean"
    pair_features: Literal["products", "concatenation"] = "products"
    activation: Activation = "gelu"  # of the MLPs; "gelu" is exact, "gelu_tanh" its approximation
    layer_norm_epsilon: float = 1e-5  # ε of the layer norms, added to the variance
    attention_bias: bool = True  # adds biases to the attention projections
    initialization: Literal["lecun", "google"] = "lecun"
    token_init: Literal["normal", "fourier"] = "normal"
    dtype: ConfigDtype = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        sizes = ("vocab_size", "max_len", "num_layers", "embed_dim", "num_heads", "head_dim")
        for name in (*sizes, "mlp_dim"):
            check_size(f"model.{name}", getattr(self, name))
        if self.pair_features == "concatenation":  # one layer of the head has mlp_dim // 2 units
            check_size("model.mlp_dim", self.mlp_dim, least=2)
        if self.num_layers > 1000:  # each layer is traced separately
            raise ValueError(f"model.num_layers: needs 1,000 or fewer, got {self.num_layers}.")
        check_size("model.ema_states", self.ema_states, least=0)
        for size in self.stem:
            if size < 1 or size % 2 == 0:
                raise ValueError(f"model.stem: needs odd kernel sizes, got {self.stem}.")
        if self.stem_dilations and len(self.stem_dilations) != len(self.stem):
            raise ValueError(
                f"model.stem_dilations: needs one number for each of the {len(self.stem)} convolutions of"
                f" model.stem, got {self.stem_dilations}."
            )
        if any(dilation < 1 for dilation in self.stem_dilations):
            raise ValueError(
                f"model.stem_dilations: needs numbers of 1 or more, got {self.stem_dilations}."
            )
        check_rate("model.dropout_rate", self.dropout_rate)
        if not self.layer_norm_epsilon > 0:
            raise ValueError(
                f"model.layer_norm_epsilon: needs a positive number, got {self.layer_norm_epsilon}."
            )
