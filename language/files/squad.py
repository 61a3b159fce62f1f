"""Question answering from JSON files in the format of SQuAD 1.1 and 2.0."""

import collections
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep.archives import parse_json, read_text
from language.files.config import METRICS, FilesConfig
from language.tasks import examples
from language.tasks.answering import AnsweringTask, AnswerSplit, Question, answer_tokens, windows
from language.tokenizer import Tokenizer
from nystromformer_jax.support.durable import read_json, write_json

_FORM = 'data[i].paragraphs[j].context, and .qas[k] with id, question and answers[{"text", "answer_start"}]'


def read(path: Path, config: FilesConfig, *, labeled: bool | None) -> list[Question]:
    """Returns the questions of a file.

    If `labeled` is None, answers are read if any question has them; if it is False, they are not.

    Raises:
      ValueError: The file is not UTF-8 or JSON, a key is missing, or an answer is not in its context.
    """
    text = read_text(path)
    found = parse_json(text, str(path), "it needs SQuAD's format")
    try:
        entries = list(_entries(found))
        if labeled is None:
            labeled = any("answers" in entry or "is_impossible" in entry for _, entry in entries)
        questions = [_question(entry, context, path, labeled=labeled) for context, entry in entries]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not in SQuAD's format: it needs {_FORM} ({error!r})."
        ) from None
    if not questions:
        raise ValueError(f"{path} has no questions: it needs {_FORM}.")
    for id, count in collections.Counter(question.id for question in questions).items():
        if count > 1:
            raise ValueError(f"{path}: {count} questions have the id {id!r}: rename all but one.")
    return questions


def labels_of(records: Sequence[Question], config: FilesConfig) -> list[str]:
    """Returns no labels."""
    return []


def content(record: Question) -> bytes:
    """Returns the context, to keep all its questions in the same split."""
    return record.context.encode()


def make_task(config: FilesConfig, labels: Sequence[str]) -> AnsweringTask:
    """Returns the task; `files.data.make_task` sets `has_unanswerable`."""
    return AnsweringTask(
        name=config.kind,
        title=config.kind,
        kind=config.kind,
        labels=("start", "end"),
        metrics=METRICS[config.kind],
    )


def save(
    folder: Path,
    split: str,
    records: Sequence[Question],
    labels: Sequence[str],
    config: FilesConfig,
    tokenizer: Tokenizer,
) -> None:
    """Tokenizes contexts and questions of a split and writes them; each context is stored once."""
    contexts = list(dict.fromkeys(record.context for record in records))
    number = {context: i for i, context in enumerate(contexts)}
    texts = [*contexts, *(record.question for record in records)]
    lengths: list[int] = []
    ids: list[npt.NDArray[np.int32]] = []
    spans: list[npt.NDArray[np.int32]] = []
    for start in range(0, len(texts), examples.TEXTS_PER_CALL):
        call = texts[start : start + examples.TEXTS_PER_CALL]
        for own_ids, own_spans in tokenizer.encode_with_spans(call):
            lengths.append(len(own_ids))
            ids.append(np.array(own_ids, np.int32))
            spans.append(np.array(own_spans, np.int32).reshape(-1, 2))
    arrays = {
        "tokens": np.concatenate(ids),
        "spans": np.concatenate(spans),
        "offsets": np.cumsum([0, *lengths]),
    }
    examples.save_arrays(folder, split, arrays)
    # Each context is written once, and a question has its number.
    questions = [(id, question, number[context], *rest) for id, question, context, *rest in records]
    write_json(folder / f"{split}_questions.json", {"contexts": contexts, "questions": questions})


def open_split(
    folder: Path, split: str, labels: Sequence[str], config: FilesConfig, tokenizer: Tokenizer
) -> AnswerSplit:
    """Opens a split that `save` wrote, with the windows for `data.max_len` and `data.overlap`.

    A question keeps at most a quarter of `data.max_len`.
    """
    tokens, spans, offsets = examples.open_arrays(folder, split, "tokens", "spans", "offsets")
    found = read_json(folder / f"{split}_questions.json")
    contexts = found["contexts"]
    starts, lengths, labels_of_rows, owners = [], [], [], []
    questions = []
    for i, (id, question, context, answers, begin) in enumerate(found["questions"]):
        questions.append(Question(id, question, contexts[context], answers, begin))
        place = len(contexts) + i
        kept = min(int(offsets[place + 1] - offsets[place]), config.max_len // 4)
        first, end = int(offsets[context]), int(offsets[context + 1])
        answer = None
        if answers and begin >= 0:
            answer = answer_tokens(spans[first:end], begin, begin + len(answers[0]))
        before = kept + 1 + tokenizer.pair_separators  # tokens before the context
        room = config.max_len - before - 1
        for start, length in windows(end - first, room, config.overlap):
            label = (0, 0)
            if answer and start <= answer[0] and answer[1] < start + length:
                label = (answer[0] - start + before, answer[1] - start + before)
            starts.append((int(offsets[place]), first + start))
            lengths.append((kept, length))
            labels_of_rows.append(label)
            owners.append(i)
    return AnswerSplit(
        tokens=tokens,
        starts=np.array(starts, np.int64),
        lengths=np.array(lengths, np.int64),
        labels=np.array(labels_of_rows, np.int32),
        label_dtype=np.int32,
        label_shape=(2,),
        ids=np.array([questions[owner].id for owner in owners]),
        tokenizer=tokenizer,
        owners=np.array(owners, np.int64),
        questions=questions,
        spans=spans,
    )


def _entries(found: Any) -> Iterator[tuple[str, Any]]:
    for article in found["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


def _question(entry: Any, context: Any, path: Path, *, labeled: bool) -> Question:
    id, question = str(entry["id"]), entry["question"]
    where = f"{path}, question {id!r}"
    for name, value in (("question", question), ("context", context)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{where}: needs a {name}, not {value!r:.50}.")
    question = question.strip()
    if not labeled:
        return Question(id, question, context, None)
    is_impossible = entry.get("is_impossible", False)
    if not isinstance(is_impossible, bool):
        raise ValueError(
            f"{where}: is_impossible must be true or false, not {is_impossible!r:.50}."
        )
    answers = [] if is_impossible else entry.get("answers")
    if answers is None:
        raise ValueError(
            f"{where}: needs answers, or leave them out of all questions of a test file."
        )
    for answer in answers:
        text, begin = answer["text"], answer["answer_start"]
        if type(begin) is not int:
            raise ValueError(f"{where}: answer_start must be a whole number, not {begin!r:.50}.")
        if not text or begin < 0 or context[begin : begin + len(text)] != text:
            raise ValueError(
                f"{where}: the answer is {text!r}, but its context has"
                f" {context[begin : begin + len(text)]!r} at character {begin}: correct answer_start."
            )
    begin = answers[0]["answer_start"] if answers else -1
    return Question(id, question, context, [answer["text"] for answer in answers], begin)
