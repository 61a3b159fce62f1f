"""Data prepared once, atomically, into hashed files under `$NYSTROMFORMER_JAX_CACHE`.

A prepared folder is either whole or not there: it is built beside its place under a file lock,
written through to the disk and renamed. Every later opening checks the hash of every file, but of
those larger than `ALWAYS_HASHED_BYTES` that still have the size and the time they were written with;
`check` hashes these too. A long build may keep finished pieces in `pieces_of` its folder, and go on
from them after it was stopped.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.whole_files import fsync

MANIFEST = "manifest.json"
ALWAYS_HASHED_BYTES = 2**28  # a third of a second

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
    return user_path(os.environ.get("NYSTROMFORMER_JAX_CACHE") or "~/.cache/nystromformer_jax")


def user_path(text: str) -> Path:
    """A path as people write it, `~` for their home.

    Raises:
      ValueError: nobody has that home.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(
            f"{text} cannot be found, because there is no such user: write the whole path."
        ) from None


def folder_of(name: str, fingerprint: Mapping[str, Any]) -> Path:
    """The folder of the data that `fingerprint` describes, whether or not it is there."""
    digest = hashlib.sha256(_canonical(fingerprint).encode()).hexdigest()
    return cache_dir() / "data" / f"{name}-{digest[:12]}"


def pieces_of(folder: Path) -> Path:
    """Where a build of `folder` may keep finished pieces; it makes this folder itself.

    They outlive a build that was stopped, by Ctrl-C, a signal or the death of a process. They go when
    the data are there, and with a build that cannot be finished: wrong data, a full disk.
    """
    return folder.with_name(f"{folder.name}.pieces")


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
      Anything that stops `build`: nothing is left behind but what it has in `pieces_of`.
    """
    folder = folder_of(name, fingerprint)
    if not folder.exists():  # once it is there, it can be read where nothing can be written
        try:
            _make_folder(folder.parent)
            with _locked(folder.with_name(f"{folder.name}.lock")):
                if not folder.exists():
                    _build(folder, fingerprint, build)
        except OSError as error:
            if error.errno not in _CANNOT_WRITE:
                raise
            raise OSError(
                error.errno,
                f"Preparing {name} needs to write into {folder.parent}, and that failed"
                f" ({error.strerror}). Make it a folder with space that you may write to, or set"
                " NYSTROMFORMER_JAX_CACHE to another one.",
            ) from error
    return Prepared(folder, _verify(folder, fingerprint))


def check(folder: Path) -> int:
    """Reads all of a prepared folder against its hashes; returns how many bytes these are.

    Raises:
      ValueError, FileNotFoundError: a prepared file is changed or missing.
    """
    manifest = _read_manifest(folder)
    _verify(folder, manifest["fingerprint"], always_hashed_bytes=sys.maxsize)
    return sum((folder / name).stat().st_size for name in manifest["files"])


def require_unchanged(folder: Path, sha256: str) -> None:
    """Checks a prepared folder again as at its opening, for whoever has read it for long.

    Args:
      folder: As it was opened.
      sha256: Of all of it, as it was then.

    Raises:
      ValueError, FileNotFoundError: a prepared file is changed or missing.
    """
    if _verify(folder, _read_manifest(folder)["fingerprint"]) != sha256:
        raise ValueError(f"{folder} holds other data than when it was opened.")


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Writes `array` as .npy and waits until the disk has it."""
    with array_file(path, array.shape, array.dtype) as append:
        append(array)


@contextlib.contextmanager
def array_file(
    path: Path, shape: Sequence[int], dtype: npt.DTypeLike
) -> Iterator[Callable[[npt.NDArray[Any]], None]]:
    """Gives a function that appends pieces to an .npy of this shape; waits until the disk has them.

    Differs from np.save: a full disk is an OSError that says so; `ndarray.tofile` loses the reason.
    """
    dtype = np.dtype(dtype)
    with path.open("wb") as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": tuple(shape),
        }
        np.lib.format.write_array_header_1_0(file, header)
        written = 0

        def append(piece: npt.NDArray[Any]) -> None:
            nonlocal written
            assert piece.dtype == dtype, f"{path.name} holds {dtype}, not {piece.dtype}"
            written += file.write(np.ascontiguousarray(piece).data)

        yield append
        promised = math.prod(shape) * dtype.itemsize
        assert written == promised, f"{path.name} needs {promised} bytes, but got {written}"
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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # whatever the reason, such as a name that is too long
        raise OSError(errno.ENOTDIR, error.strerror) from error


def _build(folder: Path, fingerprint: Mapping[str, Any], build: Callable[[Path], None]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():  # of a run that was killed: we hold the lock, so nobody is at work on it
        shutil.rmtree(partial)
    try:
        partial.mkdir()
        build(partial)
        files = {
            path.name: {
                "sha256": sha256_of(path),
                "bytes": path.stat().st_size,
                "written_ns": path.stat().st_mtime_ns,
            }
            for path in sorted(partial.iterdir())
        }
        manifest = {"fingerprint": fingerprint, "files": files}
        with (partial / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=2, sort_keys=True)
        for path in (*partial.iterdir(), partial):
            fsync(path)
        partial.rename(folder)
        fsync(folder.parent)
    except BaseException as error:  # Ctrl-C too
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, Exception) and not isinstance(error, ChildProcessError):
            shutil.rmtree(pieces_of(folder), ignore_errors=True)
        raise
    shutil.rmtree(pieces_of(folder), ignore_errors=True)


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for entry in manifest["files"].values():
            entry["sha256"]  # one that lacks it is damaged, too
        manifest["fingerprint"]
    except FileNotFoundError:
        raise FileNotFoundError(f"Prepared data lack their {MANIFEST}.{_advice(folder)}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{MANIFEST} of the prepared data is damaged.{_advice(folder)}") from None
    return manifest


def _verify(
    folder: Path,
    fingerprint: Mapping[str, Any],
    always_hashed_bytes: int = ALWAYS_HASHED_BYTES,
) -> str:
    """Checks every file against the manifest; returns one hash over all of their hashes."""
    manifest = _read_manifest(folder)
    if _canonical(manifest["fingerprint"]) != _canonical(fingerprint):
        raise ValueError(f"{MANIFEST} describes other data than those asked for.{_advice(folder)}")
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"Prepared data lack the file {path}.{_advice(folder)}")
        stat = path.stat()
        untouched = (stat.st_size, stat.st_mtime_ns) == (
            entry.get("bytes"),
            entry.get("written_ns"),
        )
        if untouched and stat.st_size > always_hashed_bytes:
            continue
        if sha256_of(path) != entry["sha256"]:
            raise ValueError(
                f"{path} is not what was prepared: its SHA-256 differs from {MANIFEST}."
                f"{_advice(folder)}"
            )
    hashes = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    return hashlib.sha256(_canonical(hashes).encode()).hexdigest()


def _advice(folder: Path) -> str:
    return f" Delete the folder {folder} to prepare it anew."


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


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
