"""Tables of text, as Markdown, and the format of their numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

OURS = "This code"  # how the titles of our own rows begin
NOT_RUN, NOT_FINISHED, DIVERGED, NOTHING = "not run", "not finished", "diverged", "–"
PERCENTILES = (5, 50, 95)  # of lengths
TEXT_COLUMNS = {
    "run",
    "task",
    "attention",
    "model",
    "setting",
    "metric",
    "device",
    "config, SHA-256",
    "data, SHA-256",
}


class Table(NamedTuple):
    """Rows of text under headings, in one or several titled sections."""

    columns: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Sequence[str]]]]

    @classmethod
    def from_rows(cls, sections: Mapping[str, Sequence[Mapping[str, str]]]) -> "Table":
        """Returns a table of rows by column, in sections by title, without those that are empty.

        The first row has all columns.
        """
        columns = list(next(iter(sections.values()))[0])
        cells = {
            title: [[row.get(name, "") for name in columns] for row in rows]
            for title, rows in sections.items()
            if rows
        }
        return cls(columns, list(cells.items()))

    @property
    def is_numeric(self) -> list[bool]:
        """For each column, True if it holds numbers, which are aligned to the right."""
        return [place > 0 and name not in TEXT_COLUMNS for place, name in enumerate(self.columns)]

    def select(self, *columns: str) -> "Table":
        """Returns the table with these columns only."""
        places = [list(self.columns).index(name) for name in columns]
        sections = [
            (title, [[row[place] for place in places] for row in own])
            for title, own in self.sections
        ]
        return Table(columns, sections)

    def markdown(self) -> str:
        """Returns the table as Markdown; the title of a section is a row in bold."""
        rows = [self.columns, ["---:" if right else "---" for right in self.is_numeric]]
        for title, own in self.sections:
            if title:
                rows.append([f"**{_escape(title)}**", *[""] * (len(self.columns) - 1)])
            rows += [[_escape(cell) for cell in row] for row in own]
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def lengths_cell(lengths: npt.NDArray[np.integer], unit: str = "length") -> dict[str, str]:
    """Returns the percentiles and the maximum of lengths, by the heading of their column."""
    heading = f"{unit}: {', '.join(f'{p} %' for p in PERCENTILES)}, longest"
    values = [*np.percentile(lengths, PERCENTILES), lengths.max()]
    return {heading: ", ".join(f"{value:,.0f}" for value in values)}


def format_3sf(value: float | None) -> str:
    """Returns a number with three significant figures, or a dash for None."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def format_spread(mean: float, deviation: float, digits: int = 2) -> str:
    """Returns "mean ± deviation", or the mean alone if the deviation is NaN."""
    spread = "" if math.isnan(deviation) else f" ± {deviation:.{digits}f}"
    return f"{mean:.{digits}f}{spread}"


def _escape(cell: str) -> str:
    """Returns the cell on one line, without markup."""
    return " ".join(cell.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
