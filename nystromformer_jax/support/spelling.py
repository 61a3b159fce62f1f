"""Splits lists of a command line, and suggests known names for an unknown one."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns "; did you mean a or b?", or "; known: a, b, c." if no known name is similar.

    For a key such as `optimizer.lr`, names with the same last part are suggested first, then names of the
    same section. If there are such names, no others are considered.
    """
    names = sorted(known)
    section, dot, key = ("", "", name) if "/" in name else name.rpartition(".")
    close = [other for other in names if dot and other.rpartition(".")[2] == key]
    start = section + dot
    if not any(other.startswith(start) for other in names):
        start = ""
    keys = [other.removeprefix(start) for other in names if other.startswith(start)]
    if not close:
        cutoff = 0.5 if start else 0.6  # a section has few keys
        similar = difflib.get_close_matches(name.removeprefix(start), keys, cutoff=cutoff)
        close = [start + other for other in similar]
    if close:
        return f"; did you mean {' or '.join(prefix + other for other in close[:2])}?"
    return (
        f"; known: {', '.join(start + other for other in keys)}." if keys else "; there are none."
    )


def split_commas(text: str) -> list[str]:
    """Splits at commas that are not inside brackets: `1,((2,3),4)` has the items `1` and `((2,3),4)`."""
    items, depth = [""], 0
    for character in text:
        depth = max(0, depth + (character in "([") - (character in ")]"))
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return items
