"""Extractive question answering: windows over long contexts, best spans, exact match and F1."""

import dataclasses
import json
import re
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from language.tasks.examples import EncodedSplit
from language.tasks.task import Outputs, Scores, Task, ratio_error
from nystromformer_jax.support.durable import write_bytes
from nystromformer_jax.support.spans import best_span


class Question(NamedTuple):
    """A question with its context, and the correct answers: none if it cannot be answered."""

    id: str
    question: str
    context: str
    answers: list[str] | None  # None if the file has no answers
    start: int = -1  # position of the first answer in the context, in characters


class Window(NamedTuple):
    """A part of a context, in tokens."""

    start: int
    length: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerSplit(EncodedSplit):
    """A split with a row for each window over a context; a label is the answer's first and last token.

    The label of a window without the answer is (0, 0), the position of [CLS].
    """

    questions: Sequence[Question]
    # [total, 2], start and end of each token in characters of its text
    spans: npt.NDArray[np.int32]

    @property
    def is_labeled(self) -> bool:
        """Returns True if the questions have answers."""
        return self.questions[0].answers is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnsweringTask(Task):
    """Extractive question answering, scored as in SQuAD.

    Args:
      has_unanswerable: True if questions without an answer were in the training data, as in SQuAD 2.0. The
        answer is then empty if [CLS] has a higher score than the best span.
    """

    has_unanswerable: bool = False

    def file_name(self, split: str) -> str:
        """Returns `<task>-<split>.json`."""
        return f"{self.name}-{split}.json"

    def predict(self, split: EncodedSplit, outputs: Outputs) -> list[str]:
        """Returns the answer to each question: the best span over all windows, or an empty text."""
        assert isinstance(split, AnswerSplit)
        assert split.owners is not None
        rows = len(outputs["start"])
        count = split.count_complete(rows)
        answers, best = [""] * count, np.full(count, -np.inf)
        empty = np.full(count, np.inf)
        for row, question in enumerate(split.owners[:rows].tolist()):
            if question >= count:
                continue
            start_logits, end_logits = outputs["start"][row], outputs["end"][row]
            empty[question] = min(empty[question], start_logits[0] + end_logits[0])
            offset = int(split.lengths[row, 0]) + split.num_special - 1
            length = int(split.lengths[row, 1])
            if not length:
                continue
            context = slice(offset, offset + length)
            score, first, last = best_span(start_logits[context], end_logits[context])
            if score > best[question]:
                best[question] = score
                begin = int(split.spans[split.starts[row, 1] + first, 0])
                end = int(split.spans[split.starts[row, 1] + last, 1])
                answers[question] = split.questions[question].context[begin:end].strip()
        if self.has_unanswerable:
            return ["" if empty[i] > best[i] else answer for i, answer in enumerate(answers)]
        return answers

    def score(self, split: EncodedSplit, predicted: list[str]) -> tuple[Scores, Scores]:
        """Returns exact match and F1, and their standard errors over the questions."""
        assert isinstance(split, AnswerSplit)
        scores: dict[str, npt.NDArray[np.float64]] = {
            name: np.array(
                [
                    max(metric(answer, guess) for answer in _accepted(question))
                    for question, guess in zip(split.questions, predicted, strict=False)
                ],
                np.float64,
            )
            for name, metric in (("f1", f1), ("exact_match", exact_match))
        }
        ones = np.ones(len(predicted))
        return (
            {name: float(scores[name].mean()) for name in self.metrics},
            {name: ratio_error(scores[name], ones) for name in self.metrics},
        )

    def write(self, file: Path, split: EncodedSplit, predicted: list[str]) -> None:
        """Writes a JSON object with the answer to each question by id, as SQuAD's scripts read it."""
        assert isinstance(split, AnswerSplit)
        answers = {q.id: guess for q, guess in zip(split.questions, predicted, strict=False)}
        content = (json.dumps(answers, indent=2, ensure_ascii=False) + "\n").encode()
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content)


def windows(tokens: int, room: int, overlap: int) -> list[Window]:
    """Returns windows of at most `room` tokens over a context; neighbors share `overlap` tokens."""
    starts = range(0, max(tokens - overlap, 1), room - overlap) if tokens > room else range(1)
    return [Window(start, min(room, tokens - start)) for start in starts]


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


def _accepted(question: Question) -> list[str]:
    """Returns the correct answers; one empty text if there are none, as in evaluate-v2.0.py."""
    return [answer for answer in question.answers or () if normalize(answer)] or [""]


def normalize(text: str) -> str:
    """Returns lower-case text without punctuation, articles and extra whitespace.

    Source: SQuAD's evaluate-v2.0.py, normalize_answer.
    """
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())
