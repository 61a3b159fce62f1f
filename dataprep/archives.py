"""Reads raw data files from a folder or from its .tar.gz archive."""

import contextlib
import dataclasses
import gzip
import hashlib
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

MAX_BYTES = 2**32  # maximum unpacked size; the largest dataset has half a gigabyte


@dataclasses.dataclass(frozen=True)
class RawFiles:
    """Selected files of a folder or archive; archives are streamed, and never unpacked to disk."""

    path: Path  # the folder or the archive
    root: str  # name of the folder inside the archive
    subfolders: tuple[str, ...]  # subfolders to read, each "" or with a slash at the end
    name: str  # regular expression for names of files to read; other files are skipped

    @classmethod
    def find(
        cls,
        folder: Path,
        needs: str,
        url: str,
        root: str,
        subfolders: tuple[str, ...],
        name: str,
    ) -> Self:
        """Finds the folder `root`, or the archive that `url` downloads.

        `folder` contains the folder or the archive, or is itself one of them.

        Raises:
          FileNotFoundError: There is neither. The message begins with `needs`.
        """
        archive = url.rpartition("/")[2]
        if (folder / root).is_dir():
            return cls(folder / root, root, subfolders, name)
        here = cls(folder, root, subfolders, name)
        if folder.is_dir() and here._listing():
            return here
        for path in (folder / archive, folder):
            if path.name == archive and path.is_file():
                return cls(path, root, subfolders, name)
        raise FileNotFoundError(
            f"{needs}: neither {root} nor {archive} is in {folder}. Download {url} to that folder, and"
            " set --config.data.dir to it."
        )

    def stamp(self) -> Mapping[str, object]:
        """Returns a fingerprint of names, sizes and modification times, without reading the files."""
        with reading(self.path):
            if self.path.is_file():
                return stamp({self.path.name: self.path})
            return stamp(self._listing())

    def read(self) -> Iterator[tuple[str, bytes]]:
        """Yields the relative path and the content of each selected file, in arbitrary order.

        Raises:
          ValueError: The archive is corrupt, contains a file twice, or exceeds `MAX_BYTES`.
          OSError: A file cannot be read.
        """
        with reading(self.path):
            if self.path.is_file():
                yield from self._read_archive()
            else:
                for name, path in self._listing().items():
                    yield name, path.read_bytes()

    def _listing(self) -> dict[str, Path]:
        """Returns the paths of the selected files by relative path, sorted."""
        listing = {}
        for subfolder in self.subfolders:
            if (self.path / subfolder).is_dir():
                for path in (self.path / subfolder).iterdir():
                    if re.fullmatch(self.name, path.name):
                        listing[f"{subfolder}{path.name}"] = path
        return dict(sorted(listing.items()))

    def _read_archive(self) -> Iterator[tuple[str, bytes]]:
        names = set()
        with contextlib.ExitStack() as stack:
            stream: Any = _LimitedStream(self.path, stack.enter_context(gzip.open(self.path)))
            archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
            for member in archive:
                if member.size > MAX_BYTES:  # a sparse member can be larger than the archive
                    raise _too_large(self.path)
                # A prefix before the root, such as "./", "/" or "../", is ignored.
                _, _, name = f"/{member.name}".rpartition(f"/{self.root}/")
                subfolder, slash, file_name = name.rpartition("/")
                if not (member.isfile() and re.fullmatch(self.name, file_name)):
                    continue
                if subfolder + slash not in self.subfolders:
                    continue
                if name in names:
                    raise ValueError(f"{self.path} contains {name} twice: download it again.")
                names.add(name)
                content = archive.extractfile(member)
                assert content is not None  # because it is a regular file
                yield name, content.read()
            while stream.read(1 << 20):  # reads to the end, so that gzip verifies the checksum
                pass


class _LimitedStream:
    """Wraps a stream and limits its total size to `MAX_BYTES`, tar headers included."""

    def __init__(self, path: Path, stream: gzip.GzipFile) -> None:
        self._path, self._stream, self._total = path, stream, 0

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._total += len(block)
        if self._total > MAX_BYTES:
            raise _too_large(self._path)
        return block


def _too_large(path: Path) -> ValueError:
    return ValueError(
        f"{path} unpacks to more than {MAX_BYTES >> 20:,} MiB, more than any of the supported downloads:"
        " download it again."
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Converts errors of files and archives to sentences with their names.

    An OSError loses its errno, which `cache.prepared` would misinterpret. Those of this package have none
    and are not changed.
    """
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise ValueError(f"{path} is truncated or corrupt ({error}): download it again.") from None
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(
            f"{error.filename or path} cannot be read ({error.strerror}): give it read permission, or"
            " unpack the download again."
        ) from error


def stamp(files: Mapping[str, Path]) -> Mapping[str, object]:
    """Returns the number of files and a hash over names, sizes and modification times."""
    digest = hashlib.sha256()
    for name, path in files.items():
        status = path.stat()
        digest.update(f"{name}\n{status.st_size} {status.st_mtime_ns}\n".encode())
    return {"files": len(files), "stamp": digest.hexdigest()}


def parse_json(text: str, where: str, advice: str) -> Any:
    """Returns the value of a JSON text.

    Raises:
      ValueError: The text is not JSON, is nested too deeply, or contains an unpaired surrogate.
    """
    try:
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}): {advice}.") from None
    return value


def decode(content: bytes, where: str, advice: str = "", *, at: int = 0) -> str:
    """Decodes UTF-8 text; raises ValueError at an invalid byte.

    The message begins with `where`, ends with `advice`, and has the position of the byte in the file;
    `content` starts at position `at`.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        position, byte = at + error.start + 1, content[error.start]
        message = f"{where} is not UTF-8 text: byte {position} is 0x{byte:02x}. {advice}"
        raise ValueError(message.rstrip()) from None


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file without its byte-order mark; raises errors that name the file.

    In a file without newlines, carriage returns end the lines, and are returned as newlines.
    """
    with reading(path):
        content = path.read_bytes()
    text = decode(content.removeprefix(b"\xef\xbb\xbf"), str(path), "Convert it to UTF-8.")
    return text if "\n" in text else text.replace("\r", "\n")
