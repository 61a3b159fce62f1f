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
    copies: dict[bytes, list[int]] = {}
    for row, content in enumerate(contents):
        digest = hashlib.sha256(b"%d\n%b" % (seed, content)).digest()
        copies.setdefault(digest, []).append(row)
    class_sizes = np.bincount(labels)
    remaining = np.full(len(class_sizes), per_class)
    selected = np.zeros(len(labels), np.bool_)
    for _, rows in sorted(copies.items()):
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
