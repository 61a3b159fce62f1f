"""Token classification from CoNLL files: a word per line, its tag last, an empty line after a sentence."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dataprep.archives import read_text
from language.finetune.examples import Example

DOCUMENT = "-DOCSTART-"  # begins a document in CoNLL-2003; the line is skipped
CONLL_U = 10  # columns
ENTITY_TAG = re.compile(r"O|[BIESLUM]-.+")


def read(path: Path, *, labeled: bool | None) -> list[Example]:
    """Returns the sentences of a file. Columns are separated by tabs, or else by spaces.

    If `labeled` is None, tags are read if the lines have two or more columns; if it is False, they are not.
    Comments, such as `# sent_id = 1`, are skipped before the first word of a sentence.

    Raises:
      ValueError: The file is not UTF-8, has no sentence or is CoNLL-U, a line has no tag, or the lines of a
        sentence have different numbers of columns.
    """
    lines = read_text(path).split("\n")
    is_comment = _comment_test(lines)
    sentences: list[tuple[str, list[list[str]]]] = []  # place, and the columns of each line
    is_new = True
    for number, line in enumerate(lines, 1):
        cells = _cells(line)
        if cells == [""] or cells[0] == DOCUMENT:
            is_new = True
            continue
        if is_new and is_comment(line):
            continue
        if labeled is None:
            labeled = len(cells) > 1
        where = f"{path}, line {number}"
        if not cells[0] or (labeled and (len(cells) < 2 or not cells[-1].strip())):
            raise ValueError(
                f"{where}: needs a word and its tag, separated by a space or a tab, got {line!r:.50}."
            )
        if is_new:
            sentences.append((where, []))
            is_new = False
        rows = sentences[-1][1]
        rows.append(cells)
        if len(cells) != len(rows[0]):
            raise ValueError(
                f"{where}: has {len(cells)} columns, but the first line of its sentence has {len(rows[0])}."
                " Comments are supported only before the first word of a sentence."
            )
    if not sentences:
        raise ValueError(f"{path} has no sentences: it needs one word per line.")
    if all(len(rows[0]) == CONLL_U and rows[0][0] == "1" for _, rows in sentences):
        raise ValueError(
            f"{path} is CoNLL-U, whose first column numbers the words: write the word first and the tag last."
        )
    return [
        Example(
            tuple(cells[0] for cells in rows),
            [cells[-1].strip() for cells in rows] if labeled else None,
            where,
        )
        for where, rows in sentences
    ]


def _cells(line: str) -> list[str]:
    """Returns the columns of a line; one empty column for an empty line."""
    content = line.strip(" \t\r")  # a no-break space is part of a word
    if "\t" in content:
        return [cell.strip(" \r") for cell in line.split("\t")]
    return re.split(" +", content)


def _comment_test(lines: Sequence[str]) -> Callable[[str], bool]:
    """Returns a function that tells comments from words that begin with "#", such as "#" or a hashtag.

    A comment begins with "# " or contains "=". It has another number of columns than most lines. Or its
    columns are separated by spaces and have the form `# key = value`, or the last one is neither the tag of
    another line nor that of an entity.
    """
    rows = map(_cells, lines)
    words = [cells for cells in rows if cells[0] and cells[0][0] != "#" and cells[0] != DOCUMENT]
    counts = Counter(len(cells) for cells in words)
    columns = counts.most_common(1)[0][0] if words else 0
    tags = {cells[-1] for cells in words if len(cells) == columns}

    def is_comment(line: str) -> bool:
        cells = _cells(line)
        is_hashtag = cells[0].split(" ")[0] != "#" and not any("=" in cell for cell in cells)
        if cells[0][:1] != "#" or is_hashtag or not words:
            return False
        if len(cells) != columns:
            return True
        if columns == 1 or (cells[0] == "#" and "\t" in line):
            return False
        has_tag = cells[-1] in tags or ENTITY_TAG.fullmatch(cells[-1])
        return cells[2:3] == ["="] or not has_tag

    return is_comment
