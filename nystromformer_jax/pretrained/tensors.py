"""Converts tensors in Hugging Face's layout to Flax parameters, and back."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax.traverse_util import flatten_dict, unflatten_dict

from nystromformer_jax.attention.checks import FLOATS
from nystromformer_jax.backbone import Nystromformer, NystromformerConfig
from nystromformer_jax.models import NystromformerForMultipleChoice
from nystromformer_jax.pretrained.config_json import Source, has_convolution
from nystromformer_jax.pretrained.names import (
    BACKBONE,
    DECODER,
    FAMILIES,
    IGNORED,
    TOKEN_HEADS,
    WORDS,
    ModelClass,
    Tensors,
    tensor_name,
)

Tensor = npt.NDArray[Any]

MAX_NAMES = 8  # listed in a message before "and k more"

_logger = logging.getLogger(__name__)


def model_of(source: Source, tensors: Tensors) -> ModelClass | None:
    """Returns the model named in config.json, or `Nystromformer` if the weights have no tensor of its head.

    Such are folders of sentence-transformers with the config.json of the model that they were trained from.
    """
    heads = source.family.heads.get(source.model, {}) if source.model else {}
    own = tuple(f"{name}." for name in heads.values() if not name.startswith("{prefix}"))
    if not own or any(name.startswith(own) for name in source.family.canonical(tensors)):
        return source.model
    _logger.info("%s: no tensor of the head in config.json; reading the model alone.", source.where)
    return Nystromformer


def read_params(
    model: nn.Module, source: Source, tensors: Tensors, *, seed: int = 0
) -> dict[str, Any]:
    """Returns the parameters of `model`, converted from `tensors` or newly initialized.

    A head that is missing in the source, a classifier for another number of labels, and parameters of a
    different attention are initialized from `seed`, with one log line. Convolution kernels that are missing
    in the source are zeros.
    """
    config: NystromformerConfig = model.config
    tensors = source.family.canonical(tensors)
    modules = source.family.modules_of(type(model))
    if type(model) in TOKEN_HEADS:
        _resolve_decoder(config, source, tensors, f"{modules['mlm']}.{DECODER}")
    if source.architecture and type(model) is not source.model:
        # "classifier" names a different layer in each head.
        modules = {k: v for k, v in modules.items() if not v.startswith("classifier")}
    # Modules of the backbone and of the source's own head: their tensors must be there.
    required = set(source.family.modules_of(source.model or Nystromformer).values())
    other_attention = source.fields["attention"] != config.attention
    other_labels = source.fields["num_labels"] != config.num_labels

    shapes = param_shapes(model)
    names = {path: tensor_name(path, modules) or path for path in shapes}
    params: dict[str, Tensor] = {}
    fresh, wrong = list[str](), list[str]()
    for path, shape in shapes.items():
        tensor = tensors.get(names[path])
        in_head = type(model) is not Nystromformer and not path.startswith(BACKBONE)
        if path.endswith("conv_kernel") and not source.conv_width:
            params[path] = np.zeros(shape, np.float32)
        elif tensor is None:
            is_new_head = in_head and modules.get(path.rpartition("/")[0]) not in required
            if is_new_head or (other_attention and "/core/" in path):
                fresh.append(path)
            else:
                wrong.append(f"{names[path]} is missing")
        elif other_labels and path.startswith("output/") and tensor.shape[:1] != shape[-1:]:
            fresh.append(path)
        elif error := _shape_error(path, shape, tensor, source):
            wrong.append(f"{names[path]} {error}")
        else:
            params[path] = _to_param(path, shape, tensor, source)
    unknown = sorted(tensors.keys() - names.values())
    unknown = [name for name in unknown if not IGNORED.fullmatch(name)]
    if wrong:
        raise mismatch_error(
            f"The weights in {source.where}, of {source.fields['attention']} attention, do not match this"
            f" {type(model).__name__} with {config.attention} attention",
            wrong,
            unknown,
        )
    if unknown:
        _logger.info("%s: ignored the unknown tensors %s.", source.where, _join(unknown))
    if fresh:
        _logger.info(
            "These parameters are initialized from seed %d, not trained yet: %s.",
            seed,
            _join(fresh),
        )
        params |= _initialize(model, fresh, seed)
    return unflatten_dict({path: jnp.asarray(params[path]) for path in shapes}, sep="/")


def write_tensors(
    model: nn.Module, params: Mapping[str, Any], layout: str, position_offset: int
) -> dict[str, Tensor]:
    """Returns the tensors of `model` in a layout of `FAMILIES`.

    Hugging Face's Nyströmformer always has a convolution, so a model without one gets zero kernels of
    width 1. `position_offset` is the number of zero rows added before the position table.
    """
    flat = {path: np.asarray(x, np.float32) for path, x in flatten_dict(params, sep="/").items()}
    shapes = param_shapes(model)
    found = {path: param.shape for path, param in flat.items()}
    wrong = [
        f"{path} has the shape {found.get(path)}, needs {shape}"
        for path, shape in shapes.items()
        if found.get(path) != shape
    ]
    unknown = sorted(flat.keys() - shapes.keys())
    if wrong or unknown:
        message = f"The parameters to save do not match this {type(model).__name__}"
        raise mismatch_error(message, wrong, unknown)
    config: NystromformerConfig = model.config
    family = FAMILIES[layout]
    modules = family.modules_of(type(model))
    tensors = {
        str(tensor_name(path, modules)): np.ascontiguousarray(
            _to_tensor(path, flat[path], position_offset)
        )
        for path in shapes
    }
    if type(model) in TOKEN_HEADS and not config.tie_word_embeddings:
        # transformers stores this bias also as decoder.bias, and reads that one.
        tensors[f"{modules['mlm']}.decoder.bias"] = tensors[f"{modules['mlm']}.bias"].copy()
    has_kernels = has_convolution(config.attention, config.conv_kernel_size)
    if layout == "nystromformer" and not has_kernels:
        for layer in range(config.num_layers):
            name = f"{family.prefix}encoder.layer.{layer}.attention.self.conv.weight"
            tensors[name] = np.zeros((config.num_heads, 1, 1, 1), np.float32)
    if isinstance(model, Nystromformer):
        return {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    return tensors


def param_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns parameter shapes by path, without computing any values."""
    shapes = jax.eval_shape(_init_function(model), jax.random.key(0))
    return {path: leaf.shape for path, leaf in flatten_dict(shapes, sep="/").items()}


def to_param(path: str, tensor: Tensor) -> Tensor:
    """Converts a tensor of PyTorch to the axes of the Flax parameter at `path`."""
    if path.endswith("conv_kernel"):
        return tensor[:, 0, :, 0]  # [H, 1, W, 1] to [H, W]; no flip, both are correlations
    if path.endswith("/kernel"):
        return tensor.T  # [F, E] to [E, F]
    return tensor


def mismatch_error(message: str, wrong: Sequence[str], unknown: Sequence[str]) -> ValueError:
    """Returns a ValueError that lists missing or misshapen tensors, and unknown tensors."""
    problems = [_join(wrong)] if wrong else []
    problems += [f"unknown: {_join(unknown)}"] if unknown else []
    return ValueError(f"{message}: {'; '.join(problems)}.")


def _join(names: Sequence[str]) -> str:
    """Joins the first `MAX_NAMES` names and appends the number of the others."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _init_function(model: nn.Module) -> Callable[[jax.Array], Any]:
    config: NystromformerConfig = model.config
    length = min(config.num_landmarks, config.max_len)  # a multiple of M, as some layouts need
    batch = (1, 1) if isinstance(model, NystromformerForMultipleChoice) else (1,)
    inputs = jnp.zeros((*batch, length), jnp.int32)
    return lambda rng: model.init(rng, inputs, deterministic=True)["params"]


def _initialize(model: nn.Module, paths: list[str], seed: int) -> dict[str, Tensor]:
    """Returns the parameters at `paths` as initialized by `model.init`; only these are computed."""

    def init(rng: jax.Array) -> dict[str, jax.Array]:
        flat = flatten_dict(_init_function(model)(rng), sep="/")
        return {path: flat[path] for path in paths}

    params = jax.jit(init)(jax.random.key(seed))
    return {path: np.asarray(leaf) for path, leaf in params.items()}


def _resolve_decoder(
    config: NystromformerConfig, source: Source, tensors: dict[str, Tensor], name: str
) -> None:
    """Adds the decoder `name` that an untied model reads from a source with a tied one.

    Raises ValueError if the model ties its decoder to word embeddings that differ from it.
    """
    words = tensors.get(source.family.prefix + WORDS)
    if words is None:
        return
    if not config.tie_word_embeddings:
        if source.fields["tie_word_embeddings"]:
            tensors.setdefault(name, words)
    elif not np.array_equal(words, tensors.get(name, words)):
        raise ValueError(
            f"The decoder of {source.where} is not tied to its word embeddings ({name} differs from them):"
            " pass tie_word_embeddings=False, or a model_class without a masked-token head."
        )


def _shape_error(path: str, shape: tuple[int, ...], tensor: Tensor, source: Source) -> str:
    """Returns a description of an invalid dtype or shape, or an empty string if the tensor is valid."""
    if tensor.dtype.name not in FLOATS:
        return f"is of {tensor.dtype}, needs one of {', '.join(FLOATS)}"
    if path.endswith("conv_kernel"):
        shape = (shape[0], 1, source.conv_width, 1)
    elif path.endswith("/kernel"):
        shape = shape[::-1]
    elif path.endswith("embeddings/position/embedding"):
        shape = (source.fields["max_len"] + source.position_offset, shape[1])
    return "" if tensor.shape == shape else f"is {list(tensor.shape)}, needs {list(shape)}"


def _to_param(path: str, shape: tuple[int, ...], tensor: Tensor, source: Source) -> Tensor:
    """Converts a tensor of valid shape to a float32 parameter of the given shape."""
    param = to_param(path, tensor.astype(np.float32, copy=False))
    if path.endswith("conv_kernel"):
        around = (shape[1] - param.shape[1]) // 2  # zeros on each side of the kernel
        return np.pad(param, ((0, 0), (around, around)))
    if path.endswith("embeddings/position/embedding"):
        table = param[source.position_offset :]
        repeats = -(-shape[0] // len(table))
        return np.tile(table, (repeats, 1))[: shape[0]]
    return param


def _to_tensor(path: str, param: Tensor, position_offset: int) -> Tensor:
    """Converts a parameter to a tensor; the inverse of `_to_param`."""
    if path.endswith("conv_kernel"):
        return param[:, None, :, None]
    if path.endswith("/kernel"):
        return param.T
    if path.endswith("embeddings/position/embedding"):
        return np.pad(param, ((position_offset, 0), (0, 0)))
    return param
