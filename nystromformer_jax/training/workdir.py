"""The run folder: locked by one process, for one config and one result.

config.json  metrics.jsonl  speed.jsonl  events/  checkpoints/  result.json

`config.json` has the sections of the config, the environment of the first start, and the hashes of the data.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.attention.options import is_default
from nystromformer_jax.support.durable import read_json, read_record, write_json
from nystromformer_jax.training.environment import describe_environment
from nystromformer_jax.training.errors import (
    ConfigDiffers,
    DataGone,
    LossNotFinite,
    NotFinished,
    WorkdirBusy,
    writing_to,
)
from nystromformer_jax.training.hosts import is_primary, sync_errors
from nystromformer_jax.training.integrity import saved_steps

# Sections that identify a run. The sections mesh, checkpoint, log and eval may change when a run resumes.
IDENTITY = ("data", "model", "attention", "objective", "init", "optimizer", "train")
LOCK = ".lock"
CHANGED = "changed_under_the_run"  # among the hashes
DIVERGED = "diverged"  # value of "state" in `result.json` if the loss was not finite
# Keys of these sections that may change, too: where data and tokenizer are, and what changes results only by
# rounding. Runs of version 0.2.0 have train.cpu_accumulation.
MAY_CHANGE = {
    "data.dir",
    "data.train_file",
    "data.valid_file",
    "data.test_file",
    "data.tokenizer",
    "data.workers",
    "train.remat",
    "attention.implementation",
    "train.cpu_accumulation",
}
MAX_DIFFERENCES = 5  # number of differing keys that an error shows


class Workdir:
    """Opens `path` for a run of `config` and locks it; use it in a `with` statement.

    In a multi-process run only the primary process locks and writes; all processes must see the folder.
    With `read_only` nothing is locked or written, and the folder may be missing.

    Attributes:
      path: The folder.
      config_sha256: SHA-256 of the sections that identify the run.
      environment: Versions, device, processor and threads of this process.
      result: Content of `result.json` if the run is finished, else None.
      divergence: Content of `result.json` if the run diverged, else None.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, read_only: bool = False) -> None:
        """Locks the folder, compares configs, and writes `config.json` if the run is new.

        Raises:
          NotADirectoryError: `path` or one of its parents is a file.
          WorkdirBusy: Another process holds the lock.
          ConfigDiffers: The folder was created with a different config; the message shows up to five
            differences.
          CannotWrite: The disk is full or the folder is read-only.
          RemoteError: Another process of the run raised one of these errors.
        """
        config = json.loads(json.dumps(config))  # tuples become lists, as in config.json
        self.path = path.absolute()
        self.config_sha256 = config_sha256(config)
        self._read_only = read_only
        self._writes = is_primary() and not read_only
        self._lock: int | None = None
        self._is_new = self._makes_folder = False
        self._config = config
        try:
            self._primary_first(lambda: self._open(config))
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def _open(self, config: Mapping[str, Any]) -> None:
        _require_folder(self.path)
        if not self._read_only:
            self._makes_folder = not self.path.exists()
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                error.filename = str(self.path)  # mkdir names the parent that it cannot create
                raise
        if self._writes:
            self._lock = _lock(self.path)
        config_file = self.path / "config.json"
        self._is_new = not config_file.exists()
        self.environment = describe_environment(config)
        if not self._is_new:
            recorded = read_record(self.path)
            _require_same_config(self.path, recorded, config)
            self._config = _merge_configs(recorded, config)
            if self._writes:
                self._warn_of_changes(recorded.get("environment", {}))
        elif self._writes:
            self._config = {**config, "environment": self.environment}
            write_json(config_file, self._config)
        result_file = self.path / "result.json"
        result: dict[str, Any] | None = read_json(result_file) if result_file.exists() else None
        diverged = result is not None and result.get("state") == DIVERGED
        self.result = None if diverged else result
        self.divergence = result if diverged else None

    def __enter__(self) -> "Workdir":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # If an invalid command trained nothing, the run is removed, so that the corrected command can start.
        invalid = kind is not None and issubclass(kind, (ValueError, OSError, ImportError))
        if self._writes and self._is_new and invalid and not self._has_begun:
            with contextlib.suppress(OSError):  # the folder may be the cause of the error
                (self.path / "config.json").unlink(missing_ok=True)
                if self._makes_folder and [file.name for file in self.path.iterdir()] == [LOCK]:
                    (self.path / LOCK).unlink()
                    self.path.rmdir()
        if self._lock is not None:
            os.close(self._lock)  # releases the lock

    @property
    def _has_begun(self) -> bool:
        metrics = self.path / "metrics.jsonl"
        return self.has_checkpoints or (metrics.exists() and metrics.stat().st_size > 0)

    @property
    def has_checkpoints(self) -> bool:
        """True if there is a checkpoint to resume from."""
        return bool(saved_steps(self.checkpoints))

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    def require_data(self, sha256: str) -> None:
        """Records the hash of the data of a new run; compares it with the recorded hash when a run resumes.

        If a resumed run has other values of settings that may change, such as file locations or evaluation,
        `config.json` is rewritten with them.

        Raises:
          ConfigDiffers: The run was started on data with a different hash.
        """
        with sync_errors():
            if self._recorded(CHANGED):
                raise ConfigDiffers(
                    f"The data of {self.path} changed during the run, so it will have no result:"
                    " train again in another --workdir."
                )
        self.require_same("sha256", sha256, "data")
        with sync_errors():
            if not self._writes or self.result is not None or self.divergence is not None:
                return
            recorded = read_record(self.path)
            updated = {**self._config, "hashes": recorded["hashes"]}
            if recorded != updated:
                with writing_to(self.path):
                    write_json(self.path / "config.json", updated)

    def require_same(self, name: str, value: str, what: str) -> None:
        """Records `value` as the hash `name` of a new run; compares it when a run resumes.

        Raises:
          ConfigDiffers: Another value is recorded; `what` is the noun of the message, such as "data".
        """
        recorded = self.record(name, lambda: value)
        with sync_errors():
            if recorded != value:
                raise ConfigDiffers(
                    f"{self.path} contains a run with different {what}: {name} was {recorded[:12]}…, is"
                    f" now {value[:12]}…. Pass another --workdir for a new run, or the original {what}"
                    " for this run."
                )

    def record(self, name: str, make: Callable[[], str]) -> str:
        """Returns the recorded hash `name`, or `make()`, which is recorded for a new run."""

        def write() -> None:
            if self._recorded(name) is not None:
                return
            if not self._writes:  # the primary process has written it
                raise _not_shared(self.path / "config.json")
            self._write_hash(name, make())

        if not self._read_only:
            self._primary_first(write)
        recorded = self._recorded(name)
        return make() if recorded is None else recorded

    def _recorded(self, name: str) -> str | None:
        """Returns the hash `name` in `config.json`, or None if there is none."""
        has_record = (self.path / "config.json").exists()
        found = read_record(self.path).get("hashes", {}).get(name) if has_record else None
        return None if found is None else str(found)

    def _write_hash(self, name: str, value: object) -> None:
        record = read_record(self.path)
        hashes = {**record.get("hashes", {}), name: value}
        write_json(self.path / "config.json", {**record, "hashes": hashes})

    def _primary_first(self, act: Callable[[], None]) -> None:
        """Calls `act` in the primary process, which may write, then in all others, which only read."""
        for turn in (self._writes, not self._writes):
            with sync_errors():
                if turn:
                    with writing_to(self.path):
                        act()

    def require_result(self) -> dict[str, Any]:
        """Returns the result of a finished run.

        Raises:
          NotFinished: The run has no result yet.
          LossNotFinite: The run diverged.
        """
        if self.divergence is not None:
            raise LossNotFinite(
                f"The run diverged by step {self.divergence['step']}, so it has no parameters to evaluate:"
                " pass the --workdir of a run that finished."
            )
        if self.result is None:
            raise NotFinished(
                f"{self.path} contains no finished run (no result.json): train it first, with the"
                " command that started it."
            )
        return self.result

    def require_unchanged(self, check_data: Callable[[], object]) -> None:
        """Raises an error if the data changed during the run.

        `check_data` raises ValueError if the data changed, FileNotFoundError if data are missing.

        Raises:
          ConfigDiffers: The data changed, so the run cannot finish.
          DataGone: The data are missing.
        """
        with sync_errors():
            if not self._writes:
                return
            try:
                check_data()
            except FileNotFoundError as error:
                raise DataGone(
                    f"{self.path} has no result yet, because its data disappeared during the run:"
                    f" {error} Then run the same command to resume it."
                ) from error
            except ValueError as error:
                # It is unknown which data each step read, so no checkpoint can be used.
                with writing_to(self.path):
                    self._write_hash(CHANGED, True)
                raise ConfigDiffers(
                    f"The data of {self.path} changed during the run, so it has no result:"
                    f" {error} Then train again in another --workdir."
                ) from error

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes `result.json`, which marks the run as finished."""
        self._write_result(result)
        self.result = dict(result)

    def write_divergence(self, step: int, reason: str) -> None:
        """Writes a `result.json` that records the divergence of the run at `step`, with the `reason`."""
        self.divergence = {
            "state": DIVERGED,
            "step": step,
            "reason": reason,
            "data_sha256": self._recorded("sha256"),
            **self.environment,
            "config_sha256": self.config_sha256,
        }
        self._write_result(self.divergence)

    def _write_result(self, result: Mapping[str, Any]) -> None:
        with sync_errors():
            if self._writes:
                with writing_to(self.path):
                    write_json(self.path / "result.json", result)

    def _warn_of_changes(self, environment: Mapping[str, Any]) -> None:
        """Warns if the numbers may differ from those of the `environment` in which the run was started."""
        then = _flat(environment)
        changes = [
            f"{key} was {then.get(key)!r}, is {value!r}"
            for key, value in _flat(self.environment).items()
            if then.get(key, value) != value  # runs of earlier versions lack some keys
        ]
        if changes:
            logging.getLogger(__name__).warning(
                "%s was started in another environment, so its numbers may differ%s: %s.",
                self.path,
                ""
                if any(key.startswith(("numerics.", "code.")) for key in changes)
                else " in their last bits",
                "; ".join(changes),
            )


def config_sha256(config: Mapping[str, Any]) -> str:
    """Returns the hash that identifies a run: SHA-256 of the sections `IDENTITY` without `MAY_CHANGE`."""
    identity = json.dumps(_identity(config), sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def _not_shared(file: Path) -> ValueError:
    return ValueError(
        f"{file} was written by the first process of the run, but is missing here: pass a --workdir on a file"
        " system that all hosts share."
    )


def _require_folder(path: Path) -> None:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise NotADirectoryError(
            f"--workdir must be a folder, but {existing} is a file: pass another --workdir."
        )


def _lock(path: Path) -> int:
    """Locks the folder; the operating system releases the lock when the process ends or is killed."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise WorkdirBusy(
            f"{path} is in use by another process (pid {owner}):"
            " wait for it to end, or pass another --workdir."
        ) from None
    # A process with an invalid command may have removed the folder between the two calls.
    if not os.fstat(lock).st_nlink:
        os.close(lock)
        path.mkdir(parents=True, exist_ok=True)
        return _lock(path)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _require_same_config(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    before, now = _identity(old), _identity(new)
    # A train.accumulation of 0 is chosen by device. A key that the run does not have is ignored if its value
    # is now the one that the run was trained with.
    differences = [
        f"{key}: {_format_value(before, key)} in the run, {_format_value(now, key)} now"
        for key in sorted(before.keys() | now.keys())
        if _format_value(before, key) != _format_value(now, key)
        and not (key == "train.accumulation" and 0 in (before.get(key), now.get(key)))
        and (key in before or not is_default(key, now[key]))
    ]
    if differences:
        if more := differences[MAX_DIFFERENCES:]:
            differ = "key differs" if len(more) == 1 else "keys differ"
            differences = [*differences[:MAX_DIFFERENCES], f"{len(more)} more {differ}"]
        raise ConfigDiffers(
            f"{path} contains a run with a different config. {'. '.join(differences)}."
            " Pass another --workdir for a new run, or the run's own values to resume it."
        )


def _merge_configs(recorded: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recorded config of a run, with the values of `config` that may change when it resumes."""
    own = {name: recorded[name] for name in IDENTITY if name in recorded}
    updated = {**recorded, **config, **own}
    for key in MAY_CHANGE:
        section, _, name = key.partition(".")
        if section in own and name in config.get(section, {}):
            updated[section] = {**updated[section], name: config[section][name]}
    return updated


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections `IDENTITY` as {dotted key: value}, without the keys `MAY_CHANGE`."""
    sections = {name: config[name] for name in IDENTITY if name in config}
    return {key: value for key, value in _flat(sections).items() if key not in MAY_CHANGE}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _format_value(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "absent"
