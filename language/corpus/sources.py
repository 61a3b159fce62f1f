"""Finds the files of a corpus, and how its documents are told apart."""

import gzip
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

from harness import cache
from harness.tfds_reader import INFO, PreparedByTfds
from language.corpus.documents import BOM, TITLE, Source, TextFiles, TfdsTexts, open_bytes

JSON_NAMES = (".jsonl", ".jsonl.gz")
LONGEST_SAMPLE = 2**20  # bytes that say how documents are told apart


def open_source(dir: str, source: str = "auto", documents: str = "auto") -> Source:
    """Finds a corpus; see `language.corpus.CorpusConfig`.

    Raises:
      FileNotFoundError: there is no such file or folder, or no file in it.
      ValueError: the folder holds two kinds of files, or `source` and `documents` do not go together.
    """
    if not dir:
        raise ValueError(
            "A corpus is needed: set --config.data.dir to a text file, or to a folder of them."
        )
    path = cache.user_path(dir)
    if not path.exists():
        raise FileNotFoundError(
            f"There is no corpus {path}: set --config.data.dir to a text file, or to a folder of them."
        )
    try:
        is_tfds = (path / INFO).is_file() or any(path.glob(f"*/{INFO}"))
        if source == "tfds" or (source == "auto" and is_tfds):
            _require_lines(documents, "a data set of tensorflow-datasets")
            reader = (
                PreparedByTfds.open(path, task="Pretraining")
                if (path / INFO).is_file()
                else PreparedByTfds.find(str(path.parent), path.name, task="Pretraining")
            )
            return TfdsTexts(reader)
        files = _listing(path)
        is_json = _is_json(files, path) if source == "auto" else source == "jsonl"
        if path.is_dir():
            files = {name: at for name, at in files.items() if name.endswith(JSON_NAMES) == is_json}
        if not files:
            kind = "JSON lines (.jsonl)" if is_json else "text"
            raise FileNotFoundError(
                f"{path} holds no file of {kind}: set --config.data.dir to one."
            )
        if is_json:
            _require_lines(documents, "JSON lines")
            return TextFiles.of(files, "line", is_json=True)
        if documents in ("auto", "heading"):
            documents = _told_apart(files, documents)
        return TextFiles.of(files, documents, is_json=False)
    except OSError as error:
        if error.strerror is None:  # our own sentence
            raise
        raise OSError(f"{error.filename} cannot be read ({error.strerror}).") from error


def _listing(path: Path) -> dict[str, Path]:
    """All files below a folder by name, or a file; hidden ones are passed over."""
    if path.is_file():
        return {path.name: path}
    found = {
        below.relative_to(path).as_posix(): below for below in path.rglob("*") if below.is_file()
    }
    return {name: found[name] for name in sorted(found) if not re.search(r"(^|/)\.", name)}


def _is_json(files: Mapping[str, Path], path: Path) -> bool:
    kinds = {name.endswith(JSON_NAMES) for name in files}
    if len(kinds) == 2:
        raise ValueError(
            f"{path} holds both JSON lines and other files: set data.source to jsonl or text, which"
            " passes over the others."
        )
    return kinds == {True}


def _require_lines(documents: str, kind: str) -> None:
    if documents not in ("auto", "line"):
        raise ValueError(
            f"data.documents is {documents}, but every entry of {kind} is a document: leave it at auto."
        )


def _told_apart(files: Mapping[str, Path], documents: str) -> str:
    """By headings if the text begins with one, by blank lines if there are any, or else by files.

    A single file without blank lines has one document a line. The first file is looked into, for
    "heading" only to see whether headings have empty lines below them.
    """
    path = next(iter(files.values()))
    with open_bytes(path) as file:
        try:
            sample = file.read(LONGEST_SAMPLE).removeprefix(BOM)
        except (EOFError, zlib.error, gzip.BadGzipFile):  # who reads the file will say so
            return "line"
    lines = sample.strip().splitlines()
    titles = [i for i, line in enumerate(lines[:-1]) if TITLE.fullmatch(line)]
    if documents == "heading" or titles[:1] == [0]:
        is_spaced = bool(titles) and not lines[titles[0] + 1].strip()
        return "spaced_heading" if is_spaced else "heading"
    if any(not line.strip() for line in lines):
        return "blank_line"
    return "line" if len(files) == 1 else "file"
