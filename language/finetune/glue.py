"""GLUE's tasks and IMDb: the section "data" of a config, and the examples of their files.

Quotation marks are part of the text.
"""

import dataclasses
import hashlib
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataprep import cache, imdb
from dataprep.archives import RawFiles, read_text, stamp
from dataprep.holdout import held_out, held_out_share
from language.finetune.examples import Example
from language.finetune.files import FilesConfig
from language.finetune.glue_tasks import GlueTask, describe
from language.finetune.rows import tsv_cells
from language.finetune.task import DataConfig, Source

# Part of every fingerprint. Increase it when the same files and tokenizer give different data.
FORMAT = 1

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueConfig(DataConfig):
    """The section "data" of a config. `DataConfig` has further keys.

    Args:
      task: Name of the task: a task of GLUE, such as sst2, or imdb.
      dir: Folder of the task, or its parent folder.
      valid_share: Fraction of the training examples that are the only validation examples, to choose settings
        without the published ones; 0: validation and test examples are those of the task. Not for IMDb, which
        has no validation examples of its own: a tenth of the training examples is held out.
      group_by_length: Batch examples of similar length together. The configs set it, although the authors'
        code does not do it; runs without this key do not.
    """

    task: str
    dir: str = ""
    valid_share: float = 0.0
    group_by_length: bool = False

    def __post_init__(self) -> None:
        task = describe(self.task)
        self.require_room(2 * len(task.texts) + 1, task.title)
        if not 0 <= self.valid_share < 1 or (self.valid_share and not task.files):
            raise ValueError(
                f"data.valid_share={self.valid_share}: needs a number from 0 to 1 for a task of GLUE, and 0"
                " for IMDb, of which a tenth is always held out."
            )

    def source(self) -> Source:
        """See `DataConfig`."""
        task = describe(self.task)
        found = find(task, cache.user_path(self.dir))
        if isinstance(found, RawFiles):
            folder, seed, stamps = found.path, self.seed, found.stamp()
        else:
            folder, seed = found["train"].parent, 0
            files = {os.path.relpath(path, folder): path for path in found.values()}
            stamps = stamp(dict(sorted(files.items())))
        fingerprint = {"task": task.name, "format": FORMAT, "seed": seed, "source": stamps}
        if self.valid_share:
            fingerprint["held_out"] = [self.valid_share, self.seed]

        return Source(
            name=f"glue-{task.name}",
            description=f"{task.title} from {folder}",
            fingerprint=fingerprint,
            read=lambda: read(task, found, self.seed, self.valid_share),
        )

    def make_task(
        self, labels: Sequence[str] | None = None, has_unanswerable: bool = False
    ) -> GlueTask:
        """See `DataConfig`; the labels are those of the task."""
        return describe(self.task)

    def of_input(self) -> FilesConfig:
        """See `DataConfig`: a table with the columns of the task."""
        task = describe(self.task)
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(DataConfig)}
        text, *second = task.texts
        return FilesConfig(kind=task.kind, text=text, text_pair="".join(second), **shared)


def find(task: GlueTask, folder: Path) -> RawFiles | dict[str, Path]:
    """Finds the reviews of IMDb, or the tables of a task by split.

    `folder` is the task's folder or its parent.

    Raises:
      FileNotFoundError: A file is missing.
    """
    if task.name == "imdb":
        return imdb.find(folder, task.title)
    folders = (folder / task.title, folder)
    for parent in folders:
        files = {split: parent / name for split, name in task.files.items()}
        found = {split: path for split, path in files.items() if path.is_file()}
        if files.keys() - found.keys() <= set(task.optional):
            return found
    required = [name for split, name in task.files.items() if split not in task.optional]
    partial = next((p for p in folders if any((p / name).is_file() for name in required)), None)
    missing = next(name for name in required if not ((partial or folder) / name).is_file())
    place = partial or (f"{folders[0]} and {folder}" if folder.name else "the current folder")
    how = f"Unpack {task.title} of https://gluebenchmark.com/tasks"
    if task.name == "mrpc":  # the site has only Microsoft's files
        how = "Make them with download_glue_data.py of nyu-mll/GLUE-baselines on GitHub"
    raise FileNotFoundError(
        f"{task.title} needs the files {', '.join(required)}, and {missing} is missing in {place}."
        f" {how}, and set --config.data.dir to the folder of the tables, or to the one above."
    )


def read(
    task: GlueTask,
    source: RawFiles | Mapping[str, Path],
    seed: int = 0,
    valid_share: float = 0.0,
) -> tuple[dict[str, list[Example]], dict[str, Any]]:
    """Returns the examples of each split, given the result of `find`, and counts of them.

    In the counts, "different" has the number of distinct examples of each split, "shared" the number that two
    splits have in common, and "left_out" the line numbers of skipped rows. Labels and the order of texts in a
    pair are ignored. `seed` is for IMDb's validation split, and for a fraction `valid_share` of the training
    examples, which then is the only other split.
    """
    splits, left_out = dict[str, list[Example]](), dict[str, list[int]]()
    if isinstance(source, RawFiles):
        splits = _read_reviews(source, seed)
    else:
        for split, path in source.items():
            splits[split], skipped = read_table(task, split, path)
            left_out |= {split: skipped} if skipped else {}
    if valid_share:
        splits = _hold_out(splits["train"], valid_share, seed)
        left_out = {name: lines for name, lines in left_out.items() if name == "train"}
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


def read_table(task: GlueTask, split: str, path: Path) -> tuple[list[Example], list[int]]:
    """Returns the examples of a table, and the line numbers of skipped rows.

    Up to `GlueTask.max_malformed_rows` malformed rows of a labeled split are skipped. In test splits of tasks
    that allow such rows, an empty text is kept, because a submission needs every row.
    """
    is_test = split.startswith("test")
    rows = tsv_cells(read_text(path))
    columns = task.headerless.get(path.name) or next(rows)[1]
    for column in (*task.texts, *(() if is_test else (task.label,))):
        if columns.count(column) != 1:
            raise ValueError(
                f"{path}, line 1: {task.title} needs one column {column!r}, but the columns are"
                f" {', '.join(columns) or 'missing'}: is this another task's file?"
            )
    examples: list[Example] = []
    skipped: list[int] = []
    for line, cells in rows:
        row = dict(zip(columns, cells, strict=False))
        has_all_columns = len(cells) == len(columns)
        texts = tuple(row[column].strip() for column in task.texts) if has_all_columns else ()
        keeps_empty_text = is_test and task.max_malformed_rows > 0
        if not (has_all_columns and (all(texts) or keeps_empty_text)):
            if not is_test and len(skipped) < task.max_malformed_rows:
                skipped.append(line)
                continue
            flaw = f"{len(cells)} columns instead of {len(columns)}"
            if has_all_columns:
                flaw = "an empty text"
            raise ValueError(
                f"{path}, line {line}, has {flaw}: correct it, or unpack {task.title} again."
            )
        label = None if is_test else row[task.label]
        where = f"{path}, line {line}"
        examples.append(Example(texts, label, where, row.get(task.index, "")))
    if not examples:
        raise ValueError(f"{path} has no rows: unpack {task.title} again.")
    if skipped:
        _logger.warning(
            "%s: skipped %d rows that are empty or split over several lines.", path, len(skipped)
        )
    return examples, skipped


def _hold_out(examples: list[Example], share: float, seed: int) -> dict[str, list[Example]]:
    """Returns training examples as a training and a validation split; the same texts stay together."""
    is_valid = held_out_share(("\0".join(own.texts).encode() for own in examples), share, seed)
    return {
        "train": list(itertools.compress(examples, ~is_valid)),
        "valid": list(itertools.compress(examples, is_valid)),
    }


def _read_reviews(source: RawFiles, seed: int) -> dict[str, list[Example]]:
    """Returns IMDb's reviews as splits; `seed` selects a tenth of the training reviews for validation.

    Reviews are sorted by hash, so the order is the same for a folder and an archive.
    """
    splits: dict[str, list[Example]] = {split: [] for split in imdb.SPLITS}
    for review in imdb.read_reviews(source):
        where, text = f"{review.id} of {source.path}", review.text.decode().strip()
        if not text:  # white space beyond ASCII
            raise ValueError(f"{where} is empty. {imdb.ADVICE}")
        label = imdb.CLASS_NAMES[review.label]
        splits[review.split].append(Example((text,), label, where, review.id))
    for split, examples in splits.items():
        for name in imdb.CLASS_NAMES:
            count = sum(example.label == name for example in examples)
            if count < (2 if split == "train" else 1):  # one is held out for validation
                raise ValueError(
                    f"{source.path} has too few reviews in {split}/{name}: {count}. {imdb.ADVICE}"
                )
        examples.sort(
            key=lambda row: (hashlib.sha256(row.texts[0].encode()).digest(), row.label, row.id)
        )
    training = splits["train"]
    labels = np.array([imdb.CLASS_NAMES.index(example.label) for example in training])
    per_class = max(1, int(np.bincount(labels).min()) // 10)
    is_valid = held_out((row.texts[0].encode() for row in training), labels, per_class, seed)
    return {
        "train": list(itertools.compress(training, ~is_valid)),
        "valid": list(itertools.compress(training, is_valid)),
        "test": splits["test"],
    }
