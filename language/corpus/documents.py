"""Reads documents from text files, JSON lines, or a dataset of tensorflow-datasets, one at a time."""

import dataclasses
import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from dataprep import archives, cache
from dataprep.tfds_reader import INFO, PreparedByTfds

MAX_DOCUMENT_BYTES = 2**26
SAMPLE_BYTES = 2**20  # bytes of the first file, to infer the separator of documents
JSON_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")

_BOM = b"\xef\xbb\xbf"  # byte-order mark

# `= Title =` begins a document; `= = Section = =`, with two marks or more, is a heading inside it.
_TITLE = re.compile(rb"\s*= (?!=)(?:.*[^=\s])? =\s*")
_SECTION_MARKS = (b"==", b"= =")

# Functions of a line and the following line that return True at the end of a document. A heading or a "line"
# also begins the next document. In WikiText some formulas look like headings, but real headings are followed
# by an empty line.
_BORDERS: dict[str, Callable[[bytes, bytes], object]] = {
    "blank_line": lambda line, following: not line.strip(),
    "heading": lambda line, following: _TITLE.fullmatch(line),
    "spaced_heading": lambda line, following: _TITLE.fullmatch(line) and not following.strip(),
    "line": lambda line, following: True,
    "file": lambda line, following: False,
}


@dataclasses.dataclass(frozen=True)
class TextFiles:
    """A corpus of text files or JSON lines."""

    files: Mapping[str, Path]  # by name relative to the folder
    separator: str  # of documents, a key of `_BORDERS`
    is_json: bool  # every line is a JSON object with a document as `text`

    def stamp(self) -> Mapping[str, object]:
        """Returns values that identify the files and their documents, without reading the files."""
        kind = "json lines" if self.is_json else "text"
        return {"kind": kind, "documents": self.separator, **archives.stamp(self.files)}

    def documents(self) -> Iterator[str]:
        """Yields all documents, as stripped lines."""
        for path in self.files.values():
            with archives.reading(path):
                yield from self._documents_of(path)

    def _documents_of(self, path: Path) -> Iterator[str]:
        for lines in _split_documents(path, self.separator):
            content = "".join(
                archives.decode(line, str(path), "Convert it, or remove it.", at=at)
                for at, line in lines
            )
            if self.is_json and content.strip():
                content = _json_text(content, path, byte=lines[0][0] + 1)
            if document := _strip_lines(content):
                yield document


@dataclasses.dataclass(frozen=True)
class TfdsTexts:
    """A corpus of tensorflow-datasets: the `text` of every training example."""

    reader: PreparedByTfds

    def stamp(self) -> Mapping[str, object]:
        """See `TextFiles`."""
        return {"kind": "tfds", "documents": "line", **self.reader.stamp()}

    def documents(self) -> Iterator[str]:
        """See `TextFiles`."""
        for row, example in enumerate(self.reader.examples("train", ("text",))):
            where = f"Example {row} of {self.reader.path}"
            if not isinstance(example["text"], bytes):
                raise ValueError(f"{where} needs a feature `text` that is a string.")
            if document := _strip_lines(archives.decode(example["text"], where)):
                yield document


Source = TextFiles | TfdsTexts


def _open(path: Path) -> IO[bytes]:
    """Opens a file, decompressed if its name ends in .gz."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _split_documents(path: Path, separator: str) -> Iterator[list[tuple[int, bytes]]]:
    """Yields the lines of each document of a file, with their positions in the file."""
    is_border = _BORDERS[separator]
    with _open(path) as file:
        document: list[tuple[int, bytes]] = []
        at, size = 0, 0
        following = file.readline(MAX_DOCUMENT_BYTES)
        if following.startswith(_BOM):
            at, following = len(_BOM), following.removeprefix(_BOM)
        if not following.endswith(b"\n") and b"\r" in following.strip():
            raise ValueError(
                f"{path} ends its lines with carriage returns: convert them to newlines."
            )
        while line := following:
            following = file.readline(MAX_DOCUMENT_BYTES)
            if is_border(line, following):
                if document:
                    yield document
                document, size = [], 0
            if line.strip() and not _is_heading(line, following, separator):
                document.append((at, line))
                size += len(line)
                if size >= MAX_DOCUMENT_BYTES:
                    raise ValueError(
                        f"{path} has a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB, from byte"
                        f" {document[0][0] + 1} on, with data.documents={separator}: check that this is"
                        " how its documents are separated."
                    )
            at += len(line)
        if document:
            yield document


def _is_heading(line: bytes, following: bytes, separator: str) -> bool:
    """Returns True if a line is a title or a section heading."""
    if not separator.endswith("heading"):
        return False
    line = line.strip()
    is_section = line.startswith(_SECTION_MARKS) and line.endswith(_SECTION_MARKS)
    return is_section or bool(_BORDERS[separator](line, following))


def _json_text(line: str, path: Path, *, byte: int) -> str:
    """Returns the document of a JSON line."""
    needs = f'{path} needs a JSON object with a string under "text" in every line'
    where = f"{needs}; the line at byte {byte}"
    found = archives.parse_json(line, where, "correct it")
    if not (isinstance(found, dict) and isinstance(found.get("text"), str)):
        raise ValueError(f"{where} is something else.")
    return str(found["text"])


def _strip_lines(text: str) -> str:
    """Strips all lines and removes empty lines."""
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def open_source(dir: str, source: str = "auto", documents: str = "auto") -> Source:
    """Returns the source of a corpus; see `language.corpus.CorpusConfig`."""
    if not dir:
        raise ValueError(
            "A corpus is needed: set --config.data.dir to a text file, or to a folder of them."
        )
    path = cache.user_path(dir)
    if not path.exists():
        raise FileNotFoundError(
            f"The corpus {path} does not exist: set --config.data.dir to a text file, or to a folder of"
            " them."
        )
    with archives.reading(path):
        is_tfds = (path / INFO).is_file() or any(path.glob(f"*/{INFO}"))
        if source == "tfds" or (source == "auto" and is_tfds):
            _require_lines(documents, "a dataset of tensorflow-datasets")
            reader = (
                PreparedByTfds.open(path, task="Pretraining")
                if (path / INFO).is_file()
                else PreparedByTfds.find(str(path.parent), path.name, task="Pretraining")
            )
            return TfdsTexts(reader)
        files = _list_files(path)
        suffixes = {name.endswith(JSON_SUFFIXES) for name in files}
        if source == "auto" and len(suffixes) == 2:
            raise ValueError(
                f"{path} contains both JSON lines and other files: set data.source to jsonl or text, to"
                " read only one kind."
            )
        is_json = source == "jsonl" or (source == "auto" and suffixes == {True})
        if path.is_dir():
            files = {
                name: file
                for name, file in files.items()
                if name.endswith(JSON_SUFFIXES) == is_json
            }
        if not files:
            kind = "JSON lines (.jsonl or .json)" if is_json else "text file"
            raise FileNotFoundError(
                f"{path} contains no {kind}: set --config.data.dir to another file or folder."
            )
        if is_json:
            _require_lines(documents, "JSON lines")
            documents = "line"
        elif documents in ("auto", "heading"):
            documents = _infer_documents(files, documents)
        return TextFiles(files, documents, is_json)


def _list_files(path: Path) -> dict[str, Path]:
    """Returns the file, or all files in a folder (recursively, except hidden files), by name."""
    if path.is_file():
        return {path.name: path}
    found = {
        below.relative_to(path).as_posix(): below for below in path.rglob("*") if below.is_file()
    }
    return {name: found[name] for name in sorted(found) if not re.search(r"(^|/)\.", name)}


def _require_lines(documents: str, kind: str) -> None:
    if documents not in ("auto", "line"):
        raise ValueError(
            f"data.documents={documents}: every entry of {kind} is a document; leave the key at auto."
        )


def _infer_documents(files: Mapping[str, Path], documents: str) -> str:
    """Infers the separator of documents from a sample of the first file; see `CorpusConfig`.

    If `documents` is "heading", only whether empty lines follow the headings is inferred.
    """
    path = next(iter(files.values()))
    with archives.reading(path), _open(path) as file:
        sample = file.read(SAMPLE_BYTES).removeprefix(_BOM)
    lines = sample.strip().splitlines()
    titles = [i for i, line in enumerate(lines[:-1]) if _TITLE.fullmatch(line)]
    if documents == "heading" or titles[:1] == [0]:
        is_spaced = bool(titles) and not lines[titles[0] + 1].strip()
        return "spaced_heading" if is_spaced else "heading"
    if any(not line.strip() for line in lines):
        return "blank_line"
    return "line" if len(files) == 1 else "file"
