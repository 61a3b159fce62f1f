"""Converts tensors of other implementations to Flax parameters, and back."""

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
from nystromformer_jax.pretrained.config_json import SIZE_FIELDS, Source, Tensors, has_convolution
from nystromformer_jax.pretrained.names import BACKBONE, FAMILIES, IGNORED, TOKEN_HEADS, tensor_name

Tensor = npt.NDArray[Any]

MAX_NAMES = 8  # listed in a message before "and k more"

_logger = logging.getLogger(__name__)


def read_params(
    model: nn.Module, source: Source, tensors: Tensors, *, seed: int = 0, other_labels: bool = False
) -> dict[str, Any]:
    """Returns the parameters of `model`, converted from `tensors` or newly initialized.

    A head that is missing in the source, and parameters of a different attention, are initialized from
    `seed`, with one log line. With `other_labels`, a classifier for a different number of labels is
    initialized as well. Convolution kernels that are missing in the source are zeros.
    """
    config: NystromformerConfig = model.config
    family = source.family
    tensors = {family.canonical(name): tensor for name, tensor in tensors.items()}
    modules = family.modules_of(type(model))
    if type(model) is not source.model:  # "classifier" names a different layer in each head
        modules = {k: v for k, v in modules.items() if not v.startswith("classifier")}
    # Modules of the backbone and of the source's own head: their tensors must be there.
    required = set(family.modules_of(source.model or Nystromformer).values())
    other_attention = source.fields["attention"] != config.attention
    _check_sizes(source, tensors)
    used = _resolve_decoder(model, source, tensors, modules)

    shapes = param_shapes(model)
    params: dict[str, Tensor] = {}
    fresh, missing, misshapen = list[str](), list[str](), list[str]()
    failed = list[str]()  # paths of missing or misshapen parameters
    for path, shape in shapes.items():
        name = tensor_name(path, modules)
        in_head = type(model) is not Nystromformer and not path.startswith(BACKBONE)
        if path.endswith("conv_kernel") and not source.conv_kernel_size:
            params[path] = np.zeros(shape, np.float32)
        elif name is not None and name in tensors:
            used.add(name)
            # PyTorch has [C, E] and [C]. A scalar has no first axis; it is reported as misshapen.
            same_labels = tensors[name].shape[:1] in ((), shape[-1:])
            if other_labels and path.startswith("output/") and not same_labels:
                fresh.append(path)
            elif error := _shape_error(path, shape, tensors[name], source):
                misshapen.append(f"{name} {error}")
                failed.append(path)
            else:
                params[path] = _to_param(path, shape, tensors[name], source, config)
        elif (other_attention and "/core/" in path) or (
            in_head and modules.get(path.rpartition("/")[0]) not in required
        ):
            fresh.append(path)
        else:
            missing.append(name or path)
            failed.append(path)
    unknown = sorted(name for name in tensors.keys() - used if not IGNORED.fullmatch(name))
    if missing or misshapen:
        what = "its config.json"
        if other_attention and all("/attention/" in path for path in failed):
            what = f"attention={config.attention!r}: they are of {source.fields['attention']} attention"
        raise mismatch_error(
            f"The weights in {source.where} do not match {what}",
            missing=missing,
            misshapen=misshapen,
            unknown=unknown,
        )
    if unknown:
        _logger.info("%s: ignored the unknown tensors %s.", source.where, _join(unknown))
    if fresh:
        _logger.info("Newly initialized from seed %d, not trained yet: %s.", seed, _join(fresh))
        params |= _initialize(model, fresh, seed)
    return unflatten_dict({path: jnp.asarray(params[path]) for path in shapes}, sep="/")


def write_tensors(
    model: nn.Module, params: Mapping[str, Any], layout: str, position_offset: int
) -> dict[str, Tensor]:
    """Returns the tensors of `model` in a layout of `FAMILIES`.

    Hugging Face's Nyströmformer always has a convolution, so a model without one gets zero kernels of
    width 1. `position_offset` is the number of zero rows added before the position table.
    """
    flat = {path: np.asarray(leaf) for path, leaf in flatten_dict(dict(params), sep="/").items()}
    shapes = param_shapes(model)
    missing = [path for path in shapes if path not in flat]
    misshapen = [
        f"{path} is {list(flat[path].shape)}, needs {list(shape)}"
        for path, shape in shapes.items()
        if path in flat and flat[path].shape != shape
    ]
    unknown = sorted(flat.keys() - shapes.keys())
    if missing or misshapen or unknown:
        raise mismatch_error(
            f"The parameters to save do not match this {type(model).__name__}",
            missing=missing,
            misshapen=misshapen,
            unknown=unknown,
        )
    family = FAMILIES[layout]
    modules = family.modules_of(type(model))
    tensors = {}
    for path in shapes:
        name = tensor_name(path, modules)
        assert name is not None  # the layouts of `layout_of` have all names
        tensors[name] = np.ascontiguousarray(_to_tensor(path, flat[path], position_offset))
    config: NystromformerConfig = model.config
    if type(model) in TOKEN_HEADS and not config.tie_word_embeddings:
        # transformers has this bias under two names, and uses the second.
        tensors[f"{family.decoder}.bias"] = tensors[f"{modules['mlm']}.bias"].copy()
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


def conv_kernel(weight: Tensor) -> Tensor:
    """Converts a PyTorch depthwise kernel [H, 1, W, 1] to [H, W]; no flip, both are correlations."""
    return weight[:, 0, :, 0]


def mismatch_error(message: str, **names: list[str]) -> ValueError:
    """Returns a ValueError that lists the mismatched tensors by kind of problem."""
    parts = [f"{problem}: {_join(found)}" for problem, found in names.items() if found]
    return ValueError(f"{message}; {'; '.join(parts)}.")


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
    model: nn.Module, source: Source, tensors: dict[str, Tensor], modules: Mapping[str, str]
) -> set[str]:
    """Copies the decoder's tensors to the names that `model` uses; returns their original names.

    Raises ValueError if `model` ties its decoder to word embeddings that differ from it.
    """
    weight_name, bias_name = (f"{source.family.decoder}.{x}" for x in ("weight", "bias"))
    words_name = f"{source.family.prefix}embeddings.word_embeddings.weight"
    weight, words = tensors.get(weight_name), tensors.get(words_name)
    our_weight, our_bias = (tensor_name(f"mlm/{leaf}", modules) for leaf in ("decoder", "bias"))
    if type(model) not in TOKEN_HEADS or our_weight is None or our_bias is None:
        return {weight_name, bias_name}
    if bias_name in tensors:
        tensors[our_bias] = tensors[bias_name]
    config: NystromformerConfig = model.config
    if config.tie_word_embeddings:
        if weight is not None and words is not None and not np.array_equal(words, weight):
            raise ValueError(
                f"The decoder of {source.where} is not tied to its word embeddings ({weight_name}"
                " differs from them): pass tie_word_embeddings=False, or a model_class without a"
                " masked-token head."
            )
    elif weight is not None:
        tensors[our_weight] = weight
    elif words is not None and source.fields.get("tie_word_embeddings", True):
        tensors[our_weight] = words
    return {weight_name, bias_name}


def _check_sizes(source: Source, tensors: Tensors) -> None:
    """Raises ValueError unless the sizes in config.json match the embeddings."""
    for table, axis, theirs in (
        ("word", 0, "vocab_size"),
        ("word", 1, "hidden_size"),
        ("token_type", 0, "type_vocab_size"),
    ):
        name = f"{source.family.prefix}embeddings.{table}_embeddings.weight"
        tensor, size = tensors.get(name), source.fields[SIZE_FIELDS[theirs]]
        if tensor is not None and tensor.ndim == 2 and tensor.shape[axis] != size:
            raise ValueError(
                f"{source.where} has {theirs} = {size} in its config.json, but {name} has"
                f" {tensor.shape[axis]}: correct config.json, or use the weights that match it."
            )


def _shape_error(path: str, shape: tuple[int, ...], tensor: Tensor, source: Source) -> str:
    """Returns a description of an invalid dtype or shape, or an empty string if the tensor is valid."""
    if tensor.dtype.name not in FLOATS:
        return f"is of {tensor.dtype}, needs one of {', '.join(FLOATS)}"
    if path.endswith("conv_kernel"):
        shape = (shape[0], 1, source.conv_kernel_size, 1)
    elif path.endswith("/kernel"):
        shape = shape[::-1]
    elif path.endswith("embeddings/position/embedding"):
        shape = (source.fields["max_len"] + source.position_offset, shape[1])
    return "" if tensor.shape == shape else f"is {list(tensor.shape)}, needs {list(shape)}"


def _to_param(
    path: str, shape: tuple[int, ...], tensor: Tensor, source: Source, config: NystromformerConfig
) -> Tensor:
    """Converts a tensor of valid shape to a float32 parameter."""
    tensor = tensor.astype(np.float32, copy=False)
    if path.endswith("conv_kernel"):
        around = (shape[1] - tensor.shape[2]) // 2  # zeros on each side of the kernel
        return np.pad(conv_kernel(tensor), ((0, 0), (around, around)))
    if path.endswith("/kernel"):
        return tensor.T  # PyTorch's [F, E] to Flax's [E, F]
    if path.endswith("embeddings/position/embedding"):
        table = tensor[source.position_offset :]
        repeats = -(-config.max_len // len(table))
        return np.tile(table, (repeats, 1))[: config.max_len]
    return tensor


def _to_tensor(path: str, param: Tensor, position_offset: int) -> Tensor:
    """Converts a parameter to a tensor; the inverse of `_to_param`."""
    param = param.astype(np.float32, copy=False)
    if path.endswith("conv_kernel"):
        return param[:, None, :, None]
    if path.endswith("/kernel"):
        return param.T
    if path.endswith("embeddings/position/embedding"):
        return np.pad(param, ((position_offset, 0), (0, 0)))
    return param
