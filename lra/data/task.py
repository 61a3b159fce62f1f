"""Tasks and splits: ragged token sequences, gathered into padded batches.

Tokens are stored on disk as bytes and memory-mapped. A task with pairs stores each text once, and the
pairs as indices of texts.
"""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dataprep import cache, parallel
from dataprep.holdout import held_out
from nystromformer_jax.support.values import check_size

Batch = dict[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The task, the source of its data, and how sequences are truncated and padded.

    Args:
      source: "files", "generated" or "tfds", if the task supports it. "auto" is "files", or
        "generated" if `dir` is empty and the data can be generated.
      pad_to_multiple_of: If positive, examples of similar length are batched together, and each batch
        is padded to a multiple of this length, at most to `padded_len`.
      zero_is_padding: Masks tokens of id 0. In the authors' code, black pixels are padding.
      curriculum: Number of easier examples that a run trains on first, once, from the easiest to the
        hardest; at most `examples`, if that is set. They are generated, in addition to the benchmark's
        training set. Of the benchmark's tasks, only ListOps and Pathfinder have them.
      workers: Number of processes that prepare data; 0 for one per usable core. The data do not
        depend on it.
    """

    # "listops", "text", "retrieval", "image", "pathfinder32" or another name in `lra.data.TASKS`,
    # `mqar-LENGTH-PAIRS`, or `module:name` of a `TaskInfo`.
    task: str
    source: Literal["auto", "files", "generated", "tfds"] = "auto"
    dir: str = ""  # folder of the raw files
    examples: int = 0  # maximum per split; 0 for all. A run on fewer examples is partial
    max_len: int  # maximum tokens per sequence; longer sequences are truncated
    padded_len: int = 0  # length of the rows of a batch, padding included; 0 for `max_len`
    pad_to_multiple_of: int = 0
    zero_is_padding: bool = False
    curriculum: int = 0
    # Seed of generated data and of held-out validation sets; not the training seed. The files of ListOps
    # and Retrieval have a validation set, so the seed has no effect on them.
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        check_size("data.max_len", self.max_len)
        if self.padded_len and self.padded_len < self.max_len:
            raise ValueError(
                f"data.padded_len={self.padded_len} is shorter than data.max_len={self.max_len}:"
                " pass max_len or more, or 0 to pad to max_len."
            )
        for name in ("examples", "workers", "pad_to_multiple_of", "curriculum", "seed"):
            check_size(f"data.{name}", getattr(self, name), least=0)

    @property
    def padding(self) -> "Padding":
        """Truncation and padding of sequences to rows of equal length."""
        padded_len = self.padded_len or self.max_len
        return Padding(self.max_len, padded_len, self.zero_is_padding, self.pad_to_multiple_of)

    @property
    def num_easier(self) -> int:
        """Number of examples of the curriculum: `curriculum`, at most `examples` if that is set."""
        return min(self.curriculum, self.examples or self.curriculum)

    @property
    def num_processes(self) -> int:
        """Number of processes that prepare data: `workers`, or the number of usable cores."""
        return parallel.num_processes(self.workers)

    def choose_source(self, task: str, known: Sequence[str], files: str = "") -> str:
        """Returns the source, one of those `known` to the task.

        Error messages name the `task` and its `files`.

        Raises:
          ValueError: The task does not support `source`, or `source` and `dir` contradict each other.
        """
        if self.source not in ("auto", *known):
            raise ValueError(
                f"{task} has no source {self.source!r}: set data.source to auto or"
                f" {' or '.join(known)}."
            )
        source: str = self.source
        if source == "auto":
            is_generated = "generated" in known and not (self.dir and "files" in known)
            source = "generated" if is_generated else "files"
        if source == "generated" and self.dir:
            advice = ", or set data.source to files" if "files" in known else ""
            raise ValueError(
                f"{task} cannot be both generated and read from data.dir={self.dir!r}: leave data.dir"
                f" empty{advice}."
            )
        if source == "files" and not self.dir:
            others = [f", or --config.data.source={name}" for name in known if name != "files"]
            raise ValueError(
                f"{task} needs {files}: set --config.data.dir to the folder that contains them"
                f"{''.join(others)}."
            )
        return source


class Padding(NamedTuple):
    """Truncation and padding of sequences to rows of equal length; see `DataConfig`."""

    max_len: int
    padded_len: int
    zero_is_padding: bool = False
    multiple: int = 0

    def for_longest(self, tokens: int) -> "Padding":
        """Returns the padding of a batch whose longest sequence has `tokens` tokens."""
        if not self.multiple:
            return self
        kept = max(1, min(tokens, self.max_len))
        needed = -(-kept // self.multiple) * self.multiple
        return self._replace(padded_len=min(needed, self.padded_len))


@dataclasses.dataclass(frozen=True)
class Sequences:
    """N ragged token sequences; sequence i is stored as the bytes `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: npt.NDArray[np.uint8]  # bytes of all sequences, [total]; usually memory-mapped
    offsets: npt.NDArray[np.int64]  # [N + 1]
    first_id: int = 0  # token id of byte 0; 1 if id 0 is reserved for padding

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each sequence, [N]."""
        return np.diff(self.offsets)

    def __getitem__(self, index: int) -> npt.NDArray[np.int32]:
        stored = self.tokens[self.offsets[index] : self.offsets[index + 1]]
        return stored.astype(np.int32) + self.first_id

    def rows(
        self, indices: npt.NDArray[np.integer], padding: Padding
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Returns token ids [B, L] and mask [B, L], True at real tokens, of the sequences `indices`.

        The mask depends on the lengths, and with `zero_is_padding` also on the token ids.
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
        """Memory-maps the files written by `save`."""
        tokens, offsets = (
            cache.open_array(folder / f"{name}_{part}.npy") for part in ("tokens", "offsets")
        )
        return cls(tokens, offsets, first_id)

    @classmethod
    def from_bytes(cls, contents: Sequence[bytes], *, first_id: int = 0) -> Self:
        """Creates sequences from `contents`, the bytes of each sequence."""
        offsets = np.zeros(len(contents) + 1, np.int64)
        np.cumsum([len(content) for content in contents], out=offsets[1:])
        return cls(np.frombuffer(b"".join(contents), np.uint8), offsets, first_id)


@dataclasses.dataclass(frozen=True)
class Split:
    """A split of a task: labeled sequences, labeled pairs of sequences, or labeled tokens."""

    sequences: Sequences  # for pairs, shared by all splits
    labels: npt.NDArray[np.int32]  # [N], or [N, K] with `positions`
    pairs: npt.NDArray[np.int32] | None = None  # [N, 2] sequence indices; None: row i is sequence i
    positions: npt.NDArray[np.int32] | None = None  # [N, K] where the labeled tokens are

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def numbers(self) -> npt.NDArray[np.integer]:
        """Indices of the sequences of each row, [N, 1], or [N, 2] for pairs."""
        return np.arange(len(self))[:, None] if self.pairs is None else self.pairs

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each row; for pairs, of the longer sequence, [N]."""
        longest: npt.NDArray[np.int64] = self.sequences.lengths[self.numbers].max(axis=1)
        return longest

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Returns the token ids of a row (two arrays for a pair) and the label, or a list of labels."""
        cache.require_rows(np.array([index]), len(self))
        sequences = (self.sequences[number] for number in self.numbers[index].tolist())
        return *sequences, self.labels[index].tolist()

    def batch(self, indices: npt.NDArray[np.integer], padding: Padding) -> Batch:
        """Returns the rows `indices` as a batch.

        Returns:
          inputs, or inputs1 and inputs2 for pairs: int32 [B, L].
          mask, or mask1 and mask2 for pairs: bool [B, L], True at real tokens.
          labels: int32 [B], or [B, K] with labeled tokens.
          positions: int32 [B, K], only with labeled tokens.

        Raises:
          ValueError: A labeled token is truncated.
        """
        indices = np.asarray(indices)
        cache.require_rows(indices, len(self))
        batch: Batch = {}
        suffixes = ("",) if self.pairs is None else ("1", "2")
        for suffix, numbers in zip(suffixes, self.numbers[indices].T, strict=True):
            rows = self.sequences.rows(numbers, padding)
            batch[f"inputs{suffix}"], batch[f"mask{suffix}"] = rows
        batch["labels"] = self.labels[indices]
        if self.positions is not None:
            batch["positions"] = self.positions[indices]
            if batch["positions"].max(initial=0) >= padding.max_len:
                raise ValueError(
                    f"data.max_len={padding.max_len} truncates labeled tokens: pass at least"
                    f" {int(self.lengths[indices].max())}."
                )
        return batch

    def first(self, count: int) -> Self:
        """Returns a split with at most the first `count` rows."""
        pairs = None if self.pairs is None else self.pairs[:count]
        positions = None if self.positions is None else self.positions[:count]
        return dataclasses.replace(
            self, labels=self.labels[:count], pairs=pairs, positions=positions
        )

    def save(self, folder: Path, name: str) -> None:
        """Writes `<name>_labels.npy`, `<name>_positions.npy`, and the sequences or `<name>_pairs.npy`."""
        cache.save_array(folder / f"{name}_labels.npy", self.labels)
        if self.positions is not None:
            cache.save_array(folder / f"{name}_positions.npy", self.positions)
        if self.pairs is None:
            self.sequences.save(folder, name)
        else:
            cache.save_array(folder / f"{name}_pairs.npy", self.pairs)

    @classmethod
    def open(
        cls, folder: Path, name: str, *, first_id: int = 0, documents: Sequences | None = None
    ) -> Self:
        """Memory-maps the files written by `save`; pairs are indices of `documents`."""
        labels = cache.open_array(folder / f"{name}_labels.npy")
        if documents is None:
            file = folder / f"{name}_positions.npy"
            positions = cache.open_array(file) if file.exists() else None
            sequences = Sequences.open(folder, name, first_id=first_id)
            return cls(sequences, labels, positions=positions)
        return cls(documents, labels, cache.open_array(folder / f"{name}_pairs.npy"))


def save_split(folder: Path, name: str, examples: Iterable[tuple[bytes, int]]) -> None:
    """Writes a split of labeled sequences, given as bytes; see `Split.save`."""
    contents, labels = zip(*examples, strict=True)
    Split(Sequences.from_bytes(contents), np.array(labels, np.int32)).save(folder, name)


def save_balanced_splits(
    folder: Path,
    examples: Mapping[str, Sequence[tuple[bytes, int]]],
    per_class: Mapping[str, int],
    class_names: Sequence[str],
    seed: int,
    origin: str,
) -> None:
    """Writes the splits "train", "valid" and "test" of labeled sequences in "train" and "test".

    A tenth of the training examples of each class is held out for validation.

    Raises:
      ValueError: A class does not have exactly `per_class` examples in a split; the message names the
        `origin` of the examples.
    """
    for split, rows in examples.items():
        counts = Counter(label for _, label in rows)
        if counts != dict.fromkeys(range(len(class_names)), per_class[split]):
            if unknown := counts.keys() - set(range(len(class_names))):
                raise ValueError(f"{origin} has the invalid label {min(unknown)} in {split}.")
            found = ", ".join(f"{counts[label]:,} {name}" for label, name in enumerate(class_names))
            raise ValueError(
                f"{per_class[split]:,} examples of each class are needed in {split}, but {origin} has"
                f" {found}: unpack the download again, or prepare the dataset again with tfds."
            )
    contents, labels = zip(*examples["train"], strict=True)
    is_valid = held_out(contents, np.array(labels), per_class["train"] // 10, seed)
    save_split(folder, "train", itertools.compress(examples["train"], ~is_valid))
    save_split(folder, "valid", itertools.compress(examples["train"], is_valid))
    save_split(folder, "test", examples["test"])


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the benchmark with its prepared data."""

    name: str  # for tasks of the benchmark, in `lra.data.TASKS`
    splits: Mapping[str, Split]  # "train", "valid" and "test"
    sha256: str  # hash over the hashes of all files
    decode: Callable[[npt.NDArray[np.integer]], str]  # converts token ids to text; drops padding
    folder: Path  # folder of the prepared files
    class_names: tuple[str, ...] = ()  # empty if classes are numbers
    # Returns the examples of `DataConfig.curriculum`, and their files.
    open_curriculum: Callable[[], tuple[Split, cache.Prepared]] | None = None

    @classmethod
    def open(
        cls,
        name: str,
        prepared: cache.Prepared,
        decode: Callable[[npt.NDArray[np.integer]], str],
        *,
        first_id: int = 0,
        documents: Sequences | None = None,
        **options: Any,
    ) -> Self:
        """Opens the prepared splits with `Split.open`; `options` are optional fields of the task."""
        splits = {
            split: Split.open(prepared.folder, split, first_id=first_id, documents=documents)
            for split in ("train", "valid", "test")
        }
        return cls(name, splits, prepared.sha256, decode, prepared.folder, **options)

    def first(self, count: int) -> Self:
        """Returns the task with at most the first `count` examples of each split."""
        splits = {name: split.first(count) for name, split in self.splits.items()}
        return dataclasses.replace(self, splits=splits)


@dataclasses.dataclass(frozen=True)
class TaskInfo:
    """Properties of a task that do not need prepared data."""

    vocab_size: int  # number of token ids, padding (0) included; an embedding may have more rows
    num_classes: int
    load: Callable[[DataConfig], Task]  # opens the task; prepares the data if they are missing
    sizes: Mapping[str, int]  # number of examples per split in the benchmark
    # Budget if the config has no train.budget_steps; the paper's budget for the paper's tasks.
    total_steps: int = 0
    pairs: bool = False  # True if an example is a pair of sequences
    num_pixels: int = 0  # of an image; 0: sequences are not images
    has_curriculum: bool = False  # True if `DataConfig.curriculum` may be positive
    targets: int = 0  # K, number of labeled tokens per sequence; 0: one label per sequence
    min_len: int = 0  # smallest `DataConfig.max_len` that truncates no labeled token, if known
    official_sha256: str = ""  # of the data prepared from the official files with seed 0, if known

    def __post_init__(self) -> None:
        if self.pairs and self.targets:
            raise ValueError(
                "A task has either pairs of sequences or labeled tokens: set pairs or targets."
            )

    def has_all(self, task: Task) -> bool:
        """Returns True if each split has at least 99.9 % of its size; the releases lack a few examples."""
        return all(1000 * len(task.splits[name]) >= 999 * size for name, size in self.sizes.items())


SHADES = " .:-=+*#%@"  # dark to bright
MAX_COLUMNS = 64


def image_to_text(pixels: npt.NDArray[np.integer], shape: tuple[int, int]) -> str:
    """Converts an image, 0 to 255, to text; a character stands for two rows of one column.

    Missing pixels at the end are black. Images wider than `MAX_COLUMNS` are downsampled by averaging.
    """
    rows, columns = shape
    step = max(1, columns // MAX_COLUMNS)
    pixels = np.asarray(pixels)[: rows * columns]
    image = np.pad(pixels.astype(float), (0, rows * columns - len(pixels)))
    blocks = image.reshape(rows // (2 * step), 2 * step, columns // step, step).mean(axis=(1, 3))
    shades = (blocks * len(SHADES) / 256).astype(int)
    return "\n".join("".join(SHADES[shade] for shade in line).rstrip() for line in shades)
