"""Tensors of other codes to parameters of ours and back; no files."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax.traverse_util import flatten_dict, unflatten_dict

from nystromformer_jax.models import (
    Nystromformer,
    NystromformerConfig,
    NystromformerForMultipleChoice,
)
from nystromformer_jax.pretrained.names import (
    BACKBONE,
    FAMILIES,
    HEADS_OF_TOKENS,
    is_passed_over,
    tensor_name,
)
from nystromformer_jax.pretrained.source import ROWS_IN_FRONT, Source, has_convolution

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]

FLOATS = tuple(np.dtype(kind) for kind in (np.float16, jnp.bfloat16, np.float32, np.float64))
LISTED = 8  # names in a message, before "and k more"

_logger = logging.getLogger(__name__)


def read_params(
    model: nn.Module,
    source: Source,
    tensors: Tensors,
    *,
    seed: int = 0,
    other_labels: bool = False,
) -> dict[str, Any]:
    """The parameters of `model`: read where `source` has them, else made.

    Made, from `seed`, are a head that the source has not, and what an attention that is not the
    source's learns; one log line says which. Kernels of a convolution that the source has not are
    zeros, which change nothing until they are trained. Tensors that the model has no use for are
    passed over: those of other heads, poolers and buffers in silence, others with a log line.

    Args:
      model: One of `names.MODELS`.
      source: Says what `tensors` are.
      tensors: By whatever names their files have.
      seed: Of what is made.
      other_labels: Whether a classifier for another number of labels is made anew, too.

    Raises:
      ValueError: Tensors that are missing or misshapen, all in one sentence; an untied decoder.
    """
    config: NystromformerConfig = model.config
    family = source.family
    tensors = {family.canonical(name): tensor for name, tensor in tensors.items()}
    modules = family.modules_of(type(model))
    if type(model) is not source.model:  # "classifier" means another layer in every head
        modules = {k: v for k, v in modules.items() if not v.startswith("classifier")}
    promised = set(family.modules_of(source.model or Nystromformer).values())
    other_attention = source.fields["attention"] != config.attention
    used = _decoder(model, source, tensors, modules)

    wanted = param_shapes(model)
    params: dict[str, Tensor] = {}
    fresh, missing, misshapen = list[str](), list[str](), list[str]()
    for path, shape in wanted.items():
        name = tensor_name(path, modules)
        in_head = type(model) is not Nystromformer and not path.startswith(BACKBONE)
        if path.endswith("conv_kernel") and not source.conv_kernel_size:
            params[path] = np.zeros(shape, np.float32)
        elif name is not None and name in tensors:
            used.add(name)
            if other_labels and path.startswith("output/") and len(tensors[name]) != shape[-1]:
                fresh.append(path)
            elif wrong := _misshapen(path, shape, tensors[name], source):
                misshapen.append(f"{name} {wrong}")
            else:
                params[path] = _to_param(path, shape, tensors[name], source, config)
        elif (other_attention and "/core/" in path) or (
            in_head and modules.get(path.rpartition("/")[0]) not in promised
        ):
            fresh.append(path)
        else:
            missing.append(name or path)
    extra = sorted(name for name in tensors.keys() - used if not is_passed_over(name))
    if missing or misshapen:
        raise complaint(
            f"{source.where} does not hold the weights of its config.json",
            missing=missing,
            misshapen=misshapen,
            unknown=extra,
        )
    if extra:
        _logger.info("%s: passed over %s.", source.where, listed(extra))
    if fresh:
        _logger.info("Made from seed %d, and not trained yet: %s.", seed, listed(fresh))
        params |= _make(model, fresh, seed)
    return unflatten_dict({path: jnp.asarray(params[path]) for path in wanted}, sep="/")


def write_tensors(model: nn.Module, params: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of `model` in Hugging Face's layout.

    Theirs always has a convolution: where ours has none, a kernel of one zero stands for it.

    Raises:
      ValueError: Parameters that are not the model's.
    """
    flat = {path: np.asarray(leaf) for path, leaf in flatten_dict(dict(params), sep="/").items()}
    wanted = param_shapes(model)
    missing = [path for path in wanted if path not in flat]
    misshapen = [
        f"{path} is {list(flat[path].shape)}, needs {list(shape)}"
        for path, shape in wanted.items()
        if path in flat and flat[path].shape != shape
    ]
    unknown = sorted(flat.keys() - wanted.keys())
    if missing or misshapen or unknown:
        raise complaint(
            f"The parameters to save are not those of this {type(model).__name__}",
            missing=missing,
            misshapen=misshapen,
            unknown=unknown,
        )
    family = FAMILIES["nystromformer"]
    modules = family.modules_of(type(model))
    tensors = {}
    for path in wanted:
        name = tensor_name(path, modules)
        assert name is not None  # every model has names in its own family
        tensors[name] = np.ascontiguousarray(_to_tensor(path, flat[path]))
    config: NystromformerConfig = model.config
    if not has_convolution(config.attention, config.conv_kernel_size):
        for layer in range(config.num_layers):
            name = f"{family.prefix}encoder.layer.{layer}.attention.self.conv.weight"
            tensors[name] = np.zeros((config.num_heads, 1, 1, 1), np.float32)
    if isinstance(model, Nystromformer):
        return {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    return tensors


def param_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by its path; nothing is computed."""
    shapes = jax.eval_shape(_init(model), jax.random.key(0))
    return {path: leaf.shape for path, leaf in flatten_dict(shapes, sep="/").items()}


def listed(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def dense_kernel(weight: Tensor) -> Tensor:
    """PyTorch's [F, E] as flax's [E, F]."""
    return weight.T


def conv_kernel(weight: Tensor) -> Tensor:
    """PyTorch's depthwise [H, 1, W, 1] as [H, W]; both correlate, so that nothing is flipped."""
    return weight[:, 0, :, 0]


def complaint(sentence: str, **names: list[str]) -> ValueError:
    """Everything that does not fit, said at once."""
    parts = [f"{what}: {listed(found)}" for what, found in names.items() if found]
    return ValueError(f"{sentence}; {'; '.join(parts)}.")


def _init(model: nn.Module) -> Callable[[jax.Array], Any]:
    config: NystromformerConfig = model.config
    # Linformer has a column for every position. Layouts by position want a length that M divides.
    length = config.max_len
    if config.attention == "nystrom":
        length = min(config.num_landmarks, length)
    batch = (1, 1) if isinstance(model, NystromformerForMultipleChoice) else (1,)
    inputs = jnp.zeros((*batch, length), jnp.int32)
    return lambda rng: model.init(rng, inputs, deterministic=True)["params"]


def _make(model: nn.Module, paths: list[str], seed: int) -> dict[str, Tensor]:
    """The parameters at `paths` as `model.init` makes them; no others are computed."""

    def make(rng: jax.Array) -> dict[str, jax.Array]:
        flat = flatten_dict(_init(model)(rng), sep="/")
        return {path: flat[path] for path in paths}

    made = jax.jit(make)(jax.random.key(seed))
    return {path: np.asarray(leaf) for path, leaf in made.items()}


def _decoder(
    model: nn.Module, source: Source, tensors: dict[str, Tensor], modules: Mapping[str, str]
) -> set[str]:
    """Checks that the last layer is tied, lends its bias; gives the names that are done with."""
    names = {leaf: f"{source.family.decoder}.{leaf}" for leaf in ("weight", "bias")}
    if type(model) in HEADS_OF_TOKENS:
        bias = tensor_name("mlm/bias", modules)
        if bias is not None and bias not in tensors and names["bias"] in tensors:
            tensors[bias] = tensors[names["bias"]]
        words = tensors.get(f"{source.family.prefix}embeddings.word_embeddings.weight")
        weight = tensors.get(names["weight"])
        if words is not None and weight is not None and not np.array_equal(words, weight):
            raise ValueError(
                f"{source.where} has a decoder of its own ({names['weight']} differs from the word"
                " embeddings), and this model's is the word embeddings: load it with another"
                " model_class, without that head."
            )
    return set(names.values())


def _misshapen(path: str, shape: tuple[int, ...], tensor: Tensor, source: Source) -> str:
    """What is wrong with a tensor, or nothing."""
    if tensor.dtype not in FLOATS:
        return f"is of {tensor.dtype}, needs one of {', '.join(str(kind) for kind in FLOATS)}"
    if path.endswith("conv_kernel"):
        shape = (shape[0], 1, source.conv_kernel_size, 1)
    elif path.endswith("/kernel"):
        shape = shape[::-1]
    elif path.endswith("embeddings/position/embedding"):
        shape = (source.fields["max_len"] + source.rows_in_front, shape[1])
    return "" if tensor.shape == shape else f"is {list(tensor.shape)}, needs {list(shape)}"


def _to_param(
    path: str, shape: tuple[int, ...], tensor: Tensor, source: Source, config: NystromformerConfig
) -> Tensor:
    """A tensor of the right shape as a parameter, in float32."""
    tensor = tensor.astype(np.float32, copy=False)
    if path.endswith("conv_kernel"):
        around = (shape[1] - tensor.shape[2]) // 2  # zeros around a kernel change nothing
        return np.pad(conv_kernel(tensor), ((0, 0), (around, around)))
    if path.endswith("/kernel"):
        return dense_kernel(tensor)
    if path.endswith("embeddings/position/embedding"):
        table = tensor[source.rows_in_front :]
        times = -(-config.max_len // len(table))
        return np.tile(table, (times, 1))[: config.max_len]
    return tensor


def _to_tensor(path: str, param: Tensor) -> Tensor:
    """`_to_param` backwards."""
    param = param.astype(np.float32, copy=False)
    if path.endswith("conv_kernel"):
        return param[:, None, :, None]
    if path.endswith("/kernel"):
        return param.T
    if path.endswith("embeddings/position/embedding"):
        return np.pad(param, ((ROWS_IN_FRONT, 0), (0, 0)))
    return param
