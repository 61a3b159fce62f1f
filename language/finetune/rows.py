"""Sequence tasks from .tsv, .csv and .jsonl files: a row per example, columns by name."""

import contextlib
import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.archives import parse_json, read_text
from language.finetune.examples import Example
from nystromformer_jax.support.spelling import nearest

if TYPE_CHECKING:
    from language.finetune.files import FilesConfig

SUFFIXES = (".tsv", ".csv", ".jsonl")


def read(path: Path, config: "FilesConfig", *, labeled: bool | None) -> list[Example]:
    """Returns the rows of a file.

    If `labeled` is None, labels are read if any row has one; if it is False, they are not.

    Raises:
      ValueError: The file is not UTF-8, a column is missing, or a text or a label is invalid.
    """
    options = {"text": config.text} | ({"text_pair": config.text_pair} if config.text_pair else {})
    rows = list(_rows(path))
    if labeled is None:
        labeled = any(config.label in row for _, row in rows)
    options |= {"label": config.label} if labeled else {}
    examples = []
    for where, row in rows:
        for option, column in options.items():
            if column not in row:
                raise ValueError(
                    f"{where}: the column {column!r} (data.{option}) is missing{nearest(column, row)}"
                )
        texts = tuple(_text(row[column], column, where) for column in config.columns)
        label = _label(row[config.label], config, where) if labeled else None
        examples.append(Example(texts, label, where))
    if not examples:
        raise ValueError(f"{path} has no examples: it needs one row for each example.")
    return examples


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
    for number, cells in tsv_cells(text) if path.suffix == ".tsv" else _csv_cells(path, text):
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


def tsv_cells(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the cells of each line; a carriage return within a line is text."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
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


def _label(value: Any, config: "FilesConfig", where: str) -> Any:
    """Returns the value of the label column: a label, a list of labels (`multi_label`), or a score."""
    if config.kind == "regression":
        return "" if value is None else value  # validated by the task
    if config.kind == "multi_label":
        return _label_list(value, config, where)
    return _label_name(value, config.label, where)


def _label_list(value: Any, config: "FilesConfig", where: str) -> list[str]:
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


def whole_number(label: str) -> str:
    """Returns the label 1 for 1.0, which is the same number."""
    found = re.fullmatch(r"(-?\d+)\.0+", label)
    return found[1] if found else label
