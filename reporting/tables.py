"""Formats tables, pandas DataFrames of text, as Markdown and LaTeX, and the numbers in their cells."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

NOTHING = "–"
PERCENTILES = (5, 50, 95)  # percentiles of lengths
# Characters that pdfLaTeX does not print.
SYMBOLS = {"−": "$-$", "✗": r"$\times$", "×": r"$\times$", "±": r"$\pm$", "†": r"$\dagger$"}
Rows: TypeAlias = pd.DataFrame | Sequence[Mapping[str, Any]]  # a table, or a list of its rows
# A number at the beginning of a cell, but not that of "2 × cpu" or of a hexadecimal number.
NUMBER = r"[<±(\[]?\s?[+−-]?\d[\d,.]*(e[+-]?\d+)?(?! ×|\w)"


def in_sections(sections: Mapping[str, Rows]) -> pd.DataFrame:
    """Joins tables with the same columns; before each, a row has only its title, which is also its index."""
    parts = []
    for title, rows in sections.items():
        if len(rows):
            table = pd.DataFrame(rows)
            heading = pd.DataFrame([[title]], columns=table.columns[:1], index=[title])
            parts += [heading, table.set_axis([""] * len(table))] if title else [table]
    return pd.concat(parts).fillna("")


def comparison(
    heading: str,
    ours: Mapping[str, Sequence[Mapping[str, str]]],
    published: Mapping[str, Sequence[Mapping[str, str]]],
    columns: Sequence[str],
    absent: Collection[str],
) -> pd.DataFrame:
    """Returns rows of this code and published rows, each a mapping of sections, below one another.

    Those of `columns` are shown for which this code has a cell that is not in `absent`. Published rows
    without a value in these are left out. The first column, with the names of rows, has the `heading`.
    """
    rows = [row for own in ours.values() for row in own]
    shown = [name for name in columns if any(row[name] not in absent for row in rows)]
    if not shown:
        return pd.DataFrame(columns=[heading])
    known = {
        title: [row for row in own if any(name in row for name in shown)]
        for title, own in published.items()
    }
    table = in_sections({**ours, **known})[[heading, *shown]].replace("", NOTHING)
    table.loc[table.index != "", shown] = ""
    return table


def markdown(table: Rows) -> str:
    """Returns a table, or a list of its rows, as Markdown; columns of numbers are aligned to the right."""
    text = _as_text(table)
    if text.empty:
        return ""
    rows = [
        list(map(_escape, text.columns)),
        ["---:" if is_right else "---" for is_right in _are_numbers(text)],
    ]
    for title, *cells in text.itertuples(name=None):
        cells = list(map(_escape, cells))
        rows.append([f"**{cells[0]}**", *cells[1:]] if title else cells)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def latex(table: pd.DataFrame) -> str:
    """Returns a table as a LaTeX tabular, which needs the package booktabs."""
    text = _as_text(table)
    columns = "".join("r" if is_right else "l" for is_right in _are_numbers(text))
    found = text.to_latex(index=False, escape=True, column_format=columns)
    for character, symbol in SYMBOLS.items():
        found = found.replace(character, symbol)
    lines = found.splitlines()
    first = lines.index(r"\midrule") + 1
    for number, title in enumerate(text.index, first):
        if title:
            rule = "\\midrule\n" if number > first else ""
            lines[number] = rule + re.sub(r"^(.*?) &", r"\\textbf{\1} &", lines[number])
    return "\n".join([*lines, ""])


def lengths_cell(lengths: npt.NDArray[np.integer], unit: str = "length") -> dict[str, str]:
    """Returns {heading: cell} of a column with percentiles and the maximum of lengths."""
    heading = f"{unit}: {', '.join(f'{p} %' for p in PERCENTILES)}, longest"
    values = [*np.percentile(lengths, PERCENTILES), lengths.max()]
    return {heading: ", ".join(f"{value:,.0f}" for value in values)}


def format_known(value: float | None, form: str = "{:.2f}") -> str:
    """Formats a number; None and NaN are a dash."""
    return NOTHING if value is None or math.isnan(value) else form.format(value)


def format_3sf(value: float | None) -> str:
    """Formats a number with three significant figures; None and NaN are a dash."""
    return format_known(value, "{:,.0f}" if value and value >= 99.95 else "{:#.3g}")


def format_difference(value: float, digits: int = 2) -> str:
    """Formats a number with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def format_p(value: float) -> str:
    """Formats a p-value with three decimals; a dash for NaN."""
    return "< 0.001" if value < 0.001 else format_known(value, "{:.3f}")


def _as_text(table: Rows) -> pd.DataFrame:
    """Returns the table with one line of text per cell; the index is text for titles, else empty."""
    if not isinstance(table, pd.DataFrame):
        columns = list(dict.fromkeys(key for row in table for key in row))
        table = pd.DataFrame(list(table), columns=columns, dtype=object)
    text = table.fillna("").map(lambda cell: " ".join(str(cell).split()))
    text.columns = [" ".join(str(name).split()) for name in text.columns]
    return text.set_axis([name if isinstance(name, str) else "" for name in text.index])


def _are_numbers(text: pd.DataFrame) -> list[bool]:
    """Returns True for each column of numbers but the first, which names the rows.

    At least half of its cells that contain a digit begin with a number.
    """
    found = []
    for name in range(1, len(text.columns)):
        cells = text.iloc[:, name]
        with_digits = cells[cells.str.contains(r"\d")]
        found.append(len(with_digits) > 0 and bool(with_digits.str.match(NUMBER).mean() >= 0.5))
    return [False, *found]


def _escape(cell: str) -> str:
    """Escapes "&", "<" and "|" in a cell."""
    return cell.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
