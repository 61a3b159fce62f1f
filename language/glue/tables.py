"""Reads the tables of GLUE; quotation marks are part of the text.

MRPC is read from prepared tables, or from Microsoft's two files and GLUE's `dev_ids.tsv`. Both give the same
examples.
"""

import io
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dataprep.archives import RawFiles, decode
from language.glue.tasks import MAX_SCORE, GlueTask
from language.tasks.examples import Example

# Source: nyu-mll/GLUE-baselines, download_glue_data.py, which makes MRPC's tables from these three files.
MSR_FILES = {
    "train": "msr_paraphrase_train.txt",
    "valid": "dev_ids.tsv",
    "test": "msr_paraphrase_test.txt",
}

_logger = logging.getLogger(__name__)


class TaskSplits(NamedTuple):
    """The splits of a task, and the line numbers of the rows skipped in each split."""

    splits: Mapping[str, list[Example]]
    left_out: Mapping[str, list[int]]


class Table(NamedTuple):
    """Path and content of a file."""

    path: Path
    content: bytes


def find(task: GlueTask, folder: Path) -> RawFiles:
    """Finds the tables of a task; `folder` is the task's folder or its parent."""
    required = [name for split, name in task.files.items() if split not in task.optional]
    layouts = [required, *([list(MSR_FILES.values())] if task.name == "mrpc" else [])]
    folders = (folder / task.title, folder)
    for parent in folders:
        for names in layouts:
            if all((parent / name).is_file() for name in names):
                names = [*names, *(task.files[split] for split in task.optional)]
                subfolders = tuple(dict.fromkeys(name[: name.rfind("/") + 1] for name in names))
                pattern = "|".join(re.escape(name.rpartition("/")[2]) for name in names)
                return RawFiles(parent, parent.name, subfolders, pattern)
    partial = next((p for p in folders if any((p / name).is_file() for name in required)), None)
    missing = next(name for name in required if not ((partial or folder) / name).is_file())
    place = partial or (f"{folders[0]} and {folder}" if folder.name else "the current folder")
    raise FileNotFoundError(
        f"{task.title} needs the files {', '.join(required)}, and {missing} is missing in {place}."
        f" Unpack {task.title} of https://gluebenchmark.com/tasks, and set --config.data.dir to its"
        " folder, or to the one above."
    )


def read(task: GlueTask, source: RawFiles) -> TaskSplits:
    """Returns all splits that have files."""
    split_of = {name: split for split, name in task.files.items()}
    splits, left_out, others = {}, {}, {}
    for name, content in source.read():
        table = Table(source.path / name, content)
        if split := split_of.get(name):
            splits[split], left_out[split] = read_table(task, split, table)
        elif name in MSR_FILES.values():
            others[name] = table
    if others:
        return TaskSplits(_from_msr(task, *(others[name] for name in MSR_FILES.values())), {})
    return TaskSplits(
        {split: splits[split] for split in task.files if split in splits},
        {split: lines for split, lines in left_out.items() if lines},
    )


def read_table(task: GlueTask, split: str, table: Table) -> tuple[list[Example], list[int]]:
    """Returns the examples of a table, and the line numbers of skipped rows.

    Up to `GlueTask.max_malformed_rows` malformed rows of a labeled split are skipped. In test splits of tasks
    that allow such rows, an empty text is kept, because a submission needs every row.
    """
    is_test = split.startswith("test")
    lines = _lines(table)
    columns = task.headerless.get(table.path.name) or next(lines, (1, ("",)))[1]
    for column in (*task.texts, *(() if is_test else (task.label,))):
        if columns.count(column) != 1:
            raise ValueError(
                f"{table.path}, line 1: {task.title} needs one column {column!r}, but the columns are"
                f" {', '.join(columns) or 'missing'}: is this another task's file?"
            )
    text_places = [columns.index(column) for column in task.texts]
    index_place = columns.index(task.index) if task.index in columns else None
    examples: list[Example] = []
    skipped: list[int] = []
    for line, cells in lines:
        where = f"{table.path}, line {line}"
        has_all_columns = len(cells) == len(columns)
        texts = tuple(cells[place].strip() for place in text_places) if has_all_columns else ()
        keeps_empty_text = is_test and task.max_malformed_rows > 0
        if not (has_all_columns and (all(texts) or keeps_empty_text)):
            if not is_test and len(skipped) < task.max_malformed_rows:
                skipped.append(line)
                continue
            flaw = f"{len(cells)} columns instead of {len(columns)}"
            if has_all_columns:
                flaw = "an empty text"
            raise ValueError(f"{where}, has {flaw}: correct it, or unpack {task.title} again.")
        label = None if is_test else _label(task, cells[columns.index(task.label)], where)
        id = str(len(examples)) if index_place is None else cells[index_place]
        examples.append(Example(id, texts, label))
    if not examples:
        raise ValueError(f"{table.path} has no rows: unpack {task.title} again.")
    if skipped:
        _logger.warning(
            "%s: skipped %d rows that are empty or split over several lines.",
            table.path,
            len(skipped),
        )
    return examples, skipped


def _label(task: GlueTask, cell: str, where: str) -> float:
    """Returns the label in a cell: a class number or a score."""
    label = task.parse_label(cell)
    if label is None or (task.is_regression and not 0 <= label <= MAX_SCORE):
        kind, known = "label", " or ".join(map(repr, task.labels))
        if task.is_regression:
            kind, known = "score", f"a number from 0 to {MAX_SCORE:g}"
        raise ValueError(f"{where}: a {kind} of {task.title} is {known}, not {cell!r}.")
    return label


def _lines(table: Table) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields line number and cells of each line; only newline characters separate lines."""
    for number, line in enumerate(io.BytesIO(table.content.removeprefix(b"\xef\xbb\xbf")), 1):
        text = decode(line, f"{table.path}, line {number},")
        yield number, tuple(text.removesuffix("\n").removesuffix("\r").split("\t"))


def _from_msr(task: GlueTask, training: Table, ids: Table, test: Table) -> dict[str, list[Example]]:
    """Returns the splits of MRPC from Microsoft's files; `dev_ids.tsv` lists the validation pairs."""
    valid_keys = {cells for _, cells in _lines(ids)}
    examples, _ = read_table(task, "train", training)
    _, *rows = _lines(training)
    keys = [cells[1:3] for _, cells in rows]
    if missing := valid_keys - set(keys):
        raise ValueError(
            f"{ids.path} names {len(missing)} pairs that are not in {training.path}: the files are from"
            " different releases."
        )
    splits: dict[str, list[Example]] = {"train": [], "valid": []}
    for example, key in zip(examples, keys, strict=True):
        own = splits["valid" if key in valid_keys else "train"]
        own.append(example._replace(id=str(len(own))))
    return {**splits, "test": read_table(task, "test", test)[0]}
