"""Ends a sentence about a name that is not known; the library's own needs jax to be imported."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Gives "; did you mean a or b?", or where nothing is near "; known: a, b, c."."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(names)}." if names else "; there are none."
