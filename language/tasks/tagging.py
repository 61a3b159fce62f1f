"""Token classification: a tag per word, and the F1 of entities."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from language.tasks.examples import Batch, EncodedSplit
from language.tasks.task import Outputs, Scores, Task, ratio_error
from nystromformer_jax.support.durable import write_bytes

IGNORED = -1  # label of tokens that do not begin a word
# Prefixes of the schemes BMES and BILOU, and those of IOBES with the same meaning.
_IOBES = {"M": "I", "L": "E", "U": "S"}


class Sentence(NamedTuple):
    """Words and tags of a sentence."""

    words: list[str]
    tags: list[str] | None  # None if the file has no tags


class Span(NamedTuple):
    """An entity: the words `start` to `end` - 1."""

    entity_type: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggedSplit(EncodedSplit):
    """A split with a label at the first token of each word.

    A sentence that is longer than `max_len` has several rows, which begin with a word.
    """

    tags: npt.NDArray[np.int32]  # [total], `IGNORED` at tokens that continue a word
    sentences: Sequence[Sentence]

    @property
    def is_labeled(self) -> bool:
        """Returns True if the sentences have tags."""
        return self.sentences[0].tags is not None

    def batch(self, indices: npt.NDArray[np.integer], max_len: int) -> Batch:
        """Returns a batch with the labels [B, L], `IGNORED` except at the first token of each word."""
        batch = super().batch(indices, max_len)
        rank = np.arange(max_len) - 1
        inside = (rank >= 0) & (rank < self.lengths[indices])
        labels = np.full(inside.shape, IGNORED, np.int32)
        labels[inside] = self.tags[(self.starts[indices] + rank)[inside]]
        return {**batch, "labels": labels}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingTask(Task):
    """Token classification. With tags such as B-PER, the metrics are those of entities."""

    def file_name(self, split: str) -> str:
        """Returns `<task>-<split>.conll`."""
        return f"{self.name}-{split}.conll"

    def predict(self, split: EncodedSplit, outputs: Outputs) -> list[list[str]]:
        """Returns the tag of each word of each sentence."""
        assert isinstance(split, TaggedSplit)
        assert split.owners is not None
        classes = outputs["classes"]
        count = split.count_complete(len(classes))
        tags: list[list[str]] = [[] for _ in range(count)]
        for row, sentence in enumerate(split.owners[: len(classes)].tolist()):
            if sentence < count:
                start, length = int(split.starts[row, 0]), int(split.lengths[row, 0])
                firsts = np.flatnonzero(split.tags[start : start + length] != IGNORED)
                tags[sentence] += [self.labels[i] for i in classes[row, 1 + firsts].tolist()]
        return tags

    def score(self, split: EncodedSplit, predicted: list[list[str]]) -> tuple[Scores, Scores]:
        """Returns metrics and their standard errors over the sentences."""
        assert isinstance(split, TaggedSplit)
        truth = [sentence.tags or [] for sentence in split.sentences[: len(predicted)]]
        scores, errors = entity_scores(truth, predicted)
        return (
            {name: scores[name] for name in self.metrics},
            {name: errors[name] for name in self.metrics},
        )

    def write(self, file: Path, split: EncodedSplit, predicted: list[list[str]]) -> None:
        """Writes a line per word: word, tag if the file has tags, predicted tag, separated by tabs.

        The last two columns are those that CoNLL's script `conlleval` reads, with a tab as its delimiter.
        """
        assert isinstance(split, TaggedSplit)
        blocks = []
        for (words, tags), guesses in zip(split.sentences, predicted, strict=False):
            columns = [words, *([tags] if tags is not None else []), guesses]
            blocks.append("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)))
        content = "\n".join(blocks).encode()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content)


def spans(tags: Sequence[str]) -> set[Span]:
    """Returns the entities of a sentence with tags B-TYPE, I-TYPE and O, or also E-TYPE and S-TYPE.

    An entity begins at B, and at I if the word before is in no entity or in one of another type. E ends an
    entity, and S is an entity of one word. M, L and U (of BMES and BILOU) are read as I, E and S.

    Source: the script conlleval of CoNLL-2000, for B and I; the package seqeval, for E and S.
    """
    found, entity_type, start = set(), "", 0
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, own = tag.partition("-")
        prefix = _IOBES.get(prefix, prefix)
        if entity_type and (prefix not in ("I", "E") or own != entity_type):
            found.add(Span(entity_type, start, i))
            entity_type = ""
        if prefix in ("B", "I", "E", "S") and not entity_type:
            entity_type, start = own, i
        if prefix in ("E", "S") and entity_type:
            found.add(Span(entity_type, start, i + 1))
            entity_type = ""
    return found


def entity_scores(
    truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[Scores, Scores]:
    """Returns precision, recall and F1 of entities and accuracy of tags, and their standard errors.

    An entity is correct if its type, its first and its last word are correct. A ratio of nothing,
    such as precision without predicted entities, is 0.
    """
    counts = []  # per sentence: correct, predicted and true entities, correct tags, words
    for tags, guesses in zip(truth, predicted, strict=True):
        ours, theirs = spans(guesses), spans(tags)
        correct_tags = sum(one == other for one, other in zip(tags, guesses, strict=True))
        counts.append((len(ours & theirs), len(ours), len(theirs), correct_tags, len(tags)))
    correct, ours, theirs, correct_tags, words = np.array(counts).T
    parts = {
        "f1": (2 * correct, ours + theirs),
        "precision": (correct, ours),
        "recall": (correct, theirs),
        "accuracy": (correct_tags, words),
    }
    scores = {name: float(a.sum() / max(b.sum(), 1)) for name, (a, b) in parts.items()}
    return scores, {name: ratio_error(a, b) for name, (a, b) in parts.items()}


def split_sentence(lengths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Returns the start and the length, in tokens, of parts of at most `room` tokens.

    Each part begins with a word; `lengths` has the number of tokens of each word. A word with more than
    `room` tokens keeps the first `room`.
    """
    parts: list[tuple[int, int]] = []
    start = 0
    for length in lengths:
        if parts and start + length - parts[-1][0] <= room:
            parts[-1] = (parts[-1][0], start + length - parts[-1][0])
        else:
            parts.append((start, min(length, room)))
        start += length
    return parts
