"""Splits lists of a command line, and suggests known names for an unknown one."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns "; did you mean a or b?", or "; known: a, b, c." if no known name is similar."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(prefix + near for near in close)}?"
    return f"; known: {', '.join(names)}." if names else "; there are none."


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
