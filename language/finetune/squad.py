"""Question answering from JSON files in the format of SQuAD 1.1 and 2.0."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep.archives import parse_json, read_text
from language.finetune.answering import Answers
from language.finetune.examples import Example

_FORM = 'data[i].paragraphs[j].context, and .qas[k] with id, question and answers[{"text", "answer_start"}]'


def read(path: Path, *, labeled: bool | None) -> list[Example]:
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
    for id, count in Counter(question.id for question in questions).items():
        if count > 1:
            raise ValueError(f"{path}: {count} questions have the id {id!r}: rename all but one.")
    return questions


def _entries(found: Any) -> Iterator[tuple[str, Any]]:
    for article in found["data"]:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


def _question(entry: Any, context: Any, path: Path, *, labeled: bool) -> Example:
    id, question = str(entry["id"]), entry["question"]
    where = f"{path}, question {id!r}"
    for name, value in (("question", question), ("context", context)):
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{where}: needs a {name}, not {value!r:.50}.")
    question = question.strip()
    if not labeled:
        return Example((question, context), None, where, id)
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
    found = Answers([answer["text"] for answer in answers], begin)
    return Example((question, context), found, where, id)
