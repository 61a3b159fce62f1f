"""What every task hands to training: splits of ragged token sequences, and how to read them."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from lra.data import cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data, from where, and how much of them.

    Args:
      task: a name in `lra.data.TASKS`.
      source: where the data come from; "auto" takes the files when `dir` is set.
      dir: the folder of the task's own files, for tasks that read files.
      examples: at most this many examples a split; 0 takes all. A run on fewer is partial.
      max_len: tokens a sequence; longer ones are cut, shorter ones padded.
      seed: of generated data and of carved splits, not of the training.
      workers: processes that prepare data; 0 is one for every core we may use. The data are the
        same for any number.
    """

    task: str
    source: str = "auto"
    dir: str = ""
    examples: int = 0
    max_len: int
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if self.max_len < 1:
            raise ValueError(f"data.max_len is {self.max_len}; it must be at least 1 token.")
        for name in ("examples", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"data.{name} is {getattr(self, name)}; pass 0 for all, or a positive number."
                )

    @property
    def num_processes(self) -> int:
        """Processes to prepare data with: `workers`, or one for every core we may use."""
        if self.workers:
            return self.workers
        if hasattr(os, "sched_getaffinity"):  # not on macOS
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1


@dataclasses.dataclass(frozen=True)
class Split:
    """Ragged token sequences: sequence i is `tokens[offsets[i]:offsets[i + 1]]`.

    The arrays are memory mapped, so that a split costs no memory until its rows are read.
    """

    tokens: npt.NDArray[np.uint8]  # [total]
    offsets: npt.NDArray[np.int64]  # [N + 1]
    labels: npt.NDArray[np.int32]  # [N]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.uint8], int]:
        if not 0 <= index < len(self):
            raise IndexError(f"Example {index} of a split of {len(self)} examples.")
        start, stop = self.offsets[index], self.offsets[index + 1]
        return self.tokens[start:stop], int(self.labels[index])

    def batch(self, indices: npt.NDArray[np.integer], max_len: int) -> dict[str, npt.NDArray[Any]]:
        """Gathers the rows `indices`, each cut or zero-padded to `max_len` tokens.

        Returns:
          inputs: int32 [B, max_len].
          mask: bool [B, max_len], True at real tokens; from lengths, never from token values.
          labels: int32 [B].
        """
        indices = np.asarray(indices)
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(
                f"A batch needs rows 0 to {len(self) - 1} of this split; it got rows"
                f" {indices.min()} to {indices.max()}."
            )
        starts = self.offsets[indices]
        lengths = np.minimum(self.offsets[indices + 1] - starts, max_len)
        inputs = np.zeros((len(indices), max_len), np.int32)
        for row, start, length in zip(inputs, starts.tolist(), lengths.tolist(), strict=True):
            row[:length] = self.tokens[start : start + length]
        mask = np.arange(max_len) < lengths[:, None]
        return {"inputs": inputs, "mask": mask, "labels": self.labels[indices]}

    def save(self, folder: Path, name: str) -> None:
        """Writes the three arrays as `<name>_tokens.npy`, `_offsets.npy` and `_labels.npy`."""
        for field in dataclasses.fields(self):
            cache.save_array(folder / f"{name}_{field.name}.npy", getattr(self, field.name))

    @classmethod
    def open(cls, folder: Path, name: str) -> Self:
        """Maps what `save` wrote."""
        return cls(
            **{
                field.name: cache.open_array(folder / f"{name}_{field.name}.npy")
                for field in dataclasses.fields(cls)
            }
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of the benchmark, ready to read.

    Args:
      splits: "train", "valid" and "test".
      sha256: one hash over the hashes of all files: the same data, the same hash.
      decode: tokens to text for a person; padding is dropped.
    """

    name: str
    splits: Mapping[str, Split]
    sha256: str
    decode: Callable[[npt.NDArray[np.integer]], str]


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """What is known of a task before its data are there.

    Args:
      vocab_size: token ids that occur, padding (0) included; a model's embedding may be larger.
      num_classes: labels that occur.
      load: opens the task, preparing its data first where they are not there yet.
    """

    vocab_size: int
    num_classes: int
    load: Callable[[DataConfig], Task]
