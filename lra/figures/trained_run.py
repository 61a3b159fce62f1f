"""Opens a trained run and captures the inputs of each layer's attention."""

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cli.commands import parser_of
from lra import data
from lra.models import Model
from lra.predict import TrainedModel, load_model, read_run
from nystromformer_jax import attention_maps
from nystromformer_jax.attention.checks import mask_or_ones
from nystromformer_jax.cores import core_class
from nystromformer_jax.layers.encoder import projections
from nystromformer_jax.support.durable import read_record
from nystromformer_jax.training import config_sha256, describe_environment
from nystromformer_jax.training.workdir import CHANGED
from nystromformer_jax.typing import Array, Bool, Float
from reporting.writer import output_path, path_argument

CANDIDATES = 64  # number of test examples that `Trained.longest` considers


class CoreCall(NamedTuple):
    """Inputs of a layer's attention core; `mask` is True at real tokens."""

    query: Float[Array, "B L H D"]
    key: Float[Array, "B L H D"]
    value: Float[Array, "B L H D"]
    mask: Bool[Array, "B L"]


# Query, key and value of sequences of equal length, without padding, in float32, [B, L, H, D].
Tokens = tuple[Array, Array, Array]


@functools.partial(jax.jit, static_argnames="model")
def capture_cores(model: Model, params: Any, inputs: Sequence[Array]) -> tuple[CoreCall, ...]:
    """Runs `model` deterministically and returns the call of each layer's core, in order.

    `inputs` are the arrays of `model.batch_keys`. The texts of a pair are adjacent in the batch.
    """
    maps = attention_maps(model, {"params": params}, *inputs, deterministic=True)
    inputs_of_cores = (layer.inputs for layer in maps)
    return tuple(CoreCall(*own[:3], mask_or_ones(own.mask, own.key)) for own in inputs_of_cores)


def unpadded(layer: CoreCall) -> Tokens:
    """Returns query, key and value of the real tokens of the first sequence."""
    real = np.flatnonzero(layer.mask[0])
    query, key, value = (x[:1, real].astype(jnp.float32) for x in layer[:3])
    return query, key, value


@dataclasses.dataclass(frozen=True)
class Trained(TrainedModel):
    """The model of a run with the data of the run."""

    name: str  # name of the run folder
    task: data.Task

    @property
    def origin(self) -> dict[str, Any]:
        """Description of the run, its data, its checkpoint and the environment, for a file of numbers."""
        return {
            "run": self.name,
            "task": self.task.name,
            "attention": self.run.attention,
            "config_sha256": config_sha256(self.run.config),
            "data_sha256": self.task.sha256,
            "checkpoint": {"step": self.step, "best": self.finished},
            **describe_environment(),
        }

    def core_calls(self, example: int, split: str = "test") -> tuple[CoreCall, ...]:
        """Returns the calls of all attention cores on an example, padded to `data.padded_len`."""
        batch = self.task.splits[split].batch(np.array([example]), self.run.data.padding)
        inputs = tuple(jnp.asarray(batch[key]) for key in self.run.model.batch_keys)
        return capture_cores(self.run.model, self.params, inputs)

    def longest(self, count: int) -> list[int]:
        """Returns the indices of the `count` longest of the first `CANDIDATES`, or `count`, test examples.

        The length of a pair is that of its first text.
        """
        split = self.task.splits["test"]
        rows = np.arange(min(max(CANDIDATES, count), len(split)))
        batch = split.batch(rows, self.run.data.padding)
        lengths = batch[self.run.model.batch_keys[1]].sum(axis=1)
        found: list[int] = np.argsort(-lengths, kind="stable")[:count].tolist()
        return found

    def layers(self, examples: Sequence[int]) -> list[Tokens]:
        """Returns the inputs of each attention core on examples truncated to the shortest of them."""
        of_examples = [[unpadded(layer) for layer in self.core_calls(one)] for one in examples]
        length = min(tokens[0].shape[1] for tokens, *_ in of_examples)
        return jax.tree.map(lambda *xs: jnp.concatenate([x[:, :length] for x in xs]), *of_examples)


def new_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the arguments of all commands that draw figures of a run."""
    parser = parser_of(module, description)
    parser.add_argument("run", type=path_argument, help="folder of a run")
    parser.add_argument("--data_dir", default="", help="folder of the run's data, if moved")
    parser.add_argument(
        "--out", type=output_path, help="prefix of the files; default results/figures/<run>"
    )
    return parser


def open_run(folder: Path, *, data_dir: str = "", max_len: int | None = None) -> Trained:
    """Opens a run with the data and the best checkpoint, or the latest one if the run is not finished.

    The folder is not modified, and the run may be in progress. `data_dir` overrides the data folder of
    the config. If `max_len` is given, the run must suit a comparison with softmax attention.

    Raises:
      ValueError, OSError: The run is incomplete or invalid, has no separate keys to compare, or has
        sequences longer than `max_len`.
    """
    run = read_run(folder)
    if max_len is not None and len(projections(core_class(run.attention))) < 3:
        raise ValueError(
            f"{run.attention} attention has no separate queries and keys, so its attention map cannot be"
            " compared: pass a run with another attention."
        )
    length = run.data.padding.padded_len
    if max_len is not None and length > max_len:
        raise ValueError(
            f"{folder} has sequences of {length:,} tokens, but the comparison with softmax attention"
            f" is too slow for more than {max_len:,}: pass a run on shorter sequences."
        )
    model = load_model(folder, run)
    data_config = dataclasses.replace(run.data, dir=data_dir or run.data.dir)
    task = data.load(data_config)
    _require_data(folder, task.sha256)
    own = vars(model) | {"run": dataclasses.replace(model.run, data=data_config)}
    return Trained(**own, name=folder.resolve().name, task=task)


def _require_data(folder: Path, sha256: str) -> None:
    recorded = read_record(folder).get("hashes", {"sha256": sha256})
    trained_on = recorded.get("sha256")
    if not isinstance(trained_on, str) or CHANGED in recorded:
        raise ValueError(
            f"{folder / 'config.json'} has no valid hash of the data: they changed during training, or the"
            " file is corrupt. Pass another run."
        )
    if trained_on != sha256:
        raise ValueError(
            f"{folder} was trained on other data (sha256 {trained_on[:12]}…; these have"
            f" {sha256[:12]}…): pass the folder of its data as --data_dir."
        )
