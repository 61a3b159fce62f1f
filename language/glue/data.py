"""Config section "data" of a GLUE task, and the prepared data, which are cached."""

import dataclasses
import itertools
import logging
import os
from pathlib import Path
from typing import Any

from dataprep import cache, imdb
from dataprep.archives import RawFiles, stamp
from language.glue import reviews, tables
from language.glue.tasks import GlueTask, describe
from language.tasks.data import TaskData, prepare
from language.tasks.examples import DataConfig, Example
from language.tokenizer import Tokenizer

# Part of every fingerprint. Increase it when the same files and tokenizer give different data.
FORMAT = 1

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueConfig(DataConfig):
    """The section "data" of a config. `DataConfig` has further keys.

    Args:
      task: A name in `language.glue.TASKS`.
      dir: Folder of the task, or its parent folder.
      group_by_length: False as in the authors' code.
    """

    task: str
    dir: str = ""
    group_by_length: bool = False

    def __post_init__(self) -> None:
        task = describe(self.task)
        self.require_room(2 * len(task.texts) + 1, task.title)


def find(task: GlueTask, folder: Path) -> RawFiles | dict[str, Path]:
    """Finds the reviews of IMDb, or the tables of a task; `folder` is the task's folder or its parent.

    Raises:
      FileNotFoundError: A file is missing.
    """
    if task.name == "imdb":
        return imdb.find(folder, task.title)
    return tables.find(task, folder)


def read(
    task: GlueTask, source: RawFiles | dict[str, Path], seed: int = 0
) -> tuple[dict[str, list[Example]], dict[str, Any]]:
    """Returns the examples of each split, given the result of `find`, and counts of them.

    In the counts, "different" has the number of distinct examples of each split, "shared" the number that two
    splits have in common, and "left_out" the line numbers of skipped rows. Labels and the order of texts in a
    pair are ignored. `seed` is for IMDb's validation split.
    """
    left_out: dict[str, list[int]] = {}
    if isinstance(source, RawFiles):
        splits = reviews.read(source, seed)
    else:
        splits, left_out = tables.read(task, source)
    contents = {
        name: {tuple(sorted(example.texts)) for example in examples}
        for name, examples in splits.items()
    }
    return splits, {
        "different": {name: len(own) for name, own in contents.items()},
        "shared": {
            f"{one}/{other}": len(contents[one] & contents[other])
            for one, other in itertools.combinations(contents, 2)
        },
        "left_out": left_out,
    }


def load(config: GlueConfig, tokenizer: Tokenizer) -> TaskData:
    """Returns the prepared data of a task; see `language.tasks.data.prepare`.

    Raises:
      FileNotFoundError: The files are missing.
    """
    task = describe(config.task)
    source = find(task, cache.user_path(config.dir))
    if isinstance(source, RawFiles):
        folder, seed, stamps = source.path, config.seed, source.stamp()
    else:
        folder, seed = source["train"].parent, 0
        files = {os.path.relpath(path, folder): path for path in source.values()}
        stamps = stamp(dict(sorted(files.items())))
    data = prepare(
        config,
        tokenizer,
        name=f"glue-{task.name}",
        fingerprint={"task": task.name, "format": FORMAT, "seed": seed, "source": stamps},
        description=f"{task.title} from {folder}",
        read=lambda: read(task, source, config.seed),
        describe=lambda notes: (task, list(notes["different"])),
    )
    small = [
        f"{count:,} of {task.sizes[split]:,} examples for {split}"
        for split, count in data.counts.items()
        if split in task.sizes and not task.has_all(split, count)
    ]
    if small:
        _logger.warning(
            "%s has %s: scores are not comparable with published ones.",
            task.title,
            ", ".join(small),
        )
    return data
