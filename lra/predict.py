"""Predictions of a trained run on new inputs, without the data that it was trained on.

from lra.predict import open_model
model = open_model("runs/text")
probabilities = model.predict(["A wonderful film.", "I left after ten minutes."])
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from lra import data, train
from lra.data import listops
from lra.data.task import Padding, Sequences, Split
from lra.data.text import FIRST_ID
from lra.models import Model
from nystromformer_jax.support.durable import read_config, read_json
from nystromformer_jax.training import apply_model, load_params
from nystromformer_jax.training.integrity import saved_steps
from nystromformer_jax.typing import Array, Float
from reporting.runs import check_numbers


def _ids_of(text: bytes) -> npt.NDArray[np.int32]:
    """Returns the token ids of a text in UTF-8 as in the tasks Text and Retrieval, one per byte."""
    return np.frombuffer(text, np.uint8).astype(np.int32) + FIRST_ID


ENCODERS: Mapping[str, Callable[[str], npt.NDArray[np.integer]]] = {
    "listops": listops.encode,
    "listops-short": listops.encode,
    "text": lambda text: _ids_of(text.encode().strip()),
    "retrieval": lambda text: _ids_of(text.encode()),
}


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """The model of a run with the parameters of one checkpoint."""

    run: train.Run  # with the original config, on the mesh of this machine
    params: Any  # parameters of the checkpoint, in host memory
    step: int  # step of the checkpoint
    finished: bool  # True: the best checkpoint of a finished run; False: the latest checkpoint

    def predict(self, inputs: Sequence[Any], *, batch_size: int = 8) -> Float[np.ndarray, "N C"]:
        """Returns the probability of each class for each input; `argmax(axis=-1)` is the class.

        An input is a sequence of token ids or an image with values from 0 to 255; for ListOps an expression
        such as "[MAX 2 9 [MIN 4 7 ] 0 ]", and for Text a text. For Retrieval it is a pair of texts.
        Inputs longer than the config's `data.max_len` are truncated, as in training.

        Raises:
          ValueError: An input is empty, has an invalid token or another number of pixels, or the task labels
            tokens (MQAR).
        """
        task = data.describe(self.run.data.task)
        if task.targets:
            raise ValueError(
                f"{self.run.data.task} labels tokens, and not whole inputs: call self.run.model instead."
            )
        if task.pairs and not all(not isinstance(x, str) and len(x) == 2 for x in inputs):
            raise ValueError(f"An input of {self.run.data.task} is a pair, (text1, text2).")
        if not len(inputs):
            return np.zeros((0, task.num_classes), np.float32)
        sequences = [x for pair in inputs for x in pair] if task.pairs else inputs
        ids: Any = [self._ids(x, task) for x in sequences]
        offsets = np.cumsum([0, *map(len, ids)])
        pairs = np.arange(len(ids), dtype=np.int32).reshape(-1, 2) if task.pairs else None
        labels = np.zeros(len(inputs), np.int32)
        split = Split(Sequences(np.concatenate(ids), offsets), labels, pairs)
        padding = self.run.data.padding.for_longest
        outputs = logits(self.run.model, self.params, split, padding, batch_size)
        return np.asarray(jax.nn.softmax(outputs, axis=-1))

    def _ids(self, x: Any, task: data.TaskInfo) -> npt.NDArray[np.integer]:
        """Returns the token ids of an input, [L]."""
        name = self.run.data.task
        if isinstance(x, str):
            if name not in ENCODERS:
                raise ValueError(f"An input of {name} is an array of token ids, got a text.")
            ids = ENCODERS[name](x)
        else:
            ids = np.asarray(x).ravel()
        if not ids.size or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"An input of {name} needs at least one token id, an integer; got {x!r:.80}."
            )
        if ids.min() < 0 or ids.max() >= task.vocab_size:
            raise ValueError(
                f"Token ids of {name} are 0 to {task.vocab_size - 1}, got {ids.min()} to {ids.max()}."
            )
        if task.num_pixels and ids.size != task.num_pixels:
            raise ValueError(
                f"An image of {name} has {task.num_pixels:,} gray pixels, got shape {np.shape(x)}."
            )
        return ids


def logits(
    model: Model,
    params: Any,
    split: Split,
    padding: Callable[[int], Padding],
    batch_size: int,
) -> Float[np.ndarray, "N C"]:
    """Returns the logits of each example of a split, computed in batches of similar lengths.

    `padding` returns the padding of a batch whose longest example has the given number of tokens.
    """
    batch_size = min(batch_size, len(split))
    order = np.argsort(split.lengths, kind="stable")
    found: list[Any] = [None] * len(split)
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        filled = np.resize(rows, batch_size)  # repeats rows, so that all batches have one size
        batch = split.batch(filled, padding(int(split.lengths[rows[-1]])))
        arrays = tuple(batch[key] for key in model.batch_keys)
        for row, output in zip(
            rows.tolist(), np.asarray(_apply(model, params, arrays)), strict=False
        ):
            found[row] = output
    return np.stack(found)


@functools.partial(jax.jit, static_argnames="model")
def _apply(model: Model, params: Any, arrays: tuple[Array, ...]) -> Array:
    output: Array = apply_model(model, params, None, *arrays)
    return output


def open_model(folder: str | os.PathLike[str]) -> TrainedModel:
    """Opens the best checkpoint of a run of `run_lra.py`, or the latest one if it is not finished.

    The folder is not modified, the run may be in progress, and its data are not needed.

    Raises:
      ValueError, OSError: The run is incomplete or invalid.
    """
    return load_model(Path(folder), read_run(Path(folder)))


def load_model(folder: Path, run: train.Run) -> TrainedModel:
    """Returns the trained model in `folder`; `run` is `read_run(folder)`."""
    step, finished = _choose_step(folder)
    params = load_params(folder / "checkpoints", step, train.make_params(run), run.mesh)
    run = dataclasses.replace(run, config=read_config(folder))
    return TrainedModel(run, jax.device_get(params), step, finished)


def read_run(folder: Path) -> train.Run:
    """Returns the run of a folder, with a config that suits any machine."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{folder} is not a run (no config.json): pass the folder given by --workdir."
        )
    config = read_config(folder)
    if "init" in config or not {"data", "train"} <= config.keys():
        raise ValueError(f"{folder} is not a run of run_lra.py: pass the folder of such a run.")
    return train.prepare(_portable_config(config))


def _portable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with a mesh and batch sizes that work on any machine; not for training."""
    changes = {
        "data": {"curriculum": 0},  # with small batches, it would take more steps than the run has
        "mesh": {"data": -1, "sequence": 1},
        # With rematerialization, the captured arrays would be tracers, which are invalid outside a layer.
        "train": {"batch_size": jax.device_count(), "accumulation": 1, "remat": False},
        "eval": {"batch_size": 0},
    }
    return {**config, **{name: {**config[name], **own} for name, own in changes.items()}}


def _choose_step(folder: Path) -> tuple[int, bool]:
    """Returns the step of the checkpoint, and True if it is the best one of a finished run."""
    checkpoints, file = folder / "checkpoints", folder / "result.json"
    result = read_json(file) if file.is_file() else {"state": "unfinished"}
    saved = saved_steps(checkpoints)
    if result.get("state") in ("diverged", "unfinished"):
        if not saved:
            raise FileNotFoundError(
                f"{checkpoints} contains no checkpoint yet: train for checkpoint.every_steps steps or to the"
                " end."
            )
        return saved[-1], False
    check_numbers(file, result, "best_step")
    if result["best_step"] not in saved:
        raise FileNotFoundError(
            f"{checkpoints} lacks step {result['best_step']}, the best of the run: pass the folder of the"
            " training run."
        )
    return result["best_step"], True
