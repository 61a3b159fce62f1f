"""Token classification from CoNLL files: a word per line, its tag last, an empty line after a sentence."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dataprep.archives import read_text
from language.files.config import METRICS, FilesConfig
from language.files.rows import require_known
from language.tasks import examples
from language.tasks.examples import Example
from language.tasks.tagging import (
    IGNORED,
    Sentence,
    TaggedSplit,
    TaggingTask,
    split_sentence,
)
from language.tasks.task import Metric
from language.tokenizer import Tokenizer
from nystromformer_jax.support.durable import read_json, write_json

DOCUMENT = "-DOCSTART-"  # begins a document in CoNLL-2003; the line is skipped
CONLL_U = 10  # columns
ENTITY_TAG = re.compile(r"O|[BIESLUM]-.+")


class Record(NamedTuple):
    """A sentence, and where it begins."""

    where: str
    sentence: Sentence


def read(path: Path, config: FilesConfig, *, labeled: bool | None) -> list[Record]:
    """Returns the sentences of a file. Columns are separated by tabs, or else by spaces.

    If `labeled` is None, tags are read if the lines have two or more columns; if it is False, they are not.
    Comments, such as `# sent_id = 1`, are skipped before the first word of a sentence.

    Raises:
      ValueError: The file is not UTF-8, has no sentence or is CoNLL-U, a line has no tag, or the lines of a
        sentence have different numbers of columns.
    """
    lines = read_text(path).split("\n")
    is_comment = _comment_test(lines)
    records: list[Record] = []
    is_new = True
    columns = 0
    for number, line in enumerate(lines, 1):
        cells = _cells(line)
        if cells == [""] or cells[0] == DOCUMENT:
            is_new = True
            continue
        if is_new and is_comment(line):
            continue
        if labeled is None:
            labeled = len(cells) > 1
        where = f"{path}, line {number}"
        if not cells[0] or (labeled and (len(cells) < 2 or not cells[-1].strip())):
            raise ValueError(
                f"{where}: needs a word and its tag, separated by a space or a tab, got {line!r:.50}."
            )
        if is_new:
            records.append(Record(where, Sentence([], [] if labeled else None)))
            is_new = False
            columns = len(cells)
        if len(cells) != columns:
            raise ValueError(
                f"{where}: has {len(cells)} columns, but the first line of its sentence has {columns}."
                " Comments are supported only before the first word of a sentence."
            )
        words, tags = records[-1].sentence
        words.append(cells[0])
        if tags is not None:
            tags.append(cells[-1].strip())
    if not records:
        raise ValueError(f"{path} has no sentences: it needs one word per line.")
    if columns == CONLL_U and all(record.sentence.words[0] == "1" for record in records):
        raise ValueError(
            f"{path} is CoNLL-U, whose first column numbers the words: write the word first and the tag last."
        )
    return records


def _cells(line: str) -> list[str]:
    """Returns the columns of a line; one empty column for an empty line."""
    content = line.strip(" \t\r")  # a no-break space is part of a word
    if "\t" in content:
        return [cell.strip(" \r") for cell in line.split("\t")]
    return re.split(" +", content)


def _comment_test(lines: Sequence[str]) -> Callable[[str], bool]:
    """Returns a function that tells comments from words that begin with "#", such as "#" or a hashtag.

    A comment begins with "# " or contains "=". It has another number of columns than most lines. Or its
    columns are separated by spaces and have the form `# key = value`, or the last one is neither the tag of
    another line nor that of an entity.
    """
    rows = map(_cells, lines)
    words = [cells for cells in rows if cells[0] and cells[0][0] != "#" and cells[0] != DOCUMENT]
    counts = Counter(len(cells) for cells in words)
    columns = counts.most_common(1)[0][0] if words else 0
    tags = {cells[-1] for cells in words if len(cells) == columns}

    def is_comment(line: str) -> bool:
        cells = _cells(line)
        is_hashtag = cells[0].split(" ")[0] != "#" and not any("=" in cell for cell in cells)
        if cells[0][:1] != "#" or is_hashtag or not words:
            return False
        if len(cells) != columns:
            return True
        if columns == 1 or (cells[0] == "#" and "\t" in line):
            return False
        has_tag = cells[-1] in tags or ENTITY_TAG.fullmatch(cells[-1])
        return cells[2:3] == ["="] or not has_tag

    return is_comment


def labels_of(records: Sequence[Record], config: FilesConfig) -> list[str]:
    """Returns the different tags, sorted, with O first."""
    found = {tag for record in records for tag in record.sentence.tags or ()}
    return sorted(found, key=lambda tag: (tag != "O", tag))


def content(record: Record) -> bytes:
    """Returns the words, to keep equal sentences in the same split."""
    return "\0".join(record.sentence.words).encode()


def make_task(config: FilesConfig, labels: Sequence[str]) -> TaggingTask:
    """Returns the task with these tags; tags such as B-PER or I-PER are scored as entities."""
    metrics: tuple[Metric, ...] = ("accuracy",)
    if any(label.startswith(("B-", "I-")) for label in labels):
        metrics = METRICS[config.kind]
    return TaggingTask(
        name=config.kind, title=config.kind, kind=config.kind, labels=tuple(labels), metrics=metrics
    )


def save(
    folder: Path,
    split: str,
    records: Sequence[Record],
    labels: Sequence[str],
    config: FilesConfig,
    tokenizer: Tokenizer,
) -> None:
    """Tokenizes the words of a split and writes them.

    Raises:
      ValueError: A tag is not in `labels`.
    """
    numbers = {label: i for i, label in enumerate(labels)}
    for where, sentence in records:
        for tag in sentence.tags or ():
            require_known(tag, labels, where)
    sentences = [record.sentence for record in records]
    # Byte-level tokenizers mark a word by the space before it.
    words = [Example("", (f" {word}",), None) for own in sentences for word in own.words]
    examples.save(folder, split, words, tokenizer, label_dtype=np.int32)
    tags = [numbers[tag] for own in sentences for tag in own.tags or [labels[0]] * len(own.words)]
    examples.save_arrays(folder, split, {"tags": np.array(tags, np.int32)})
    write_json(folder / f"{split}_sentences.json", {"sentences": sentences})


def open_split(
    folder: Path, split: str, labels: Sequence[str], config: FilesConfig, tokenizer: Tokenizer
) -> TaggedSplit:
    """Opens a split that `save` wrote, with the rows for `data.max_len`."""
    stored, offsets, word_tags = examples.open_arrays(folder, split, "tokens", "offsets", "tags")
    found = read_json(folder / f"{split}_sentences.json")["sentences"]
    sentences = [Sentence(words, tags) for words, tags in found]
    # A word without tokens, such as a control character, becomes the unknown token, or else the mask token.
    lengths = np.diff(offsets)
    empty = np.flatnonzero(lengths == 0)
    unknown = tokenizer.unk_id if tokenizer.unk_id is not None else tokenizer.mask_id
    tokens = np.insert(stored, offsets[empty], unknown)
    lengths = np.maximum(lengths, 1)
    starts = np.cumsum(lengths) - lengths
    tags = np.full(len(tokens), IGNORED, np.int32)
    tags[starts] = word_tags
    rows, owners, first = [], [], 0
    for number, (words, _) in enumerate(sentences):
        own = lengths[first : first + len(words)].tolist()
        parts = split_sentence(own, config.max_len - 2)
        rows += [(int(starts[first]) + start, length) for start, length in parts]
        owners += [number] * len(parts)
        first += len(words)
    places = np.array(rows, np.int64)
    return TaggedSplit(
        tokens=tokens,
        starts=places[:, :1],
        lengths=places[:, 1:],
        labels=None,
        label_dtype=np.int32,
        ids=np.array([str(owner) for owner in owners]),
        tokenizer=tokenizer,
        tags=tags,
        owners=np.array(owners, np.int64),
        sentences=sentences,
    )
