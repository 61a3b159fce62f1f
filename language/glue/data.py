"""Config section "data" of a GLUE task, and the prepared data, which are cached."""

import dataclasses
import itertools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from dataprep import cache
from dataprep.archives import RawFiles
from language.glue import reviews, tables
from language.glue.tables import TaskSplits
from language.glue.tasks import GlueTask, describe
from language.tasks.data import TaskData
from language.tasks.examples import Truncation, open_split, sample, save
from language.tokenizer import Tokenizer

# Part of every fingerprint. Increase it when the same files and tokenizer give different data.
FORMAT = 1

NOTES = "notes.json"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueConfig:
    """The section "data" of a config.

    Args:
      task: A name in `language.glue.TASKS`.
      dir: Folder of the task, or its parent folder.
      max_len: Tokens per example, including special tokens and padding. The longer text of a pair is
        truncated until both fit.
      examples: Maximum number of training examples, a random sample stratified by label; 0: all. A larger
        sample with the same seed begins with the smaller one.
      truncation: Tokens kept of a text that is too long: "head", the first ones; "head_tail", a quarter
        from the start and the rest from the end (Sun et al. 2019, arXiv:1905.05583, 5.3.1: 128 and
        382).
      group_by_length: See `FilesConfig`; False as in the authors' code.
      seed: Seed of the sample and of IMDb's validation split; training uses `train.seed`.
    """

    task: str
    dir: str = ""
    max_len: int = 128
    examples: int = 0
    truncation: Truncation = "head"
    group_by_length: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        task = describe(self.task)
        least = 2 * len(task.texts) + 1
        if self.max_len < least:
            raise ValueError(
                f"data.max_len={self.max_len}: an example of {task.title} needs at least {least} tokens,"
                " the special ones and one of each text."
            )
        if self.examples < 0:
            raise ValueError(
                f"data.examples: needs 0 for all, or a positive number, got {self.examples}."
            )


def find_files(task: GlueTask, folder: Path) -> RawFiles:
    """Finds the files of a task; `folder` is the task's folder or its parent."""
    return (reviews if task.layout == "reviews" else tables).find(task, folder)


def read_files(task: GlueTask, source: RawFiles, seed: int = 0) -> TaskSplits:
    """Returns all splits, read from the result of `find_files`; `seed` is for IMDb's validation split."""
    if task.layout == "reviews":
        return reviews.read(task, source, seed)
    return tables.read(task, source)


def load(config: GlueConfig, tokenizer: Tokenizer) -> TaskData:
    """Returns the prepared data of a task; tokenizes the files on first use.

    Raises:
      FileNotFoundError: The files are missing.
      ValueError: An example or label is invalid.
      OSError: A file cannot be read, or the cache cannot be written.
    """
    task = describe(config.task)
    source = find_files(task, cache.user_path(config.dir))
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
        found = read_files(task, source, config.seed)
        for split, examples in found.splits.items():
            save(folder, split, examples, tokenizer, label_dtype=label_dtype)
        (folder / NOTES).write_text(json.dumps(notes_of(found), indent=2) + "\n", encoding="utf-8")

    prepared = cache.prepared(name, fingerprint, build, f"{task.title} from {source.path}")
    notes = json.loads((prepared.folder / NOTES).read_text(encoding="utf-8"))
    splits = {
        split: open_split(
            prepared.folder, split, len(task.texts), tokenizer, config.truncation, label_dtype
        )
        for split in notes["different"]
    }
    small = [
        f"{len(splits[split]):,} of {size:,} examples for {split}"
        for split, size in task.sizes.items()
        if not task.has_all(split, len(splits[split]))
    ]
    if small:
        _logger.warning(
            "%s has %s: scores are not comparable with published ones.",
            task.title,
            ", ".join(small),
        )
    is_sample = 0 < config.examples < len(splits["train"])
    if is_sample:
        rows = sample(splits["train"], config.examples, config.seed)
        splits["train"] = splits["train"].take(rows)
    return TaskData(task, splits, prepared.sha256, prepared.folder, is_sample)


def notes_of(found: TaskSplits) -> dict[str, Any]:
    """Returns the counts of distinct and shared examples, and the line numbers of skipped rows.

    "different" has the number of distinct examples of each split, "shared" the number that two splits have
    in common, and "left_out" the line numbers. Labels and the order of texts in a pair are ignored.
    """
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
