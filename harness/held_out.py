"""The validation part of a task that comes without one."""

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt


def held_out(
    contents: Iterable[bytes], labels: npt.NDArray[np.integer], per_class: int, seed: int
) -> npt.NDArray[np.bool_]:
    """Chooses `per_class` examples of every class: those whose SHA-256 of (seed, content) is smallest.

    So the same examples are held out from a folder, an archive or a data set of tfds, in any order.
    Equal contents stay on one side, whatever their labels: where all their copies do not fit any
    more, they stay in training and the next content takes the place.

    Args:
      contents: the N examples as bytes.
      labels: [N], 0 to C - 1.
      per_class: examples to hold out of each class.
      seed: another one holds out others.

    Returns:
      [N], True at the examples that are held out.

    Raises:
      ValueError: a class has too few examples.
    """
    copies: dict[bytes, list[int]] = {}
    for row, content in enumerate(contents):
        digest = hashlib.sha256(b"%d\n%b" % (seed, content)).digest()
        copies.setdefault(digest, []).append(row)
    sizes = np.bincount(labels)
    room = np.full(len(sizes), per_class)
    chosen = np.zeros(len(labels), np.bool_)
    for _, rows in sorted(copies.items()):
        taken = np.bincount(labels[rows], minlength=len(sizes))
        if (taken <= room).all():
            room -= taken
            chosen[rows] = True
    if room.any():
        label = int(room.argmax())
        raise ValueError(
            f"{per_class} examples of every class are held out for validation, but class {label}"
            f" has {sizes[label]}, and {per_class - room[label]} of them can be (equal ones stay"
            " together): read more data."
        )
    return chosen
