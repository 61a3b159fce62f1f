"""Whether a saved step is what was written: a hash of each file, kept in the step's own folder.

The hashes are written before the step's folder gets its name, so a kill leaves no step without them.
A run whose steps all lack them was made before they were kept: its steps are used as they are.
"""

import hashlib
import logging
from pathlib import Path

from nystromformer_jax.durable import read_json, write_json
from nystromformer_jax.training.hosts import agreed, is_first

__all__ = ["CheckpointDamaged", "require_whole", "seal", "set_aside_damaged", "warn_of_damage"]

HASHES = "hashes.json"
# Orbax changes these after the hashes were made; nothing that is restored comes from them.
NOT_HASHED = (HASHES, "_CHECKPOINT_METADATA", "commit_success.txt")


class CheckpointDamaged(OSError):
    """A saved step is not what was written."""


def seal(step_folder: Path) -> None:
    """Writes the hashes of a step's files beside them."""
    names = sorted(
        str(path.relative_to(step_folder)) for path in step_folder.rglob("*") if path.is_file()
    )
    hashes = {name: _sha256(step_folder / name) for name in names if name not in NOT_HASHED}
    write_json(step_folder / HASHES, {"sha256": hashes})


def set_aside_damaged(checkpoints: Path) -> None:
    """Leaves a whole step as the latest: damaged ones behind it are renamed, and a warning says so.

    Every process of a run calls it; the first one reads and renames.

    Raises:
        CheckpointDamaged: there are steps, but no whole one. They stay as they are.
    """
    with agreed():
        if is_first():
            _set_aside(checkpoints)


def require_whole(checkpoints: Path, step: int) -> None:
    """Refuses a step that is not what was written. Every process of a run calls it.

    Raises:
        CheckpointDamaged: with the file.
    """
    with agreed():
        if is_first() and (damage := _damage(checkpoints, step)):
            raise CheckpointDamaged(
                f"The checkpoint of step {step} in {checkpoints} is damaged ({damage}): put it back from"
                " a copy, or train again in another --workdir."
            )


def warn_of_damage(checkpoints: Path, best_step: int) -> None:
    """Says at the start of a run what it would else say at its end: that the best step is lost."""
    if best_step and is_first() and (damage := _damage(checkpoints, best_step)):
        logging.getLogger(__name__).warning(
            "The checkpoint of step %d, the best until now, is damaged (%s): unless a later step is"
            " better, this run will have no result.",
            best_step,
            damage,
        )


def _set_aside(checkpoints: Path) -> None:
    damages: dict[int, str] = {}
    steps = _steps(checkpoints)
    while steps and (damage := _damage(checkpoints, steps[-1])):
        damages[steps.pop()] = damage
    if damages and not steps:
        found = "; ".join(f"step {step}: {damage}" for step, damage in damages.items())
        raise CheckpointDamaged(
            f"No checkpoint in {checkpoints} is whole ({found}). Nothing was changed: put one back from"
            " a copy, or train again in another --workdir."
        )
    for step, damage in damages.items():
        aside = _unused(checkpoints / f"{step}.damaged")
        (checkpoints / str(step)).rename(aside)
        logging.getLogger(__name__).warning(
            "The checkpoint of step %d is damaged (%s): going on from step %d, the one before it;"
            " what is left of the other is in %s.",
            step,
            damage,
            steps[-1],
            aside,
        )


def _damage(checkpoints: Path, step: int) -> str | None:
    """What is wrong with a step, in words; None where it is whole, or nothing can tell."""
    folder = checkpoints / str(step)
    file = folder / HASHES
    if not folder.is_dir():
        return f"{folder} is missing"
    if not file.exists():
        earlier = [other for other in _steps(checkpoints) if other < step]
        if any((checkpoints / str(other) / HASHES).exists() for other in earlier):
            return f"{file} is missing"
        logging.getLogger(__name__).warning("%s has no hashes: it is used unchecked.", folder)
        return None
    try:
        for name, expected in read_json(file)["sha256"].items():
            file = folder / name
            if _sha256(file) != expected:
                return f"{file} is not what was written"
    except FileNotFoundError:
        return f"{file} is missing"
    except OSError as error:  # a disk that cannot read it any more
        return f"{file} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{file} is not what was written"
    return None


def _steps(checkpoints: Path) -> list[int]:
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return sorted(int(folder.name) for folder in folders if folder.name.isdigit())


def _unused(path: Path) -> Path:
    """`path`, or the first of `path`.2, `path`.3 and so on that is not there."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
