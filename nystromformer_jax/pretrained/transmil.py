"""Reads the weights of TransMIL, a classifier of bags, and computes its logits and attention maps.

    from nystromformer_jax.pretrained.transmil import read_transmil

    model = read_transmil(torch.load("transmil.pth", map_location="cpu"))
    logits = model(bags)  # [B C] of instances [B L F]

Reading a file of PyTorch needs torch (extra `peers`); NumPy arrays by name do not.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.traverse_util import unflatten_dict

from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.functions import LOCAL, find_landmarks, nystrom, softmax_weights
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.typing import Array, Float

# The authors' names, as regular expressions, and torchmil's.
# Source: szc19990412/TransMIL at 0db1535, models/TransMIL.py; torchmil 1.0.2, models/transmil.py.
RENAMED = {
    r"^(?:module|model)\.": "",
    r"^_fc1\.0\.": "fc1.",
    r"^_fc2\.": "classifier.",
    r"^layer1\.": "layers.0.",
    r"^layer2\.": "layers.1.",
    r"^(layers\.\d+)\.norm\.": r"\1.norm1.",
    r"\.attn\.to_qkv\.": ".att_module.qkv_nn.",
    r"\.attn\.to_out\.0\.": ".att_module.out_proj.",
    r"\.attn\.res_conv\.": ".att_module.res_conv.",
}
PARTS = {"cls_token", "pos_layer", "layers", "norm", "classifier"}
TORCHMIL_HEADS = 4  # its default; its tensors do not tell
Weights = Mapping[str, Any]


@struct.dataclass
class TransMil:
    """TransMIL with its weights, of which it is a pytree, so `jax.grad` and optax can train it.

    It computes what the PyTorch modules compute without dropout. The first instances are repeated until the
    bag is a square, and zeros in front of the class token make the length a multiple of M. All tokens attend
    to both. A batch has bags of one length, and their outputs depend on each other through the pseudoinverse.
    Each new length is compiled.

    Source: Shao et al. 2021, arXiv:2106.00908.
    """

    weights: Weights
    num_heads: int = struct.field(pytree_node=False)
    num_landmarks: int = struct.field(pytree_node=False)
    # After the first projection, as in the authors' code.
    has_relu: bool = struct.field(pytree_node=False)

    @jax.jit
    def __call__(self, bags: Float[Array, "B L F"]) -> Float[Array, "B C"]:
        """Returns the logits."""
        x = self._attend(self.weights["layers"][-1], self._before_last_layer(bags))
        return _dense(self.weights["classifier"], _layer_norm(self.weights["norm"], x[:, 0]))

    @jax.jit
    def class_map(self, bags: Float[Array, "B L F"]) -> Float[Array, "B L"]:
        """Returns the attention of the class token to the instances in the last layer, a mean over heads."""
        x = self._before_last_layer(bags)
        query, key, _ = self._heads(self.weights["layers"][-1], x)
        token = query.shape[1] - x.shape[1]  # after the padding
        landmarks = find_landmarks(query, key, None, None, self._options)
        row = softmax_weights(query[:, token, None], landmarks.k_landmarks, None)
        row = row @ landmarks.inverse @ softmax_weights(landmarks.q_landmarks, key, None)
        return row[:, :, 0, token + 1 :][..., : bags.shape[1]].mean(axis=1)

    @property
    def _options(self) -> NystromOptions:
        return NystromOptions(
            num_landmarks=self.num_landmarks, landmark_layout="mlpen", pinv_start="batch_max"
        )

    def _before_last_layer(self, bags: Float[Array, "B L F"]) -> Float[Array, "B T E"]:
        """Returns the class token and the instances of the square before the last layer."""
        x = _dense(self.weights["fc1"], bags) if "fc1" in self.weights else bags
        x = nn.relu(x) if self.has_relu else x
        batch, length, width = x.shape
        side = math.isqrt(length - 1) + 1
        token = jnp.broadcast_to(self.weights["cls_token"], (batch, 1, width))
        x = jnp.concatenate([token, x, x[:, : side**2 - length]], axis=1)
        first, *middle, _ = self.weights["layers"]
        x = self._attend(first, x)
        square = x[:, 1:].reshape(batch, side, side, width)
        square = _convolve(self.weights["pos_layer"], square).reshape(batch, -1, width)
        x = jnp.concatenate([x[:, :1], square], axis=1)
        for layer in middle:
            x = self._attend(layer, x)
        return x

    def _attend(self, layer: Weights, x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
        """Applies a layer. Bags of at most M tokens do not get softmax attention: theirs do not, either."""
        attention = layer["att_module"]
        kernel = attention["res_conv"]["weight"][:, 0, :, 0] if "res_conv" in attention else None
        query, key, value = self._heads(layer, x)
        inputs = Inputs.create(query, key, value, None, None, kernel)
        y = nystrom(inputs, self._options, LOCAL)[:, -x.shape[1] :].reshape(x.shape)
        x = x + (_dense(attention["out_proj"], y) if "out_proj" in attention else y)
        if mlp := layer.get("mlp_module"):
            hidden = _dense(mlp["0"], _layer_norm(layer["norm2"], x))
            x = x + _dense(mlp["3"], nn.gelu(hidden, approximate=False))
        return x

    def _heads(self, layer: Weights, x: Float[Array, "B T E"]) -> list[Float[Array, "B L H D"]]:
        """Returns query, key and value, with zeros in front."""
        padding = -x.shape[1] % self.num_landmarks
        x = jnp.pad(_layer_norm(layer["norm1"], x), ((0, 0), (padding, 0), (0, 0)))
        projected = jnp.split(_dense(layer["att_module"]["qkv_nn"], x), 3, axis=-1)
        return [y.reshape(*x.shape[:2], self.num_heads, -1) for y in projected]


def read_transmil(
    tensors: Mapping[str, Any], *, num_heads: int | None = None, num_landmarks: int | None = None
) -> TransMil:
    """Returns the model of a state dict of the authors' code (on lucidrains' attention) or of torchmil.

    Args:
      tensors: Arrays or PyTorch tensors by name, or a checkpoint of Lightning, which has them as
        `state_dict`; prefixes `model.` and `module.` are removed.
      num_heads: H; None for the heads of the convolution, or for torchmil, which has none, its default of 4.
      num_landmarks: M; None for half the width, the default of both.

    Raises:
      ValueError: The names are not those of TransMIL, or the width is not a multiple of the heads.
    """
    tensors = tensors.get("state_dict", tensors)
    named = {}
    for name, tensor in tensors.items():
        for pattern, new in RENAMED.items():
            name = re.sub(pattern, new, name)
        named[tuple(name.split("."))] = jnp.asarray(np.asarray(tensor))
    weights = unflatten_dict(named)
    layers = weights.get("layers", {})
    if not weights.keys() - {"fc1"} == PARTS or len(layers) < 2:
        raise ValueError(
            f"A state dict of TransMIL needs {', '.join(sorted(PARTS))} and two or more layers, as in the"
            f" authors' code or torchmil; got {', '.join(sorted(weights)) or 'no tensors'}."
        )
    weights["layers"] = [layers[i] for i in sorted(layers, key=int)]
    convolution = layers["0"]["att_module"].get("res_conv")
    heads = num_heads or (TORCHMIL_HEADS if convolution is None else len(convolution["weight"]))
    width = weights["cls_token"].shape[-1]
    if width % heads:
        raise ValueError(f"The width, {width}, must be a multiple of num_heads, got {heads}.")
    has_relu = any("_fc1" in name for name in tensors)
    return TransMil(weights, heads, num_landmarks or width // 2, has_relu)


def _dense(layer: Weights, x: Float[Array, "*B E"]) -> Float[Array, "*B F"]:
    """Applies a dense layer with a weight [F E] and perhaps a bias."""
    y = x @ layer["weight"].T
    return y + jnp.broadcast_to(layer["bias"], y.shape) if "bias" in layer else y


def _layer_norm(layer: Weights, x: Float[Array, "*B E"]) -> Float[Array, "*B E"]:
    """Applies a layer norm with PyTorch's epsilon."""
    params = {"scale": layer["weight"], "bias": layer["bias"]}
    y: Any = nn.LayerNorm(epsilon=1e-5).apply({"params": params}, x)
    return y


def _convolve(layer: Weights, x: Float[Array, "B S S E"]) -> Float[Array, "B S S E"]:
    """Adds three depthwise convolutions, of 7 × 7, 5 × 5 and 3 × 3, as one of 7 × 7."""
    kernel = jnp.zeros((x.shape[-1], 7, 7)).at[:, 3, 3].set(1)
    for name, edge in (("proj", 0), ("proj1", 1), ("proj2", 2)):
        inner = slice(edge, 7 - edge)
        kernel = kernel.at[:, inner, inner].add(layer[name]["weight"][:, 0])
    y = jax.lax.conv_general_dilated(
        x,
        kernel.transpose(1, 2, 0)[:, :, None],
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[-1],
    )
    biases = [layer[name]["bias"] for name in ("proj", "proj1", "proj2")]
    return y + jnp.broadcast_to(sum(biases), y.shape)
