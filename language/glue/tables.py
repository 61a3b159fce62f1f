"""Reads the tables of GLUE; quotation marks are part of the text.

MRPC is read from prepared tables, or from Microsoft's two files and GLUE's `dev_ids.tsv`. Both give the same
examples.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from dataprep.archives import read_text
from language.files.rows import tsv_cells
from language.glue.tasks import GlueTask
from language.tasks.examples import Example

# Source: nyu-mll/GLUE-baselines, download_glue_data.py, which makes MRPC's tables from these three files.
MSR_FILES = {
    "train": "msr_paraphrase_train.txt",
    "valid": "dev_ids.tsv",
    "test": "msr_paraphrase_test.txt",
}

_logger = logging.getLogger(__name__)


def find(task: GlueTask, folder: Path) -> dict[str, Path]:
    """Returns the tables of a task by split; `folder` is the task's folder or its parent."""
    folders = (folder / task.title, folder)
    for parent in folders:
        for names in (task.files, *([MSR_FILES] if task.name == "mrpc" else [])):
            files = {split: parent / name for split, name in names.items()}
            found = {split: path for split, path in files.items() if path.is_file()}
            if files.keys() - found.keys() <= set(task.optional):
                return found
    required = [name for split, name in task.files.items() if split not in task.optional]
    partial = next((p for p in folders if any((p / name).is_file() for name in required)), None)
    missing = next(name for name in required if not ((partial or folder) / name).is_file())
    place = partial or (f"{folders[0]} and {folder}" if folder.name else "the current folder")
    raise FileNotFoundError(
        f"{task.title} needs the files {', '.join(required)}, and {missing} is missing in {place}."
        f" Unpack {task.title} of https://gluebenchmark.com/tasks, and set --config.data.dir to its"
        " folder, or to the one above."
    )


def read(
    task: GlueTask, files: Mapping[str, Path]
) -> tuple[dict[str, list[Example]], dict[str, list[int]]]:
    """Returns the examples of all splits, and the line numbers of the rows skipped in each split."""
    if files["valid"].name == MSR_FILES["valid"]:
        return _from_msr(task, files), {}
    splits, left_out = {}, {}
    for split, path in files.items():
        splits[split], skipped = read_table(task, split, path)
        if skipped:
            left_out[split] = skipped
    return splits, left_out


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
        id = row.get(task.index, "")
        examples.append(Example(texts, label, f"{path}, line {line}", id))
    if not examples:
        raise ValueError(f"{path} has no rows: unpack {task.title} again.")
    if skipped:
        _logger.warning(
            "%s: skipped %d rows that are empty or split over several lines.", path, len(skipped)
        )
    return examples, skipped


def _from_msr(task: GlueTask, files: Mapping[str, Path]) -> dict[str, list[Example]]:
    """Returns the splits of MRPC from Microsoft's files; `dev_ids.tsv` lists the validation pairs."""
    valid_keys = {tuple(cells) for _, cells in tsv_cells(read_text(files["valid"]))}
    examples, _ = read_table(task, "train", files["train"])
    _, *rows = tsv_cells(read_text(files["train"]))
    keys = [tuple(cells[1:3]) for _, cells in rows]
    if missing := valid_keys - set(keys):
        raise ValueError(
            f"{files['valid']} names {len(missing)} pairs that are not in {files['train']}: the files are"
            " from different releases."
        )
    splits: dict[str, list[Example]] = {"train": [], "valid": []}
    for example, key in zip(examples, keys, strict=True):
        splits["valid" if key in valid_keys else "train"].append(example)
    return {**splits, "test": read_table(task, "test", files["test"])[0]}
