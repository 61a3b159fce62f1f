"""Token classification: a tag per word, and the F1 of entities."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from language.finetune.examples import (
    IGNORED,
    Example,
    Split,
    open_arrays,
    save_arrays,
    save_texts,
)
from language.finetune.task import DataConfig, Outputs, Scores, Task, ratio_error
from language.tokenizer import Tokenizer
from nystromformer_jax.support.durable import read_json, write_json
from nystromformer_jax.support.predictions import word_tags

# Prefixes of the schemes BMES and BILOU, and those of IOBES with the same meaning.
_IOBES = {"M": "I", "L": "E", "U": "S"}


class Span(NamedTuple):
    """An entity: the words `start` to `end` - 1."""

    entity_type: str
    start: int
    end: int


class TaggingTask(Task):
    """Token classification. With tags such as B-PER, the metrics are those of entities.

    The texts of an example are the words of a sentence, and its label has a tag for each word.
    """

    suffix = ".conll"

    def encode(
        self, folder: Path, split: str, examples: Sequence[Example], tokenizer: Tokenizer
    ) -> None:
        """Writes tokens and tags of all words, and the sentences."""
        tags = [
            self.number_of(tag, example.where)
            for example in examples
            for tag in example.label or [self.labels[0]] * len(example.texts)
        ]
        # Byte-level tokenizers mark a word by the space before it.
        words = [f" {word}" for example in examples for word in example.texts]
        save_texts(folder, split, words, tokenizer)
        # The empty ids are part of the hash of the data, with which runs of version 0.2.0 resume.
        arrays = {"tags": np.array(tags, np.int32), "ids": np.full(len(words), "")}
        save_arrays(folder, split, arrays)
        sentences = [(example.texts, example.label) for example in examples]
        write_json(folder / f"{split}_sentences.json", {"sentences": sentences})

    def open(self, folder: Path, split: str, tokenizer: Tokenizer, config: DataConfig) -> Split:
        """Opens a split. A sentence longer than `max_len` has several rows, which begin with a word."""
        stored, offsets, tags_of_words = open_arrays(folder, split, "tokens", "offsets", "tags")
        sentences = read_json(folder / f"{split}_sentences.json")["sentences"]
        examples = [Example(tuple(words), tags) for words, tags in sentences]
        # A word without tokens, such as a control character, becomes the unknown or the mask token.
        lengths = np.diff(offsets)
        empty = np.flatnonzero(lengths == 0)
        unknown = tokenizer.unk_id if tokenizer.unk_id is not None else tokenizer.mask_id
        tokens = np.insert(stored, offsets[empty], unknown)
        lengths = np.maximum(lengths, 1)
        starts = np.cumsum(lengths) - lengths
        tags = np.full(len(tokens), IGNORED, np.int32)
        tags[starts] = tags_of_words
        rows, owners, first = [], [], 0
        for number, example in enumerate(examples):
            own = lengths[first : first + len(example.texts)].tolist()
            parts = split_sentence(own, config.max_len - 2)
            rows += [(int(starts[first]) + start, length) for start, length in parts]
            owners += [number] * len(parts)
            first += len(example.texts)
        places = np.array(rows, np.int64)
        return Split(
            tokens=tokens,
            starts=places[:, :1],
            lengths=places[:, 1:],
            labels=np.zeros(len(rows), np.int32),
            is_labeled=examples[0].label is not None,
            ids=np.array([str(owner) for owner in owners]),
            tokenizer=tokenizer,
            owners=np.array(owners, np.int64),
            examples=examples,
            tags=tags,
        )

    def predict(self, split: Split, outputs: Outputs) -> list[list[str]]:
        """Returns the tag of each word of each sentence."""
        assert split.tags is not None
        classes = outputs["classes"]
        tags: list[list[str]] = [[] for _ in range(split.count_complete(len(classes)))]
        for row, sentence in enumerate(split.owners[: len(classes)].tolist()):
            if sentence < len(tags):
                start, length = int(split.starts[row, 0]), int(split.lengths[row, 0])
                firsts = np.flatnonzero(split.tags[start : start + length] != IGNORED)
                tags[sentence] += word_tags(classes[row], (1 + firsts).tolist(), self.labels)
        return tags

    def score(self, split: Split, predicted: list[list[str]]) -> tuple[Scores, Scores]:
        """Returns metrics and their standard errors over the sentences."""
        truth = [example.label for example in split.examples[: len(predicted)]]
        scores, errors = entity_scores(truth, predicted)
        return (
            {name: scores[name] for name in self.metrics},
            {name: errors[name] for name in self.metrics},
        )

    def write(self, file: Path, split: Split, predicted: list[list[str]]) -> None:
        """Writes a line per word: word, tag if the file has tags, predicted tag, separated by tabs.

        The last two columns are those that CoNLL's script `conlleval` reads, with a tab as its delimiter.
        """
        blocks = []
        for example, guesses in zip(split.examples, predicted, strict=False):
            columns = [example.texts, *([example.label] if split.is_labeled else []), guesses]
            blocks.append("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)))
        self.write_text(file, "\n".join(blocks))


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
