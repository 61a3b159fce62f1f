"""Splits lists of a command line, and suggests known names for an unknown one."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Returns "; did you mean a or b?", or "; known: a, b, c." if no known name is similar.

    If known names begin with the section of `name`, as in `optimizer.lr`, only these are considered.
    """
    names = sorted(known)
    section = name[: name.rfind(".") + 1]
    if not any(known.startswith(section) for known in names):
        section = ""
    keys = [known.removeprefix(section) for known in names if known.startswith(section)]
    cutoff = 0.5 if section else 0.6  # a section has few keys
    close = difflib.get_close_matches(name.removeprefix(section), keys, n=2, cutoff=cutoff)
    if close:
        return f"; did you mean {' or '.join(prefix + section + near for near in close)}?"
    return f"; known: {', '.join(section + key for key in keys)}." if keys else "; there are none."


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
