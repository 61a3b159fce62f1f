"""Where a corpus comes from: text files, JSON lines, or a data set of tensorflow-datasets.

A source is read in numbered pieces of a few megabytes, in any order and by several processes; one
piece after the other gives every document once, in order. Only one document is held at a time.
"""

import dataclasses
import functools
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Protocol, cast

from harness import raw_files
from harness.tfds_reader import PreparedByTfds

PIECE_BYTES = 2**23
EXAMPLES_A_PIECE = 4_000
LONGEST_DOCUMENT = 2**26  # bytes

BOM = b"\xef\xbb\xbf"  # some systems begin files with it

# `= Title =` begins a document; `= = Section = =`, with two marks or more, stands inside it.
TITLE = re.compile(rb"\s*= (?!=)(?:.*[^=\s])? =\s*")
_SECTION_MARKS = (b"==", b"= =")

# Whether a line ends the document before it, given the line that follows. A heading or a "line" begins
# the next one, too. WikiText has empty lines below its headings, and broken formulas that look like them.
_BORDERS: dict[str, Callable[[bytes, bytes], object]] = {
    "blank_line": lambda line, following: not line.strip(),
    "heading": lambda line, following: TITLE.fullmatch(line),
    "spaced_heading": lambda line, following: TITLE.fullmatch(line) and not following.strip(),
    "line": lambda line, following: True,
    "file": lambda line, following: False,
}


class Source(Protocol):
    """A corpus as numbered pieces."""

    @property
    def num_pieces(self) -> int:
        """Pieces are 0 to `num_pieces` - 1."""

    def stamp(self) -> Mapping[str, object]:
        """Changes when the corpus, or how it is divided into documents, does; nothing is read."""

    def read(self, piece: int) -> Iterator[str]:
        """Yields the documents that begin in a piece, as lines without white space around them.

        Raises:
          ValueError: what is there is no UTF-8 text, no JSON line, or damaged.
          OSError: a file cannot be read.
        """


@dataclasses.dataclass(frozen=True)
class Section:
    """A file, or the documents of it that begin from byte `start` on and before `stop`."""

    path: Path
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """Text files, or JSON lines.

    Args:
      pieces: what each consists of.
      files: name below the folder to path.
      documents: what tells documents apart: "blank_line", "heading", "spaced_heading" where every
        heading has an empty line below it, "file" or "line".
      is_json: every line is a JSON object with its document under `text`.
    """

    pieces: tuple[tuple[Section, ...], ...]
    files: Mapping[str, Path]
    documents: str
    is_json: bool

    @classmethod
    def of(cls, files: Mapping[str, Path], documents: str, *, is_json: bool) -> "TextFiles":
        """Divides the files into pieces of about `PIECE_BYTES`."""
        pieces: list[list[Section]] = []
        room = 0
        for section in _sections(files, whole=documents == "file"):
            if room <= 0:
                pieces.append([])
                room = PIECE_BYTES
            pieces[-1].append(section)
            room -= section.stop - section.start
        return cls(tuple(map(tuple, pieces)), files, documents, is_json)

    @property
    def num_pieces(self) -> int:
        """See `Source`."""
        return len(self.pieces)

    def stamp(self) -> Mapping[str, object]:
        """See `Source`."""
        kind = "json lines" if self.is_json else "text"
        return {"kind": kind, "documents": self.documents, **raw_files.stamp(self.files)}

    def read(self, piece: int) -> Iterator[str]:
        """See `Source`."""
        for section in self.pieces[piece]:
            try:
                yield from self._documents(section)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{section.path} is cut short or damaged ({error}): download it again."
                ) from None
            except OSError as error:  # without its number, which would read as the cache's own
                raise OSError(f"{section.path} cannot be read ({error.strerror}).") from error

    def _documents(self, section: Section) -> Iterator[str]:
        for lines in _raw_documents(section, self.documents):
            content = _decoded(section.path, lines)
            if self.is_json and content.strip():
                content = _text_of(content, section.path, byte=lines[0][0] + 1)
            if document := _tidy(content):
                yield document


@dataclasses.dataclass(frozen=True)
class TfdsTexts:
    """The `text` of every example of the split `train`."""

    reader: PreparedByTfds

    @functools.cached_property
    def num_examples(self) -> int:
        """Only asked for when there is something to prepare: tfds takes seconds to import."""
        return self.reader.num_examples("train")

    @property
    def num_pieces(self) -> int:
        """See `Source`."""
        return -(-self.num_examples // EXAMPLES_A_PIECE)

    def stamp(self) -> Mapping[str, object]:
        """See `Source`."""
        return {"kind": "tfds", "documents": "line", **self.reader.stamp()}

    def read(self, piece: int) -> Iterator[str]:
        """See `Source`."""
        start = piece * EXAMPLES_A_PIECE
        rows = range(start, min(start + EXAMPLES_A_PIECE, self.num_examples))
        for row, example in zip(rows, self.reader.examples("train", ("text",), rows), strict=True):
            where = f"Example {row} of {self.reader.path}"
            if not isinstance(example["text"], bytes):
                raise ValueError(f"{where} has no string as its text.")
            try:
                content = example["text"].decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{where} is not UTF-8 text: byte {error.start + 1} of it is"
                    f" 0x{error.object[error.start]:02x}."
                ) from None
            if document := _tidy(content):
                yield document


def _sections(files: Mapping[str, Path], *, whole: bool) -> Iterator[Section]:
    for path in files.values():
        size = path.stat().st_size
        # A place inside a compressed file is only found by reading all before it.
        step = size if whole or path.suffix == ".gz" else PIECE_BYTES
        for start in range(0, size, max(step, 1)):
            yield Section(path, start, min(start + step, size))


def open_bytes(path: Path) -> IO[bytes]:
    """A file as it would be without compression."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _raw_documents(section: Section, documents: str) -> Iterator[list[tuple[int, bytes]]]:
    """Yields the lines of every document of a section, each with its place in the file.

    A document belongs to the section in which the border before it begins, so that neighbours
    agree; the first one of a file belongs to its first section.
    """
    is_border = _BORDERS[documents]
    with open_bytes(section.path) as file:
        stop = section.stop if section.path.suffix != ".gz" else float("inf")
        at = 0
        if section.start:
            file.seek(section.start - 1)
            at = section.start - 1 + len(file.readline(LONGEST_DOCUMENT))
        inside = not section.start
        document: list[tuple[int, bytes]] = []
        size = 0
        following = file.readline(LONGEST_DOCUMENT)
        while line := following:
            following = file.readline(LONGEST_DOCUMENT)
            if is_border(line, following):
                if document:
                    yield document
                document, size = [], 0
                if at >= stop:
                    return
                inside = True
            elif at >= stop and not inside:
                return
            if inside and line.strip() and not _is_heading(line, following, documents):
                document.append((at, line.removeprefix(BOM) if at == 0 else line))
                size += len(line)
                if size >= LONGEST_DOCUMENT:
                    raise ValueError(
                        f"{section.path} has a document of more than {LONGEST_DOCUMENT >> 20} MiB, from"
                        f" byte {document[0][0] + 1} on, with data.documents={documents}: are documents"
                        " told apart in another way?"
                    )
            at += len(line)
        if document:
            yield document


def _is_heading(line: bytes, following: bytes, documents: str) -> bool:
    """Whether a line is a title or a section's heading, and so no text."""
    if not documents.endswith("heading"):
        return False
    line = line.strip()
    is_section = line.startswith(_SECTION_MARKS) and line.endswith(_SECTION_MARKS)
    return is_section or bool(_BORDERS[documents](line, following))


def _decoded(path: Path, lines: list[tuple[int, bytes]]) -> str:
    try:
        return b"".join(line for _, line in lines).decode()
    except UnicodeDecodeError:
        for at, line in lines:
            try:
                line.decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{path} is not UTF-8 text: byte {at + error.start + 1} is"
                    f" 0x{line[error.start]:02x}. Convert it, or take it out."
                ) from None
        raise


def _text_of(line: str, path: Path, *, byte: int) -> str:
    """The document of a JSON line."""
    try:
        text = json.loads(line)["text"]
        if not isinstance(text, str):
            raise TypeError
        text.encode()  # refuses half of a surrogate pair
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(
            f'{path} needs a JSON object with a string under "text" in every line; the one from byte'
            f" {byte} on has none."
        ) from None
    return text


def _tidy(text: str) -> str:
    """The lines that are not empty, without white space around them."""
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
