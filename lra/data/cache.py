"""Data prepared once, atomically, into hashed files under `$NYSTROMFORMER_JAX_CACHE`.

A prepared folder is either whole or not there: it is built beside its place under a file lock,
written through to the disk and renamed. Every later opening checks the hash of every file.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MANIFEST = "manifest.json"

_CANNOT_WRITE = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,  # the cache's own path is a file
    errno.EFBIG,
    errno.ENOLCK,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A folder of checked files, and one hash over the hashes of them all."""

    folder: Path
    sha256: str


def cache_dir() -> Path:
    """`$NYSTROMFORMER_JAX_CACHE`, or `~/.cache/nystromformer_jax` where that is not set."""
    return Path(
        os.environ.get("NYSTROMFORMER_JAX_CACHE") or "~/.cache/nystromformer_jax"
    ).expanduser()


def folder_of(name: str, fingerprint: Mapping[str, Any]) -> Path:
    """The folder of the data that `fingerprint` describes, whether or not it is there."""
    digest = hashlib.sha256(_canonical(fingerprint).encode()).hexdigest()
    return cache_dir() / "data" / f"{name}-{digest[:12]}"


def prepared(name: str, fingerprint: Mapping[str, Any], build: Callable[[Path], None]) -> Prepared:
    """Opens the data that `fingerprint` describes, building them first where they are missing.

    Args:
      name: the readable part of the folder's name.
      fingerprint: everything that the data depend on, as JSON values.
      build: writes the files into the (existing, empty) folder that it is given. At most one
        process builds at a time; the others wait and find the result.

    Raises:
      ValueError, FileNotFoundError: a prepared file is changed or missing.
      OSError: the folder cannot be written, or the disk is full. Nothing is left behind.
    """
    folder = folder_of(name, fingerprint)
    if not folder.exists():  # once it is there, it can be read where nothing can be written
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f"{folder.name}.lock")):
                if not folder.exists():
                    _build(folder, fingerprint, build)
        except OSError as error:
            if error.errno not in _CANNOT_WRITE:
                raise
            raise OSError(
                error.errno,
                f"Preparing {name} needs to write into {folder.parent}, and that failed"
                f" ({error.strerror}). Free some space there, or set NYSTROMFORMER_JAX_CACHE to"
                " another folder.",
            ) from error
    return Prepared(folder, _verify(folder, fingerprint))


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Writes `array` as .npy and waits until the disk has it.

    Differs from np.save: a full disk is an OSError that says so; `ndarray.tofile` loses the reason.
    """
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)
        file.flush()
        os.fsync(file.fileno())


def open_array(path: Path) -> npt.NDArray[Any]:
    """Maps a .npy file, read only. No pickles."""
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    # A plain array over the same memory: slicing np.memmap is several times slower.
    return np.asarray(mapped)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(folder: Path, fingerprint: Mapping[str, Any], build: Callable[[Path], None]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():  # of a run that was killed: we hold the lock, so nobody is at work on it
        shutil.rmtree(partial)
    try:
        partial.mkdir()
        build(partial)
        files = {
            path.name: {"sha256": sha256_of(path), "bytes": path.stat().st_size}
            for path in sorted(partial.iterdir())
        }
        manifest = {"fingerprint": fingerprint, "files": files}
        with (partial / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2, sort_keys=True)
        for path in (*partial.iterdir(), partial):
            _fsync(path)
        partial.rename(folder)
        _fsync(folder.parent)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _verify(folder: Path, fingerprint: Mapping[str, Any]) -> str:
    """Checks every file against the manifest; returns one hash over all of their hashes."""
    advice = f"Delete the folder {folder} to prepare it anew."
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {name: entry["sha256"] for name, entry in sorted(manifest["files"].items())}
        known = manifest["fingerprint"]
    except FileNotFoundError:
        raise FileNotFoundError(f"Prepared data lack their {MANIFEST}. {advice}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{MANIFEST} of the prepared data is damaged. {advice}") from None
    if _canonical(known) != _canonical(fingerprint):
        raise ValueError(f"{MANIFEST} describes other data than those asked for. {advice}")
    for name, sha256 in files.items():
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"Prepared data lack the file {path}. {advice}")
        if sha256_of(path) != sha256:
            raise ValueError(
                f"{path} is not what was prepared: its SHA-256 differs from {MANIFEST}. {advice}"
            )
    return hashlib.sha256(_canonical(files).encode()).hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a file lock; the system releases it when the process ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _logger.info("Waiting for another process that prepares %s", path.with_suffix(""))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
