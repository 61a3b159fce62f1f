"""A trained run, opened to look into it: what each layer's attention receives on test examples."""

import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from harness.run_files import check_kinds, read_object
from lra import data, train
from lra.models import Classifier, DualEncoder
from nystromformer_jax import MultiHeadAttention
from nystromformer_jax.cores import CORES
from nystromformer_jax.training import load_params
from nystromformer_jax.typing import Array, Bool, Float

CANDIDATES = 64  # `Trained.longest` looks at so many test examples


class Received(NamedTuple):
    """What a layer's core was given, and what it gave back; `mask` is True at real tokens."""

    query: Float[Array, "B L H D"]
    key: Float[Array, "B L H D"]
    value: Float[Array, "B L H D"]
    mask: Bool[Array, "B L"]
    output: Float[Array, "B L H D"]


class Tokens(NamedTuple):
    """Query, key and value of sequences of one length, without padding, in float32."""

    query: Float[Array, "B L H D"]
    key: Float[Array, "B L H D"]
    value: Float[Array, "B L H D"]

    def first(self, length: int) -> "Tokens":
        """The first `length` tokens of every sequence."""
        return Tokens(*(x[:, :length] for x in self))


@functools.partial(jax.jit, static_argnames="model")
def received(
    model: Classifier | DualEncoder, params: Any, inputs: Sequence[Array]
) -> tuple[Received, ...]:
    """Runs `model` deterministically and returns what every layer's core received, in their order.

    Args:
      model: Its layers attend through `MultiHeadAttention`.
      params: Its parameters.
      inputs: What `model.batch_keys` names. The two texts of a pair lie side by side in the batch.
    """
    found = []

    def listen(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        output = call(*args, **kwargs)
        module = context.module
        if isinstance(module.parent, MultiHeadAttention) and module.name == "core":
            query, key, value, mask = args[:4]
            found.append(Received(query, key, value, mask, output))
        return output

    with nn.intercept_methods(listen):
        model.apply({"params": params}, *inputs, deterministic=True)
    return tuple(found)


def unpadded(layer: Received) -> Tokens:
    """The real tokens of the first sequence."""
    real = np.asarray(layer.mask[0])
    return Tokens(*(x[:1, real].astype(jnp.float32) for x in (layer.query, layer.key, layer.value)))


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run with its test set and the parameters of one checkpoint.

    Attributes:
      name: Of its folder.
      run: Its `config` is the run's own; its mesh is this machine's.
      task: Its data.
      params: On the host.
      step: Of the checkpoint.
      finished: Whether the checkpoint is the best one of a finished run; else it is the latest.
    """

    name: str
    run: train.Run
    task: data.Task
    params: Any
    step: int
    finished: bool

    def received(self, example: int) -> tuple[Received, ...]:
        """What every layer's core receives on a test example, padded as in training."""
        batch = self.task.splits["test"].batch(np.array([example]), self.run.data.padding)
        inputs = tuple(jnp.asarray(batch[key]) for key in self.run.model.batch_keys)
        return received(self.run.model, self.params, inputs)

    def words(self, example: int, length: int) -> list[str]:
        """A name of each of the `length` tokens of a ListOps example; none of another task's."""
        if not self.task.name.startswith("listops"):
            return []
        tokens = self.task.splits["test"][example][0][: self.run.data.max_len]
        words = self.task.decode(tokens).split()
        return ["cls"] * (length - len(words)) + words

    def longest(self, count: int) -> list[int]:
        """The longest of the first test examples; of pairs, by their first texts."""
        split = self.task.splits["test"]
        batch = split.batch(np.arange(min(CANDIDATES, len(split))), self.run.data.padding)
        lengths = batch[self.run.model.batch_keys[1]].sum(axis=1)
        found: list[int] = np.argsort(-lengths, kind="stable")[:count].tolist()
        return found

    def layers(self, examples: Sequence[int]) -> list[Tokens]:
        """What each layer receives on several examples, cut to the shortest of them."""
        of_examples = [[unpadded(layer) for layer in self.received(one)] for one in examples]
        length = min(layers[0].query.shape[1] for layers in of_examples)
        return [
            Tokens(*map(jnp.concatenate, zip(*(one.first(length) for one in layer), strict=True)))
            for layer in zip(*of_examples, strict=True)
        ]


def open_run(folder: Path, *, data_dir: str = "", max_len: int) -> Trained:
    """Reads a run's config, the data that it names, and its best checkpoint or else its latest.

    The folder may be that of a run in progress; nothing in it is touched.

    Args:
      folder: The run's `--workdir`.
      data_dir: Where its data lie now, if they have moved.
      max_len: Runs on longer sequences are refused.

    Raises:
      ValueError, OSError: In a sentence, what is missing or does not fit.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no run (no config.json): pass --workdir's folder.")
    config = read_object(folder / "config.json")
    check_kinds(folder / "config.json", config, dict.fromkeys(config, "an object"))
    run = train.prepare(_anywhere(config))
    if getattr(CORES[run.attention], "shares_query_and_key", False):
        raise ValueError(
            f"{run.attention} attention has no keys of its own, so that it has no map to compare:"
            " pass a run of another attention."
        )
    length = run.data.padding.padded_len
    if length > max_len:
        raise ValueError(
            f"{folder} attends over {length:,} tokens, and the softmax attention to compare with takes"
            f" too long over more than {max_len:,}: pass a run on shorter sequences."
        )
    finished = (folder / "result.json").is_file()
    checkpoints = folder / "checkpoints"
    step = _best_step(folder / "result.json") if finished else _latest(checkpoints)
    params = _load(checkpoints, step, run)
    own_data = dataclasses.replace(run.data, dir=data_dir or run.data.dir)
    task = data.load(own_data)
    _require_data(folder, task.sha256)
    run = dataclasses.replace(run, config=config, data=own_data)
    return Trained(folder.resolve().name, run, task, params, step, finished)


def _anywhere(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as any machine can lay it out: nothing is trained here."""
    changes = {
        "mesh": {"data": -1, "sequence": 1},
        "train": {"batch_size": jax.device_count(), "accumulation": 1},
        "eval": {"batch_size": 0},
    }
    return {name: {**section, **changes.get(name, {})} for name, section in config.items()}


def _best_step(file: Path) -> int:
    result = read_object(file)
    if "best_step" not in result:
        raise ValueError(f"{file} is no run's result: best_step is missing.")
    check_kinds(file, result, {"best_step": "a whole number"})
    step: int = result["best_step"]
    return step


def _latest(checkpoints: Path) -> int:
    steps = [int(path.name) for path in checkpoints.glob("*") if path.name.isdigit()]
    if not steps:
        raise FileNotFoundError(
            f"{checkpoints} holds no checkpoint yet: train until checkpoint.every_steps or the end."
        )
    return max(steps)


def _load(checkpoints: Path, step: int, run: train.Run) -> Any:
    if not (checkpoints / str(step)).is_dir():
        raise FileNotFoundError(
            f"{checkpoints} lacks step {step}, the run's best: pass the folder that it was trained in."
        )
    # A copy: who opens checkpoints tidies up unfinished saves, and one may be in progress.
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(checkpoints / str(step), Path(copy) / str(step))
        params = load_params(Path(copy), step, train.make_params(run), run.mesh)
        return jax.device_get(params)


def _require_data(folder: Path, sha256: str) -> None:
    file = folder / "data.json"
    own = read_object(file).get("sha256") if file.is_file() else sha256
    if not isinstance(own, str):
        raise ValueError(
            f"{file} names no data: they changed while the run was trained, or the file is damaged."
            " Pass another run."
        )
    if own != sha256:
        raise ValueError(
            f"{folder} holds a run on other data (sha256 {own[:12]}…; these have {sha256[:12]}…):"
            " pass the folder of its own as --data_dir."
        )
