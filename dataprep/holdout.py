"""Held-out validation sets for datasets without one."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def held_out(
    contents: Iterable[bytes], labels: npt.NDArray[np.integer], per_class: int, seed: int
) -> npt.NDArray[np.bool_]:
    """Selects the `per_class` examples of each class with the smallest SHA-256 of (seed, content).

    The selection does not depend on the order or the source of the examples. Duplicates stay
    together, even with different labels: if not all copies fit, all stay in the training set and the
    next content is selected.

    Returns:
      Mask [N], True at held-out examples; the labels of the N examples are 0 to C - 1.

    Raises:
      ValueError: A class has too few examples.
    """
    class_sizes = np.bincount(labels)
    remaining = np.full(len(class_sizes), per_class)
    selected = np.zeros(len(labels), np.bool_)
    for rows in _copies(contents, seed):
        counts = np.bincount(labels[rows], minlength=len(class_sizes))
        if (counts <= remaining).all():
            remaining -= counts
            selected[rows] = True
    if remaining.any():
        label = int(remaining.argmax())
        raise ValueError(
            f"{per_class} examples of each class are held out for validation, but class {label} has"
            f" {class_sizes[label]}, of which {per_class - remaining[label]} can be held out (duplicates"
            " stay together): provide more data."
        )
    return selected


def held_out_share(contents: Iterable[bytes], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Selects about `share` of the examples, in the order of the SHA-256 of (seed, content).

    Examples with the same content stay together. A content with more copies than are still needed is
    skipped. If no content fits, that with the fewest copies is selected. At least one content is not.

    Returns:
      Mask [N], True at held-out examples.

    Raises:
      ValueError: All examples have the same content.
    """
    copies = _copies(contents, seed)
    if len(copies) < 2:
        raise ValueError("needs two or more different examples.")
    count = sum(map(len, copies))
    remaining = share * count
    selected = []
    for rows in copies:
        if len(rows) <= remaining:
            selected.append(rows)
            remaining -= len(rows)
    selected = selected or [min(copies, key=len)]
    if len(selected) == len(copies):
        selected.pop()
    is_held_out = np.zeros(count, np.bool_)
    is_held_out[np.concatenate(selected)] = True
    return is_held_out


def _copies(contents: Iterable[bytes], seed: int) -> list[list[int]]:
    """Returns the rows of each distinct content, in the order of the SHA-256 of (seed, content)."""
    copies: dict[bytes, list[int]] = {}
    for row, content in enumerate(contents):
        digest = hashlib.sha256(b"%d\n%b" % (seed, content)).digest()
        copies.setdefault(digest, []).append(row)
    return [rows for _, rows in sorted(copies.items())]
