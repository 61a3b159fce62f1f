"""Tables of text: numbers as words, in rows, before they become Markdown or HTML."""

from collections.abc import Sequence
from typing import NamedTuple

NOT_RUN, NOT_FINISHED, NOTHING = "not run", "not finished", "–"
WORDS = {
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

    @property
    def of_numbers(self) -> list[bool]:
        """Whether each column holds numbers, which stand to the right; the first names its row."""
        return [place > 0 and name not in WORDS for place, name in enumerate(self.columns)]

    def take(self, *columns: str) -> "Table":
        """The same rows with these columns alone."""
        places = [list(self.columns).index(name) for name in columns]
        sections = [
            (title, [[row[place] for place in places] for row in own])
            for title, own in self.sections
        ]
        return Table(columns, sections)

    def markdown(self) -> str:
        """The table for a page of Markdown."""
        rows = [self.columns, ["---:" if right else "---" for right in self.of_numbers]]
        for title, own in self.sections:
            if title:
                rows.append([f"**{_escape(title)}**", *[""] * (len(self.columns) - 1)])
            rows += [[_escape(cell) for cell in row] for row in own]
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def three_digits(value: float | None) -> str:
    """A number with the three digits that count, or what stands for none."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"


def _escape(cell: str) -> str:
    """Keeps a cell in its column, and markup out of it."""
    return " ".join(cell.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
