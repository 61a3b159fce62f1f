"""Sequence tasks from .tsv, .csv and .jsonl files: a row per example, columns by name."""

import contextlib
import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataprep.archives import parse_json, read_text
from language.files.config import METRICS, FilesConfig, whole_number
from language.tasks import examples
from language.tasks.examples import EncodedSplit, Example
from language.tasks.sequences import SequenceTask
from language.tokenizer import Tokenizer
from nystromformer_jax.support.spelling import nearest

SUFFIXES = (".tsv", ".csv", ".jsonl")


class Record(NamedTuple):
    """One row of a file."""

    where: str  # file and line, for messages
    texts: tuple[str, ...]
    label: Any  # label, list of labels or score; None if the file has no labels


def read(path: Path, config: FilesConfig, *, labeled: bool | None) -> list[Record]:
    """Returns the rows of a file.

    If `labeled` is None, labels are read if any row has one; if it is False, they are not.

    Raises:
      ValueError: The file is not UTF-8, a column is missing, or a text or a label is invalid.
    """
    texts = [config.text, *([config.text_pair] if config.text_pair else [])]
    records = []
    rows = list(_rows(path))
    if labeled is None:
        labeled = any(config.label in row for _, row in rows)
    for where, row in rows:
        for column in (*texts, *([config.label] if labeled else [])):
            if column not in row:
                option = "text" if column == config.text else "text_pair"
                option = "label" if column == config.label else option
                raise ValueError(
                    f"{where}: the column {column!r} (data.{option}) is missing{nearest(column, row)}"
                )
        found = tuple(_text(row[column], column, where) for column in texts)
        label = _label(row[config.label], config, where) if labeled else None
        records.append(Record(where, found, label))
    if not records:
        raise ValueError(f"{path} has no examples: it needs one row for each example.")
    return records


def labels_of(records: Sequence[Record], config: FilesConfig) -> list[str]:
    """Returns the different labels, in numerical order if all are integers, else in alphabetical order."""
    if config.kind == "regression":
        return []
    found = {label for record in records for label in _as_list(record.label)}
    integers = all(label.removeprefix("-").isdecimal() for label in found)
    return sorted(found, key=lambda label: (Decimal(label), label)) if integers else sorted(found)


def content(record: Record) -> bytes:
    """Returns the texts, to keep equal examples in the same split."""
    return "\0".join(record.texts).encode()


def make_task(config: FilesConfig, labels: Sequence[str]) -> SequenceTask:
    """Returns the task with these labels."""
    metrics = METRICS[config.kind]
    if config.kind == "classification":
        metrics = ("accuracy", "f1" if len(labels) == 2 else "macro_f1")
    elif config.kind == "regression":
        # Reported only: lower is better, so it cannot select the checkpoint.
        metrics = (*metrics, "mse")
    return SequenceTask(
        name=config.kind,
        title=config.kind,
        kind=config.kind,
        labels=tuple(labels),
        metrics=metrics,
        texts=(config.text, *([config.text_pair] if config.text_pair else ())),
    )


def save(
    folder: Path,
    split: str,
    records: Sequence[Record],
    labels: Sequence[str],
    config: FilesConfig,
    tokenizer: Tokenizer,
) -> None:
    """Tokenizes a split and writes it; see `examples.save`.

    Raises:
      ValueError: A label is not in `labels`.
    """
    numbers = {label: i for i, label in enumerate(labels)}

    def encode(record: Record) -> Any:
        if record.label is None or config.kind == "regression":
            return record.label
        own = _as_list(record.label)
        for label in own:
            require_known(label, labels, record.where)
        if config.kind == "classification":
            return numbers[own[0]]
        return [int(label in own) for label in labels]

    rows = [Example(str(i), row.texts, encode(row)) for i, row in enumerate(records)]
    dtype = np.float32 if config.kind == "regression" else np.int32
    examples.save(folder, split, rows, tokenizer, label_dtype=dtype)


def open_split(
    folder: Path, split: str, labels: Sequence[str], config: FilesConfig, tokenizer: Tokenizer
) -> EncodedSplit:
    """Opens a split that `save` wrote."""
    return examples.open_split(
        folder,
        split,
        2 if config.text_pair else 1,
        tokenizer,
        config.truncation,
        np.float32 if config.kind == "regression" else np.int32,
        (len(labels),) if config.kind == "multi_label" else (),
    )


def require_known(label: str, labels: Sequence[str], where: str) -> None:
    """Raises ValueError unless `label` is in `labels`."""
    if label not in labels:
        shown = ", ".join(labels[:20]) + (", …" if len(labels) > 20 else "")
        raise ValueError(
            f"{where}: the label {label!r} is not among the labels {shown}: correct it, or list all labels"
            " in --config.data.labels. Without this list, they are the labels of the training file."
        )


def _as_list(label: Any) -> list[str]:
    return label if isinstance(label, list) else [label]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the location of each row, such as "train.csv, line 3", and its values by column."""
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path} must end in {' or '.join(SUFFIXES)}: rename it to match its format, or convert it."
        )
    text = read_text(path)
    if path.suffix == ".jsonl":
        yield from _json_rows(path, text)
    else:
        yield from _table_rows(path, text)


def _json_rows(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = parse_json(line, where, "write one object per line")
        if not isinstance(row, dict):
            raise ValueError(f"{where} is not a JSON object: write one object per line.")
        yield where, row


def _table_rows(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the rows of a .tsv file, where quotation marks are text, or of a .csv file (RFC 4180)."""
    header: list[str] = []
    empty = ""  # place of an empty line below the header
    for number, cells in _tsv_cells(text) if path.suffix == ".tsv" else _csv_cells(path, text):
        where = f"{path}, line {number}"
        if not cells:
            empty = where if header else ""
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            if len(set(header)) != len(header):
                raise ValueError(f"{where}: two columns have the same name: rename one.")
            continue
        if empty and len(header) == 1:  # it may be an empty text
            raise ValueError(f"{empty}: the column {header[0]!r} needs a text, not an empty line.")
        if len(cells) != len(header):
            raise ValueError(
                f"{where}, has {len(cells)} columns instead of {len(header)}: quote texts that contain"
                " the separator (.csv), or use .jsonl."
            )
        yield where, dict(zip(header, cells, strict=True))


def _tsv_cells(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the cells of each line; a carriage return within a line is text."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        yield number, line.split("\t") if line else []


def _csv_cells(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of the first line and the cells of each row."""
    limit = csv.field_size_limit(2**31 - 1)  # the default is shorter than long documents
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = 1
    try:
        for cells in reader:
            yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {first}, is not CSV ({error}).") from None
    finally:
        csv.field_size_limit(limit)


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        found = "an empty text" if value is None or isinstance(value, str) else repr(value)
        raise ValueError(f"{where}: the column {column!r} needs a text, not {found}.")
    return value.strip()


def _label(value: Any, config: FilesConfig, where: str) -> Any:
    """Returns the value of the label column: a label, a list of labels (`multi_label`), or a score."""
    if config.kind == "regression":
        try:
            # Python would read "1_000" as 1000.
            score = math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if not abs(score) <= float(np.finfo(np.float32).max):  # also if it is not a number
            raise ValueError(
                f"{where}: the column {config.label!r} needs a number, not {value!r:.50}: correct it, or use"
                " --config=configs/finetune.py:classification for labels."
            )
        return score
    if config.kind == "multi_label":
        return _label_list(value, config, where)
    return _label_name(value, config.label, where)


def _label_list(value: Any, config: FilesConfig, where: str) -> list[str]:
    if config.separator and isinstance(value, str):
        value = [part for part in value.split(config.separator) if part.strip()]
    elif isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = parse_json(value, "", "")
    if not isinstance(value, list):
        raise ValueError(
            f"{where}: the column {config.label!r} needs a JSON list of labels, not {value!r}: write one,"
            " or set --config.data.separator."
        )
    return [_label_name(item, config.label, where) for item in value]


def _label_name(value: Any, column: str, where: str) -> str:
    is_missing = value is None or (isinstance(value, float) and not math.isfinite(value))
    if is_missing or isinstance(value, (list, dict)) or (name := _label_text(value)) == "":
        raise ValueError(
            f"{where}: the column {column!r} needs a label, not {value!r}: correct it, or leave the column"
            " out of a test file without labels."
        )
    if any(c in name for c in "\t\n\r"):  # a file of predictions has a line per example
        raise ValueError(
            f"{where}: the column {column!r} needs a label without tabs and line breaks, got {value!r}."
        )
    return name


def _label_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return whole_number(value.strip() if isinstance(value, str) else json.dumps(value))
