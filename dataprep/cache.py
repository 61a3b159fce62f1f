"""Cache of prepared data: written once, atomically, to hashed files under `$NYSTROMFORMER_JAX_CACHE`.

A prepared folder is either complete or absent: it is built under a temporary name while holding a
file lock, synced to disk and renamed. Opening a folder verifies the hashes of its files, except for
files larger than `ALWAYS_HASHED_BYTES` whose size and modification time are unchanged; `check`
verifies all hashes. A long build can store finished pieces in `pieces_of(folder)` and resume from them.
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

from nystromformer_jax.support.durable import CANNOT_WRITE, sha256_of, sync

MANIFEST = "manifest.json"
ALWAYS_HASHED_BYTES = 2**28  # hashing this size takes a third of a second

# The last four are errors of a path of the cache that cannot be a folder.
_CANNOT_WRITE = CANNOT_WRITE | {
    errno.ENOLCK,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A folder of verified files, with a hash over the hashes of all files."""

    folder: Path
    sha256: str


def cache_dir() -> Path:
    """Returns `$NYSTROMFORMER_JAX_CACHE`, or `~/.cache/nystromformer_jax` if it is not set."""
    return user_path(os.environ.get("NYSTROMFORMER_JAX_CACHE") or "~/.cache/nystromformer_jax")


def user_path(text: str) -> Path:
    """Converts text to a path, with `~` expanded.

    Raises:
      ValueError: The user after `~` does not exist, or has no home folder.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(
            f"{text} cannot be expanded, because this user does not exist: write the full path, for the"
            " cache of prepared data in the environment variable NYSTROMFORMER_JAX_CACHE."
        ) from None


def folder_of(name: str, fingerprint: Mapping[str, Any]) -> Path:
    """Returns the folder for data with this fingerprint; it need not exist."""
    digest = hashlib.sha256(_canonical(fingerprint).encode()).hexdigest()
    return cache_dir() / "data" / f"{name}-{digest[:12]}"


def pieces_of(folder: Path) -> Path:
    """Returns the folder in which a build of `folder` can store finished pieces; the build creates it.

    The pieces are kept if the build is interrupted by Ctrl-C, a signal or the death of a process. They are
    deleted when the data are complete, and if the build fails because of invalid data or a full disk.
    """
    return folder.with_name(f"{folder.name}.pieces")


def prepared(
    name: str,
    fingerprint: Mapping[str, Any],
    build: Callable[[Path], None],
    description: str = "",
) -> Prepared:
    """Opens the prepared data with this fingerprint; builds them if they are missing.

    The name of the folder begins with `name`. `fingerprint` has everything that the data depend on, as JSON
    values. `build` writes the files to an empty folder. One process builds while others wait. `description`
    is logged when the data are built.

    Raises:
      ValueError, FileNotFoundError: A prepared file is modified or missing.
      OSError: The folder cannot be written, or the disk is full. No files are left.
      Any exception of `build`: No files are left except in `pieces_of(folder)`.
    """
    folder = folder_of(name, fingerprint)
    try:
        if not folder.exists():  # opening an existing folder needs no write permission
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _locked(folder.with_name(f"{folder.name}.lock")):
                if not folder.exists():
                    if description:
                        _logger.info("Preparing %s; will be saved to %s", description, folder)
                    _build(folder, fingerprint, build)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise OSError(
            error.errno,
            f"Preparing {name} needs to write to {folder.parent}, but writing failed"
            f" ({error.strerror}). Free some space, make the folder writable, or set"
            " NYSTROMFORMER_JAX_CACHE to another folder.",
        ) from error
    return Prepared(folder, _verify(folder, fingerprint))


def check(folder: Path) -> int:
    """Verifies the hashes of all files of a prepared folder; returns their total size in bytes.

    Raises:
      ValueError, FileNotFoundError: A prepared file is modified or missing.
    """
    manifest = _read_manifest(folder)
    _verify(folder, manifest["fingerprint"], always_hashed_bytes=sys.maxsize)
    return sum((folder / name).stat().st_size for name in manifest["files"])


def require_unchanged(folder: Path, sha256: str) -> None:
    """Raises ValueError or FileNotFoundError unless the hash of a prepared folder is `sha256`."""
    if _verify(folder, _read_manifest(folder)["fingerprint"]) != sha256:
        raise ValueError(f"The data in {folder} have changed since the folder was opened.")


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Writes `array` to an .npy file and syncs it to disk."""
    with array_file(path, array.shape, array.dtype) as append:
        append(array)


@contextlib.contextmanager
def array_file(
    path: Path, shape: Sequence[int], dtype: npt.DTypeLike
) -> Iterator[Callable[[npt.NDArray[Any]], None]]:
    """Opens a new .npy file of known shape; yields a function that appends arrays. Syncs to disk.

    Differs from np.save: on a full disk, the OSError has the reason, which `ndarray.tofile` omits.
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
        assert written == promised, f"{path.name} needs {promised} bytes, got {written}"
        file.flush()
        os.fsync(file.fileno())


def open_array(path: Path) -> npt.NDArray[Any]:
    """Memory-maps an .npy file as read-only; pickles are not allowed."""
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    # A view as np.ndarray, because slicing np.memmap is several times slower.
    return np.asarray(mapped)


def require_rows(indices: npt.NDArray[np.integer], count: int) -> None:
    """Raises IndexError unless all indices are between 0 and `count` - 1."""
    if len(indices) and not (indices.min() >= 0 and indices.max() < count):
        raise IndexError(
            f"This split has rows 0 to {count - 1}; got rows {indices.min()} to {indices.max()}."
        )


def _build(folder: Path, fingerprint: Mapping[str, Any], build: Callable[[Path], None]) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():  # left by a killed process; unused, because this process holds the lock
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
            sync(path)
        partial.rename(folder)
        sync(folder.parent)
    except BaseException as error:  # includes KeyboardInterrupt
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, Exception) and not isinstance(error, ChildProcessError):
            shutil.rmtree(pieces_of(folder), ignore_errors=True)
        raise
    shutil.rmtree(pieces_of(folder), ignore_errors=True)


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for entry in manifest["files"].values():
            entry["sha256"]
        manifest["fingerprint"]
    except FileNotFoundError:
        raise FileNotFoundError(f"The prepared data lack {MANIFEST}.{_advice(folder)}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{MANIFEST} of the prepared data is corrupt.{_advice(folder)}") from None
    return manifest


def _verify(
    folder: Path, fingerprint: Mapping[str, Any], always_hashed_bytes: int = ALWAYS_HASHED_BYTES
) -> str:
    """Verifies all files against the manifest; returns a hash over the hashes of all files."""
    manifest = _read_manifest(folder)
    if _canonical(manifest["fingerprint"]) != _canonical(fingerprint):
        raise ValueError(f"{MANIFEST} does not match the requested data.{_advice(folder)}")
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise FileNotFoundError(f"The prepared data lack the file {path}.{_advice(folder)}")
        stat = path.stat()
        expected = entry.get("bytes"), entry.get("written_ns")
        if (stat.st_size, stat.st_mtime_ns) == expected and stat.st_size > always_hashed_bytes:
            continue
        if sha256_of(path) != entry["sha256"]:
            raise ValueError(
                f"{path} was modified: its SHA-256 differs from {MANIFEST}.{_advice(folder)}"
            )
    hashes = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    return hashlib.sha256(_canonical(hashes).encode()).hexdigest()


def _advice(folder: Path) -> str:
    return f" Delete the folder {folder} to prepare the data again."


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds a file lock, which the operating system releases when the process ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _logger.info("Waiting for another process to prepare %s.", path.with_suffix(""))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
