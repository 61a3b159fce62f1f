"""What every task hands to training: splits of ragged token sequences, and how to read them.

Tokens lie on the disk as bytes and are read from there; a task of pairs stores every text once and
its pairs as numbers of texts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from harness import cache, parallel

Batch = dict[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data, from where, and how much of them.

    Args:
      task: a name in `lra.data.TASKS`.
      source: where the data come from; "auto" takes the files when `dir` is set.
      dir: the folder of the task's own files, for tasks that read files.
      examples: at most this many examples a split; 0 takes all. A run on fewer is partial.
      max_len: tokens a sequence keeps; longer ones are cut.
      padded_len: tokens of a row of a batch, the rest of it padding; 0 is `max_len`.
      zero_is_padding: tokens of id 0 count as padding too, as in the authors' code, where every
        black pixel is one.
      seed: of generated data and of carved splits, not of the training.
      workers: processes that prepare data; 0 is one for every core we may use. The data are the
        same for any number.
    """

    task: str
    source: str = "auto"
    dir: str = ""
    examples: int = 0
    max_len: int
    padded_len: int = 0
    zero_is_padding: bool = False
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if self.max_len < 1:
            raise ValueError(f"data.max_len is {self.max_len}; it must be at least 1 token.")
        if self.padded_len and self.padded_len < self.max_len:
            raise ValueError(
                f"data.padded_len={self.padded_len} is shorter than data.max_len={self.max_len}:"
                " pass 0, which pads to max_len, or more."
            )
        for name in ("examples", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"data.{name} is {getattr(self, name)}; pass 0 for all, or a positive number."
                )

    @property
    def padding(self) -> "Padding":
        """How sequences become rows of one length."""
        return Padding(self.max_len, self.padded_len or self.max_len, self.zero_is_padding)

    @property
    def num_processes(self) -> int:
        """Processes to prepare data with: `workers`, or one for every core we may use."""
        return parallel.num_processes(self.workers)


class Padding(NamedTuple):
    """How sequences become rows of one length; see `DataConfig`."""

    max_len: int
    padded_len: int
    zero_is_padding: bool = False


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Ragged token sequences: number i is the bytes `tokens[offsets[i]:offsets[i + 1]]`.

    Args:
      tokens: [total], as they are stored; memory mapped, so that they cost nothing until read.
      offsets: [N + 1].
      first_id: the token id of a stored byte 0; 1 where the ids keep 0 for padding.
    """

    tokens: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    first_id: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        stored = self.tokens[self.offsets[index] : self.offsets[index + 1]]
        return stored.astype(np.int32) + self.first_id

    def rows(
        self, indices: npt.NDArray[np.integer], padding: Padding
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Gathers the sequences `indices` as token ids [B, L], and a mask, True at real tokens.

        The mask comes from lengths, never from token values, unless zeros are padding.
        """
        starts = self.offsets[indices]
        lengths = np.minimum(self.offsets[indices + 1] - starts, padding.max_len)
        inputs = np.zeros((len(indices), padding.padded_len), np.int32)
        for row, start, length in zip(inputs, starts.tolist(), lengths.tolist(), strict=True):
            row[:length] = self.tokens[start : start + length]
            if self.first_id:
                row[:length] += self.first_id
        mask = np.arange(padding.padded_len) < lengths[:, None]
        return inputs, mask & (inputs != 0) if padding.zero_is_padding else mask

    def save(self, folder: Path, name: str) -> None:
        """Writes `<name>_tokens.npy` and `<name>_offsets.npy`."""
        cache.save_array(folder / f"{name}_tokens.npy", self.tokens)
        cache.save_array(folder / f"{name}_offsets.npy", self.offsets)

    @classmethod
    def open(cls, folder: Path, name: str, *, first_id: int = 0) -> Self:
        """Maps what `save` wrote."""
        tokens, offsets = (
            cache.open_array(folder / f"{name}_{part}.npy") for part in ("tokens", "offsets")
        )
        return cls(tokens, offsets, first_id)

    @classmethod
    def of(cls, contents: Sequence[bytes], *, first_id: int = 0) -> Self:
        """Joins byte strings."""
        offsets = np.zeros(len(contents) + 1, np.int64)
        np.cumsum([len(content) for content in contents], out=offsets[1:])
        return cls(np.frombuffer(b"".join(contents), np.uint8), offsets, first_id)


@dataclasses.dataclass(frozen=True)
class Split:
    """Sequences, each with a label."""

    sequences: Sequences
    labels: npt.NDArray[np.int32]  # [N]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int32], int]:
        _require_rows(np.array([index]), len(self))
        return self.sequences[index], int(self.labels[index])

    def batch(self, indices: npt.NDArray[np.integer], padding: Padding) -> Batch:
        """Gathers the rows `indices`.

        Returns:
          inputs: int32 [B, L].
          mask: bool [B, L], True at real tokens.
          labels: int32 [B].
        """
        indices = _require_rows(np.asarray(indices), len(self))
        inputs, mask = self.sequences.rows(indices, padding)
        return {"inputs": inputs, "mask": mask, "labels": self.labels[indices]}

    def first(self, count: int) -> Self:
        """The first `count` rows, or all where there are fewer."""
        return dataclasses.replace(self, labels=self.labels[:count])

    def save(self, folder: Path, name: str) -> None:
        """Writes `<name>_tokens.npy`, `<name>_offsets.npy` and `<name>_labels.npy`."""
        self.sequences.save(folder, name)
        cache.save_array(folder / f"{name}_labels.npy", self.labels)

    @classmethod
    def open(cls, folder: Path, name: str, *, first_id: int = 0) -> Self:
        """Maps what `save` wrote."""
        sequences = Sequences.open(folder, name, first_id=first_id)
        return cls(sequences, cache.open_array(folder / f"{name}_labels.npy"))


@dataclasses.dataclass(frozen=True)
class PairSplit:
    """Pairs of sequences, each pair with a label; splits share their sequences."""

    sequences: Sequences
    pairs: npt.NDArray[np.int32]  # [N, 2], numbers of sequences
    labels: npt.NDArray[np.int32]  # [N]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
        _require_rows(np.array([index]), len(self))
        first, second = self.pairs[index].tolist()
        return self.sequences[first], self.sequences[second], int(self.labels[index])

    def batch(self, indices: npt.NDArray[np.integer], padding: Padding) -> Batch:
        """Gathers the pairs `indices`.

        Returns:
          inputs1, inputs2: int32 [B, L].
          mask1, mask2: bool [B, L], True at real tokens.
          labels: int32 [B].
        """
        indices = _require_rows(np.asarray(indices), len(self))
        firsts, seconds = self.pairs[indices].T
        inputs1, mask1 = self.sequences.rows(firsts, padding)
        inputs2, mask2 = self.sequences.rows(seconds, padding)
        labels = self.labels[indices]
        return {
            "inputs1": inputs1,
            "mask1": mask1,
            "inputs2": inputs2,
            "mask2": mask2,
            "labels": labels,
        }

    def first(self, count: int) -> Self:
        """The first `count` pairs, or all where there are fewer."""
        return dataclasses.replace(self, pairs=self.pairs[:count], labels=self.labels[:count])

    def save(self, folder: Path, name: str) -> None:
        """Writes `<name>_pairs.npy` and `<name>_labels.npy`; the sequences are saved once, by themselves."""
        cache.save_array(folder / f"{name}_pairs.npy", self.pairs)
        cache.save_array(folder / f"{name}_labels.npy", self.labels)

    @classmethod
    def open(cls, folder: Path, name: str, sequences: Sequences) -> Self:
        """Maps what `save` wrote."""
        pairs, labels = (
            cache.open_array(folder / f"{name}_{part}.npy") for part in ("pairs", "labels")
        )
        return cls(sequences, pairs, labels)


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of the benchmark, ready to read.

    Args:
      splits: "train", "valid" and "test".
      sha256: one hash over the hashes of all files: the same data, the same hash.
      decode: token ids to text for a person; padding is dropped.
      folder: where the prepared files lie.
      class_names: what the labels mean; empty where they are numbers.
      image_shape: rows and columns of the picture that a sequence is, where it is one.
      notes: what else there is to say about its examples, as markdown.
    """

    name: str
    splits: Mapping[str, Split | PairSplit]
    sha256: str
    decode: Callable[[npt.NDArray[np.integer]], str]
    folder: Path
    class_names: tuple[str, ...] = ()
    image_shape: tuple[int, int] | None = None
    notes: Callable[["Task"], str] | None = None

    def first(self, count: int) -> Self:
        """The task with at most `count` examples a split."""
        splits = {name: split.first(count) for name, split in self.splits.items()}
        return dataclasses.replace(self, splits=splits)


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """What is known of a task before its data are there.

    Args:
      vocab_size: token ids that occur, padding (0) included; a model's embedding may be larger.
      num_classes: labels that occur.
      load: opens the task, preparing its data first where they are not there yet.
      sizes: examples of every split of the benchmark.
      total_steps: the training steps of its config: the paper's, where the task is theirs.
      pairs: an example is a pair of sequences.
      pictures: a sequence is a picture.
      official_sha256: of the data as prepared from the official files with seed 0, where known.
    """

    vocab_size: int
    num_classes: int
    load: Callable[[DataConfig], Task]
    sizes: Mapping[str, int]
    total_steps: int
    pairs: bool = False
    pictures: bool = False
    official_sha256: str = ""

    def has_all(self, task: Task) -> bool:
        """Whether a task has the benchmark's examples; the releases miss one or two files."""
        return all(1000 * len(task.splits[name]) >= 999 * size for name, size in self.sizes.items())


def _require_rows(indices: npt.NDArray[np.integer], count: int) -> npt.NDArray[np.integer]:
    if len(indices) and not (indices.min() >= 0 and indices.max() < count):
        raise IndexError(
            f"A batch needs rows 0 to {count - 1} of this split; it got rows"
            f" {indices.min()} to {indices.max()}."
        )
    return indices
