"""Extractive question answering: windows over long contexts, best spans, exact match and F1."""

import dataclasses
import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from language.finetune.examples import Example, Split, open_arrays, save_texts
from language.finetune.task import Outputs, Scores, Task, ratio_error
from language.tokenizer import Tokenizer
from nystromformer_jax.support.durable import read_json, write_json
from nystromformer_jax.support.predictions import Window, best_answers


class Answers(NamedTuple):
    """The correct answers to a question, none if it cannot be answered."""

    texts: list[str]
    start: int  # position of the first answer in the context, in characters; -1 if there are none


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnsweringTask(Task):
    """Extractive question answering, scored as in SQuAD.

    The texts of an example are a question and its context, and its label is an `Answers`. The labels of a row
    are the positions of the answer's first and last token, or (0, 0), that of [CLS], in a window without it.

    Args:
      has_unanswerable: True if questions without an answer were in the training data, as in SQuAD 2.0. The
        answer is then empty if [CLS] has a higher score than the best span.
    """

    has_unanswerable: bool = False
    suffix: ClassVar[str] = ".json"

    def encode(
        self, folder: Path, split: str, examples: Sequence[Example], tokenizer: Tokenizer
    ) -> None:
        """Writes tokens of contexts and questions; each context is stored once."""
        number = {
            context: i for i, context in enumerate(dict.fromkeys(e.texts[1] for e in examples))
        }
        contexts = list(number)
        texts = [*contexts, *(example.texts[0] for example in examples)]
        save_texts(folder, split, texts, tokenizer, with_spans=True)
        questions = [
            (example.id, question, number[context], *(example.label or (None, -1)))
            for example in examples
            for question, context in [example.texts]
        ]
        content = {"contexts": contexts, "questions": questions}
        write_json(folder / f"{split}_questions.json", content)

    def open(self, folder: Path, split: str, tokenizer: Tokenizer, config: Any) -> Split:
        """Opens a split, with the windows for `max_len` and `overlap` of the config.

        A question keeps at most a quarter of `max_len`.
        """
        tokens, spans, offsets = open_arrays(folder, split, "tokens", "spans", "offsets")
        found = read_json(folder / f"{split}_questions.json")
        contexts = found["contexts"]
        examples, starts, lengths, labels, owners = [], [], [], [], []
        for i, (id, question, context, answers, begin) in enumerate(found["questions"]):
            label = None if answers is None else Answers(answers, begin)
            examples.append(Example((question, contexts[context]), label, id=id))
            place = len(contexts) + i
            kept = min(int(offsets[place + 1] - offsets[place]), config.max_len // 4)
            first, end = int(offsets[context]), int(offsets[context + 1])
            answer = None
            if answers:
                answer = answer_tokens(spans[first:end], begin, begin + len(answers[0]))
            before = kept + 1 + tokenizer.pair_separators  # tokens before the context
            for start, length in windows(end - first, config.max_len - before - 1, config.overlap):
                label_of_row = (0, 0)
                if answer and start <= answer[0] and answer[1] < start + length:
                    label_of_row = (answer[0] - start + before, answer[1] - start + before)
                starts.append((int(offsets[place]), first + start))
                lengths.append((kept, length))
                labels.append(label_of_row)
                owners.append(i)
        return Split(
            tokens=tokens,
            starts=np.array(starts, np.int64),
            lengths=np.array(lengths, np.int64),
            labels=np.array(labels, np.int32),
            is_labeled=examples[0].label is not None,
            ids=np.array([examples[owner].id for owner in owners]),
            tokenizer=tokenizer,
            owners=np.array(owners, np.int64),
            examples=examples,
            spans=spans,
        )

    def predict(self, split: Split, outputs: Outputs) -> list[str]:
        """Returns the answer to each question: the best span over all windows, or an empty text."""
        rows = len(outputs["start"])
        contexts = [example.texts[1] for example in split.examples[: split.count_complete(rows)]]
        found = best_answers(
            (window for window in _windows(split, outputs) if window.question < len(contexts)),
            contexts,
            has_unanswerable=self.has_unanswerable,
        )
        return [text for text, _ in found]

    def score(self, split: Split, predicted: list[str]) -> tuple[Scores, Scores]:
        """Returns exact match and F1, and their standard errors over the questions."""
        pairs = list(zip(map(_accepted, split.examples), predicted, strict=False))
        scores = {
            name: np.array([max(metric(answer, guess) for answer in own) for own, guess in pairs])
            for name, metric in (("f1", f1), ("exact_match", exact_match))
        }
        ones = np.ones(len(predicted))
        return (
            {name: float(scores[name].mean()) for name in self.metrics},
            {name: ratio_error(scores[name], ones) for name in self.metrics},
        )

    def write(self, file: Path, split: Split, predicted: list[str]) -> None:
        """Writes a JSON object with the answer to each question by id, as SQuAD's scripts read it."""
        answers = {e.id: guess for e, guess in zip(split.examples, predicted, strict=False)}
        self.write_text(file, json.dumps(answers, indent=2, ensure_ascii=False) + "\n")


def _windows(split: Split, outputs: Outputs) -> Iterator[Window]:
    """Yields the windows of a split with their outputs."""
    assert split.spans is not None
    for row, (start, end) in enumerate(zip(outputs["start"], outputs["end"], strict=True)):
        (question, context), first = split.lengths[row].tolist(), int(split.starts[row, 1])
        offset = question + split.num_special - 1
        spans = split.spans[first : first + context]
        yield Window(int(split.owners[row]), start, end, offset, spans)


def windows(tokens: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """Returns start and length of windows over a context.

    A window has at most `room` tokens; neighbors share `overlap` tokens.
    """
    starts = range(0, max(tokens - overlap, 1), room - overlap) if tokens > room else range(1)
    return [(start, min(room, tokens - start)) for start in starts]


def answer_tokens(spans: npt.NDArray[np.int32], begin: int, end: int) -> tuple[int, int] | None:
    """Returns the first and the last token that overlap the characters `begin` to `end` - 1, or None.

    `spans` [T, 2] has the start and the end of each token in characters.
    """
    inside = np.flatnonzero((spans[:, 1] > begin) & (spans[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def exact_match(truth: str, guess: str) -> float:
    """Returns 1 if both texts are equal after `normalize`, else 0."""
    return float(normalize(truth) == normalize(guess))


def f1(truth: str, guess: str) -> float:
    """Returns the F1 of the words of two texts. If one has no words, returns 1 if both have none, else 0."""
    ours, theirs = normalize(guess).split(), normalize(truth).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs))


def _accepted(example: Example) -> list[str]:
    """Returns the correct answers; one empty text if there are none, as in evaluate-v2.0.py."""
    return [answer for answer in example.label.texts if normalize(answer)] or [""]


def normalize(text: str) -> str:
    """Returns lower-case text without punctuation, articles and extra whitespace.

    Source: SQuAD's evaluate-v2.0.py, normalize_answer.
    """
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())
