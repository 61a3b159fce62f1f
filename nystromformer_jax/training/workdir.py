"""A run's folder: one process, one config, one result.

config.json  data.json  environment.json  metrics.jsonl  speed.jsonl  events/  checkpoints/  result.json
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.durable import read_json, write_json
from nystromformer_jax.training.environment import describe_environment
from nystromformer_jax.training.hosts import agreed, is_first
from nystromformer_jax.training.writing import writing_to

__all__ = [
    "ConfigDiffers",
    "DataGone",
    "NotFinished",
    "Workdir",
    "WorkdirBusy",
    "config_sha256",
]

# What makes two runs the same run. mesh, checkpoint, log and eval may change on the way.
IDENTITY = ("data", "model", "attention", "objective", "init", "optimizer", "train")
PATHS = ("data.dir",)
CHANGED = "changed_under_the_run"  # in data.json
HOW = ("train.remat",)  # how a run is computed, which changes no number beyond rounding


class ConfigDiffers(ValueError):
    """The folder holds a run of another config."""


class DataGone(FileNotFoundError):
    """A run's data are gone before its end; where they are back, the same command goes on."""


class NotFinished(ValueError):
    """A run without a result was asked for it."""


class WorkdirBusy(RuntimeError):
    """Another process works in the folder."""


class Workdir:
    """Opens `path` for a run of `config`, alone; use it in a `with` statement.

    In a run of several processes the first one alone takes the lock and writes; the folder must be one
    that all of them see.

    Attributes:
        path: The folder.
        config_sha256: Of the sections that make a run what it is.
        environment: Versions, device and threads of this process.
        result: A finished run's `result.json`, else None.
    """

    def __init__(
        self, path: Path, config: Mapping[str, Any], *, paths: Iterable[str] = PATHS
    ) -> None:
        """Takes the lock, compares configs, writes `config.json` if the run is new.

        Args:
            path: The folder, made if missing.
            config: Sections of plain values.
            paths: Dotted keys that only say where things lie; they may change.

        Raises:
            WorkdirBusy: another process has the lock.
            ConfigDiffers: the folder belongs to another config; one sentence per difference.
            CannotWrite: a full disk, or a read-only folder.
            ValueError: another process of the run says one of these.
        """
        config = json.loads(json.dumps(config))  # tuples become lists, as they will be read back
        self.path = path.absolute()
        self.config_sha256 = config_sha256(config, paths)
        self._writes = is_first()
        self._lock: int | None = None
        self._is_new = False
        try:
            self._each_in_turn(lambda: self._open(config, paths))
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def _open(self, config: Mapping[str, Any], paths: Iterable[str]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        if self._writes:
            self._lock = _lock(self.path)
        config_file = self.path / "config.json"
        self._is_new = not config_file.exists()
        if not self._is_new:
            _refuse_another(self.path, read_json(config_file), config, paths)
        elif self._writes:
            write_json(config_file, config)
        self.environment = self._check_environment()
        result_file = self.path / "result.json"
        self.result: dict[str, Any] | None = (
            read_json(result_file) if result_file.exists() else None
        )

    def __enter__(self) -> "Workdir":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # What was refused before anything was trained leaves no run, so that the corrected command has one.
        refused = kind is not None and issubclass(kind, (ValueError, OSError, ImportError))
        if self._writes and self._is_new and refused and not self._has_begun:
            with contextlib.suppress(OSError):  # the folder itself may be what fails
                for name in ("config.json", "data.json", "environment.json"):
                    (self.path / name).unlink(missing_ok=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # and with it the lock

    @property
    def _has_begun(self) -> bool:
        metrics = self.path / "metrics.jsonl"
        return self.has_checkpoints or (metrics.exists() and metrics.stat().st_size > 0)

    @property
    def has_checkpoints(self) -> bool:
        """Whether there is a state to go on from."""
        return self.checkpoints.is_dir() and any(
            folder.name.isdigit() for folder in self.checkpoints.iterdir()
        )

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    def require_data(self, sha256: str) -> None:
        """Binds a new run to its data, and refuses to go on with others.

        Raises:
            ConfigDiffers: the run was started on data of another hash.
            CannotWrite: a full disk, or a read-only folder.
            ValueError: another process of the run says one of these.
        """
        self._each_in_turn(lambda: self._require_data(sha256))

    def _each_in_turn(self, act: Callable[[], None]) -> None:
        """What the first process writes the others read after it."""
        for turn in (self._writes, not self._writes):
            with agreed():
                if turn:
                    with writing_to(self.path):
                        act()

    def _require_data(self, sha256: str) -> None:
        file = self.path / "data.json"
        if self._writes and not file.exists():
            write_json(file, {"sha256": sha256})
            return
        bound = read_json(file)
        if bound.get(CHANGED):
            raise ConfigDiffers(
                f"The data changed while {self.path} was trained on them, so it will have no result:"
                " train again in another --workdir."
            )
        if (known := str(bound.get("sha256"))) != sha256:
            raise ConfigDiffers(
                f"{self.path} holds a run on other data (sha256 {known[:12]}…,"
                f" {sha256[:12]}… now). Pass another --workdir for a new run, or the run's own data"
                " to go on with it."
            )

    def require_result(self) -> dict[str, Any]:
        """A finished run's result.

        Raises:
            NotFinished: there is none yet.
        """
        if self.result is None:
            raise NotFinished(
                f"{self.path} holds no finished run (no result.json): train it first, by the same"
                " command without --mode."
            )
        return self.result

    def require_unchanged(self, check_data: Callable[[], object]) -> None:
        """Refuses to make anything of a run whose data are not those that it opened.

        Args:
            check_data: Raises ValueError if they changed, FileNotFoundError if they are gone.

        Raises:
            ConfigDiffers: They changed; the run will never have a result.
            DataGone: They are not there.
        """
        with agreed():
            if self._writes:
                self._require_unchanged(check_data)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Writes `result.json`; the run is then finished.

        Raises:
            CannotWrite: a full disk, or a read-only folder.
        """
        with agreed():
            if self._writes:
                with writing_to(self.path):
                    write_json(self.path / "result.json", result)
        self.result = dict(result)

    def _require_unchanged(self, check_data: Callable[[], object]) -> None:
        try:
            check_data()
        except FileNotFoundError as error:
            raise DataGone(
                f"{self.path} has no result yet, because its data are gone before its end: {error}"
                " Then the same command goes on."
            ) from error
        except ValueError as error:
            # Nobody knows which steps read what, so that these checkpoints are of no data at all.
            with writing_to(self.path):
                write_json(self.path / "data.json", {CHANGED: True})
            raise ConfigDiffers(
                f"The data changed while {self.path} was trained on them, so it has no result: {error}"
                " Then train again in another --workdir."
            ) from error

    def _check_environment(self) -> dict[str, Any]:
        """Records the environment of a new run; warns where a resumed one's bits may differ."""
        now, file = describe_environment(), self.path / "environment.json"
        if not file.exists():
            if self._writes:
                write_json(file, now)
            return now
        then = _flat(read_json(file))
        changes = [
            f"{key} was {then.get(key)!r}, is {value!r}"
            for key, value in _flat(now).items()
            if then.get(key) != value
        ]
        if changes and self._writes:
            logging.getLogger(__name__).warning(
                "%s was started elsewhere, so its numbers may differ in their last bits: %s.",
                self.path,
                "; ".join(changes),
            )
        return now


def config_sha256(config: Mapping[str, Any], paths: Iterable[str] = PATHS) -> str:
    """The hash of what makes a run what it is: `IDENTITY`'s sections without `paths`."""
    identity = json.dumps(_identity(config, paths), sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def _lock(path: Path) -> int:
    """Takes the folder's lock; the system gives it back when the process ends, however it ends."""
    lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise WorkdirBusy(
            f"{path} is in use by another process (pid {owner}):"
            " wait for it to end, or pass another --workdir."
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _refuse_another(
    path: Path, old: Mapping[str, Any], new: Mapping[str, Any], paths: Iterable[str]
) -> None:
    before, now = _identity(old, paths), _identity(new, paths)
    differences = [
        f"{key}: {_shown(before, key)} in the run, {_shown(now, key)} now"
        for key in sorted(before.keys() | now.keys())
        if _shown(before, key) != _shown(now, key)
    ]
    if differences:
        raise ConfigDiffers(
            f"{path} holds a run of another config. {'. '.join(differences)}."
            " Pass another --workdir for a new run, or the run's own values to go on with it."
        )


def _identity(config: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The config's identity as {dotted key: value}."""
    sections = {name: config[name] for name in IDENTITY if name in config}
    left_out = {*paths, *HOW}
    return {key: value for key, value in _flat(sections).items() if key not in left_out}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key]) if key in values else "absent"
