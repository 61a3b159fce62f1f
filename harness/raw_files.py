"""The files that data come in: a folder, or the .tar.gz archive that would unpack to it."""

import contextlib
import dataclasses
import gzip
import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 2**32  # unpacked; the largest of the downloads has half a gigabyte


@dataclasses.dataclass(frozen=True)
class RawFiles:
    """The wanted files of a folder or an archive; an archive is read as a stream, never unpacked.

    Args:
      path: the folder or the archive.
      root: what the archive calls the folder.
      subfolders: where in the folder the files lie, each "" or ending in a slash.
      name: a pattern for whole names of wanted files; all others are passed over.
    """

    path: Path
    root: str
    subfolders: tuple[str, ...]
    name: str

    def stamp(self) -> Mapping[str, object]:
        """Changes when a file does, by name, size and time; no file is read for it."""
        with reading(self.path):
            if self.path.is_file():
                return stamp({self.path.name: self.path})
            return stamp(self._listing())

    def read(self) -> Iterator[tuple[str, bytes]]:
        """Yields the name below the folder, and the content, of every wanted file; in no order.

        Raises:
          ValueError: the archive is damaged, holds a file twice, or more than `MOST_BYTES`.
          OSError: a file cannot be read.
        """
        with reading(self.path):
            try:
                if self.path.is_file():
                    yield from self._unpacked()
                else:
                    for name, path in self._listing().items():
                        yield name, path.read_bytes()
            except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
                raise ValueError(
                    f"{self.path} is cut short or damaged ({error}): download it again."
                ) from None

    def _listing(self) -> dict[str, Path]:
        """Name below the folder to path, sorted."""
        listing = {}
        for subfolder in self.subfolders:
            if (self.path / subfolder).is_dir():
                for path in (self.path / subfolder).iterdir():
                    if re.fullmatch(self.name, path.name):
                        listing[f"{subfolder}{path.name}"] = path
        return dict(sorted(listing.items()))

    def _unpacked(self) -> Iterator[tuple[str, bytes]]:
        seen = set()
        with contextlib.ExitStack() as stack:
            stream: Any = _Bounded(self.path, stack.enter_context(gzip.open(self.path)))
            archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
            for member in archive:
                if member.size > MOST_BYTES:  # of zeros that the archive need not hold
                    raise _too_much(self.path)
                # Whatever stands before the root: "./", "/" or "../" lead nowhere from here.
                _, _, name = f"/{member.name}".rpartition(f"/{self.root}/")
                subfolder, slash, file_name = name.rpartition("/")
                if not (member.isfile() and re.fullmatch(self.name, file_name)):
                    continue
                if subfolder + slash not in self.subfolders:
                    continue
                if name in seen:
                    raise ValueError(f"{self.path} holds {name} twice: download it again.")
                seen.add(name)
                content = archive.extractfile(member)
                assert content is not None  # of a file
                yield name, content.read()
            while stream.read(1 << 20):  # to the checksum at the end
                pass


class _Bounded:
    """A stream that gives at most `MOST_BYTES`, to whoever asks: headers may be long, too."""

    def __init__(self, path: Path, stream: gzip.GzipFile) -> None:
        self._path, self._stream, self._given = path, stream, 0

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._given += len(piece)
        if self._given > MOST_BYTES:
            raise _too_much(self._path)
        return piece


def _too_much(path: Path) -> ValueError:
    return ValueError(
        f"{path} unpacks to more than {MOST_BYTES >> 20:,} MiB, which no download of this data does:"
        " download it again."
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Makes what the system says of a file that cannot be read a sentence about that file.

    It has no number, which a build's caller would take for that of a cache that cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{error.filename or path} cannot be read ({error.strerror}): give it read permission, or"
            " unpack the download again."
        ) from error


def stamp(files: Mapping[str, Path]) -> Mapping[str, object]:
    """One hash over the names, sizes and times of change of `files`."""
    digest = hashlib.sha256()
    for name, path in files.items():
        status = path.stat()
        digest.update(f"{name}\n{status.st_size} {status.st_mtime_ns}\n".encode())
    return {"files": len(files), "stamp": digest.hexdigest()}
