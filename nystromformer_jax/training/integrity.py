"""Checksums of checkpoints: one per file, stored in the folder of the checkpoint.

Checksums are written before the folder gets its final name, so every complete checkpoint has them.
"""

import itertools
import logging
from pathlib import Path

from nystromformer_jax.support.durable import read_json, sha256_of, write_json
from nystromformer_jax.training.errors import CheckpointDamaged
from nystromformer_jax.training.hosts import is_primary, sync_errors

HASHES = "hashes.json"
# Orbax changes these files after the checksums are written. A restore does not read them.
NOT_HASHED = (HASHES, "_CHECKPOINT_METADATA", "commit_success.txt")

_logger = logging.getLogger(__name__)


def write_checksums(step_folder: Path) -> None:
    """Writes the checksums of all files of a checkpoint into its folder."""
    names = sorted(
        str(path.relative_to(step_folder)) for path in step_folder.rglob("*") if path.is_file()
    )
    hashes = {name: sha256_of(step_folder / name) for name in names if name not in NOT_HASHED}
    write_json(step_folder / HASHES, {"sha256": hashes})


def quarantine_corrupt(checkpoints: Path) -> None:
    """Renames damaged checkpoints that are newer than the latest intact one, with a warning.

    Call this function in every process; only the primary process reads and renames.

    Raises:
      CheckpointDamaged: All checkpoints are damaged; none is renamed.
    """
    with sync_errors():
        if not is_primary():
            return
        damages: dict[int, str] = {}
        steps = saved_steps(checkpoints)
        while steps and (damage := _damage(checkpoints, steps[-1])):
            damages[steps.pop()] = damage
        if damages and not steps:
            found = "; ".join(f"step {step}: {damage}" for step, damage in damages.items())
            raise CheckpointDamaged(
                f"No checkpoint in {checkpoints} is intact ({found}). Nothing was changed: restore one from"
                " a copy, or train again in another --workdir."
            )
        for step, damage in damages.items():
            renamed = _unused(checkpoints / f"{step}.damaged")
            (checkpoints / str(step)).rename(renamed)
            _logger.warning(
                "The checkpoint of step %d is damaged (%s): resuming from step %d, the latest intact one."
                " The damaged files were moved to %s.",
                step,
                damage,
                steps[-1],
                renamed,
            )


def require_intact(checkpoints: Path, step: int) -> None:
    """Raises CheckpointDamaged if the checkpoint of a step is damaged; call it in every process."""
    with sync_errors():
        if is_primary() and (damage := _damage(checkpoints, step)):
            raise CheckpointDamaged(
                f"The checkpoint of step {step} in {checkpoints} is damaged ({damage}): restore it from"
                " a copy, or train again in another --workdir."
            )


def warn_if_damaged(checkpoints: Path, best_step: int) -> None:
    """Warns at the start if the best checkpoint is damaged, which is an error at the end of training."""
    if is_primary() and (damage := _damage(checkpoints, best_step)):
        _logger.warning(
            "The checkpoint of step %d, the best so far, is damaged (%s): unless a later step is"
            " better, this run will have no result.",
            best_step,
            damage,
        )


def _damage(checkpoints: Path, step: int) -> str | None:
    """Returns a description of a checkpoint's damage; None if it is intact."""
    folder = checkpoints / str(step)
    file = folder / HASHES
    if not folder.is_dir():
        return f"{folder} is missing"
    try:
        for name, expected in read_json(file)["sha256"].items():
            file = folder / name
            if sha256_of(file) != expected:
                return f"{file} is corrupt"
    except FileNotFoundError:
        return f"{file} is missing"
    except OSError as error:  # the file cannot be read
        return f"{file} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{file} is corrupt"
    return None


def saved_steps(checkpoints: Path) -> list[int]:
    """Returns the steps that have a checkpoint folder, in ascending order."""
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal())


def _unused(path: Path) -> Path:
    """Returns `path`, or the first of `path`.2, `path`.3 and so on that does not exist."""
    names = itertools.chain([path.name], (f"{path.name}.{i}" for i in itertools.count(2)))
    return next(free for name in names if not (free := path.with_name(name)).exists())
