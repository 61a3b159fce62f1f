"""Tables as Markdown and LaTeX, and number formats."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

OURS = "This code"  # beginning of the section titles of results of this project
NOT_RUN, NOT_FINISHED, DIVERGED, PARTIAL = "not run", "not finished", "diverged", "partial"
NOTHING = "–"
# Characters that LaTeX does not print as they are.
LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        **{character: f"${character}$" for character in "<>|"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "[": "{[}",  # after the end of a row, it begins an option
        "*": "{*}",
        "±": r"$\pm$",
        "−": "$-$",
        "×": r"$\times$",
        "✗": r"$\times$",
        "†": r"$\dagger$",
        "–": "--",
    }
)
PERCENTILES = (5, 50, 95)  # percentiles of lengths
# A number at the beginning of a cell, but not that of "2 × cpu" or of a hexadecimal number.
NUMBER = re.compile(r"[<±(\[]?\s?[+−-]?\d[\d,.]*+(e[+-]?\d+)?(?! ×|\w)")


class Table(NamedTuple):
    """Table of text: headings, and rows in one or more titled sections."""

    columns: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Sequence[str]]]]

    @classmethod
    def from_rows(cls, sections: Mapping[str, Sequence[Mapping[str, str]]]) -> "Table":
        """Creates a table from `sections`, which map a title to rows, each a dict of text by column.

        The columns are those of the first row. Empty sections are omitted.
        """
        columns = list(next((rows[0] for rows in sections.values() if rows), {}))
        cells = {
            title: [[row.get(name, "") for name in columns] for row in rows]
            for title, rows in sections.items()
            if rows
        }
        return cls(columns, list(cells.items()))

    @property
    def is_numeric(self) -> list[bool]:
        """True for each column of numbers, which is aligned to the right.

        At least half of its cells that contain a digit begin with a number. The first column names the
        rows; it is not a column of numbers.
        """
        rows = [row for _, own in self.sections for row in own]
        _, *columns = zip(self.columns, *rows, strict=True)
        return [False, *(_is_numeric(cells) for _, *cells in columns)]

    def select(self, *columns: str) -> "Table":
        """Returns a table with the given columns."""
        places = [list(self.columns).index(name) for name in columns]
        sections = [
            (title, [[row[place] for place in places] for row in own])
            for title, own in self.sections
        ]
        return Table(columns, sections)

    def markdown(self) -> str:
        """Returns the table as Markdown; section titles are rows in bold."""
        if not self.columns:
            return ""
        alignment = ["---:" if right else "---" for right in self.is_numeric]
        rows = [[_escape(name) for name in self.columns], alignment]
        for title, own in self.sections:
            if title:
                rows.append([f"**{_escape(title)}**", *[""] * (len(self.columns) - 1)])
            rows += [[_escape(cell) for cell in row] for row in own]
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def latex(self) -> str:
        """Returns the table as a LaTeX tabular, which needs the package booktabs."""
        columns = "".join("r" if right else "l" for right in self.is_numeric)
        lines = [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(self.columns)]
        for title, own in self.sections:
            lines.append(r"\midrule")
            if title:
                heading = " ".join(title.split()).translate(LATEX)
                width = len(self.columns)
                lines.append(f"\\multicolumn{{{width}}}{{l}}{{\\textbf{{{heading}}}}} \\\\")
            lines += map(_latex_row, own)
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table without sections as Markdown."""
    return Table(columns, [("", rows)]).markdown()


def lengths_cell(lengths: npt.NDArray[np.integer], unit: str = "length") -> dict[str, str]:
    """Returns {heading: cell} of a column with percentiles and the maximum of lengths."""
    heading = f"{unit}: {', '.join(f'{p} %' for p in PERCENTILES)}, longest"
    values = [*np.percentile(lengths, PERCENTILES), lengths.max()]
    return {heading: ", ".join(f"{value:,.0f}" for value in values)}


def format_3sf(value: float | None) -> str:
    """Formats a number with three significant figures; None is a dash."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def format_spread(mean: float, deviation: float, digits: int = 2) -> str:
    """Formats "mean ± deviation", or only the mean if the deviation is NaN."""
    spread = "" if math.isnan(deviation) else f" ± {deviation:.{digits}f}"
    return f"{mean:.{digits}f}{spread}"


def format_half_width(half_width: float) -> str:
    """Formats the half width of an interval; a dash for NaN."""
    return NOTHING if math.isnan(half_width) else f"± {half_width:.2f}"


def _is_numeric(cells: Sequence[str]) -> bool:
    is_number = [bool(NUMBER.match(cell)) for cell in cells if any(map(str.isdigit, cell))]
    return 0 < len(is_number) <= 2 * sum(is_number)


def _latex_row(cells: Sequence[str]) -> str:
    """Returns a row of a LaTeX table."""
    return " & ".join(" ".join(cell.split()).translate(LATEX) for cell in cells) + r" \\"


def _escape(cell: str) -> str:
    """Escapes "&", "<" and "|" in a cell and joins its lines."""
    return " ".join(cell.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
