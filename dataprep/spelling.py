"""Suggestions for unknown names, like `nystromformer_jax.spelling` but without importing jax."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean a or b?", or "; known: a, b, c." if no known name is similar."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=2)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; known: {', '.join(names)}." if names else "; there are none."
