"""A task's config section, and its data: prepared once, opened from then on."""

import dataclasses
import itertools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness import cache
from harness.parallel import num_processes
from language.glue import readers, statistics
from language.glue.examples import (
    EncodedSplit,
    Specials,
    Tokenizer,
    Truncation,
    open_split,
    sample,
    save,
)
from language.glue.tasks import GlueTask, describe

# Part of every fingerprint: raise it when the same files and tokenizer give other data.
FORMAT = 1

NOTES = "notes.json"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueConfig:
    """The section "data": which task, from where, and how much of it.

    Args:
      task: a name in `language.glue.TASKS`.
      dir: the task's folder, or the one above it.
      max_len: tokens of an example, special ones and padding included. Of a pair the longer text loses
        a token until both fit.
      examples: at most this many training examples, a random sample with the labels' shares; 0 takes
        all. A larger sample of the same seed begins with the smaller one.
      truncation: which tokens a text that is too long keeps: "head", its first ones; "head_tail", its
        last ones but for a quarter, its first (Sun et al. 2019, arXiv:1905.05583, 5.3.1: 128 and 382).
      seed: of that sample, and of what IMDb holds out for validation; not of the training.
      workers: threads that tokenise; 0 is one for every core we may use. The data are the same for
        any number.
    """

    task: str
    dir: str = ""
    max_len: int = 128
    examples: int = 0
    truncation: Truncation = "head"
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        task = describe(self.task)
        least = 2 * len(task.texts) + 1
        if self.max_len < least:
            raise ValueError(
                f"data.max_len is {self.max_len}; an example of {task.title} needs {least} tokens"
                " or more: the special ones, and one of each text."
            )
        for name in ("examples", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"data.{name} is {getattr(self, name)}; pass 0 for all, or a positive number."
                )


@dataclasses.dataclass(frozen=True)
class GlueData:
    """A task, ready to read.

    Args:
      task: its row in the table.
      config: what was asked for.
      splits: "train", "valid", "test", and what else the task has.
      sha256: one hash over the hashes of all prepared files: the same examples, the same hash.
      folder: where the prepared files lie.
      notes: what only the texts could tell: how many "different" examples each split has, how many two
        of them have in common ("shared"), and the lines that were "left_out".
    """

    task: GlueTask
    config: GlueConfig
    splits: Mapping[str, EncodedSplit]
    sha256: str
    folder: Path
    notes: Mapping[str, Any]

    @property
    def statistics(self) -> dict[str, Any]:
        """Sizes, labels, lengths, what is cut, and what the splits share; plain values."""
        splits = {
            name: statistics.of_split(split, self.task, self.config.max_len)
            for name, split in self.splits.items()
        }
        return {"max_len": self.config.max_len, "splits": splits, **self.notes}


def load(config: GlueConfig, tokenizer: Tokenizer) -> GlueData:
    """Opens a task's splits, tokenising its files first where that was not done yet.

    Raises:
      FileNotFoundError: The files are not where `config` says.
      ValueError: An example or a label cannot be understood, or a token's id is out of range.
      OSError: A file cannot be read, or the cache cannot be written.
    """
    task = describe(config.task)
    source = readers.find(task, cache.user_path(config.dir))
    name = f"glue-{task.name}"
    fingerprint = {
        "task": task.name,
        "format": FORMAT,
        "seed": config.seed if task.layout == "reviews" else 0,
        "source": source.stamp(),
        "tokenizer": tokenizer.sha256,
    }
    label_dtype = np.float32 if task.is_regression else np.int32

    def build(folder: Path) -> None:
        place = cache.folder_of(name, fingerprint)
        _logger.info("Preparing %s: reading %s; once, into %s", task.title, source.path, place)
        found = readers.read(task, source, config.seed)
        for split, examples in found.splits.items():
            threads = num_processes(config.workers)
            save(folder, split, examples, tokenizer, label_dtype=label_dtype, threads=threads)
        (folder / NOTES).write_text(json.dumps(notes_of(found), indent=2) + "\n", encoding="utf-8")

    prepared = cache.prepared(name, fingerprint, build)
    notes = json.loads((prepared.folder / NOTES).read_text(encoding="utf-8"))
    specials = Specials(tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id)
    splits = {
        split: open_split(
            prepared.folder,
            split,
            len(task.texts),
            specials,
            truncation=config.truncation,
            label_dtype=label_dtype,
        )
        for split in notes["different"]
    }
    _warn_if_small(task, splits)
    if config.examples:
        rows = sample(splits["train"], config.examples, config.seed)
        splits["train"] = splits["train"].take(rows)
    return GlueData(task, config, splits, prepared.sha256, prepared.folder, notes)


def _warn_if_small(task: GlueTask, splits: Mapping[str, EncodedSplit]) -> None:
    small = [
        f"{len(splits[name]):,} of {size:,} examples for {name}"
        for name, size in task.sizes.items()
        if not task.has_all(name, len(splits[name]))
    ]
    if small:
        _logger.warning("%s has %s: scores do not compare.", task.title, ", ".join(small))


def notes_of(found: readers.Examples) -> dict[str, Any]:
    """What only the texts can tell; a pair is the same with its texts swapped, labels are set aside."""
    contents = {
        name: {tuple(sorted(example.texts)) for example in examples}
        for name, examples in found.splits.items()
    }
    return {
        "different": {name: len(own) for name, own in contents.items()},
        "shared": {
            f"{one}/{other}": len(contents[one] & contents[other])
            for one, other in itertools.combinations(contents, 2)
        },
        "left_out": dict(found.left_out),
    }
