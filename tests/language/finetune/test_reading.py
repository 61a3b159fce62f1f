"""Files are read as examples, and errors name the file and the line."""

import json
import re

import pytest

from language.finetune.answering import Answers
from language.finetune.examples import Example
from language.finetune.files import FilesConfig, labels_of

CLASSES, TAGS, QUESTIONS = (
    FilesConfig(kind=kind)
    for kind in ("classification", "token_classification", "question_answering")
)
LONG = "a" * 200_000  # longer than a field of the module csv may be by default
TABLES = [
    # Name, content, and the texts and labels.
    ("x.csv", "\ufefftext,label\r\na,x\r\n\r\nb,y", [("a", "x"), ("b", "y")]),
    ("x.csv", '"text",label\ra,x\r"b\nc",y\r', [("a", "x"), ("b\nc", "y")]),
    ("x.csv", " text ,label\t\n a , x \nb,x\u00a0\n", [("a", "x"), ("b", "x")]),
    ("x.csv", "text,label,\na,NaN,\nb,None,\n", [("a", "NaN"), ("b", "None")]),
    ("x.csv", f"text,label\n{LONG},é\nb,日本\n", [(LONG, "é"), ("b", "日本")]),
    ("x.csv", "text,label\na\u2028b\x85c\x0cd,x\n", [("a\u2028b\x85c\x0cd", "x")]),
    ("x.csv", "text,label\na,1\nb,1.0\nc,0.5\n", [("a", "1"), ("b", "1"), ("c", "0.5")]),
    ("x.tsv", 'text\tlabel\n"a\t01\n\n\nb"\t1.000\n', [('"a', "01"), ('b"', "1")]),
    ("x.tsv", "text\tlabel\ra\tTrue\rb\t+1\r", [("a", "True"), ("b", "+1")]),
    ("x.tsv", "text\tlabel\r\nfirst\rsecond\ta\r\nthird\tb\n", [("first\rsecond", "a"), ("third", "b")]),
    ("x.jsonl", '\ufeff{"text": "a", "label": 1e0}\r\n\r\n', [("a", "1")]),
    ("x.jsonl", '{"text": "a", "label": -0.0}\r{"text": "b", "label": true}', [("a", "0"), ("b", "true")]),
]  # fmt: skip
SENTENCES = [
    # Content, and the words and tags.
    ("\ufeffa O\r\nb B-X\r\n \t\r\nc O", [("a b", "O B-X"), ("c", "O")]),
    ("-DOCSTART- O\r\ra O\rb B-X\r\rc O\r", [("a b", "O B-X"), ("c", "O")]),
    ("New_York\t\tB-Städte\r\n", [("New_York", "B-Städte")]),
    ('" O\n\u2028 O\na\x85b\tO\n', [('" \u2028 a\x85b', "O O O")]),
    # A no-break space is a part of a word.
    ("1\u00a00  X O\r\n\u00a0\tX\tO\u00a0\n \nb \t B-L \n", [("1\u00a00 \u00a0", "O O"), ("b", "B-L")]),
    # Comments before a sentence are skipped, and number signs are words.
    ("# id 12\tdomain=train\nrome\t_\t_\tB-LOC\n\n#\tNN\tX\tO\n", [("rome", "B-LOC"), ("#", "O")]),
    ("# sent_id = 1\n# text = rome\nrome _ _ B-LOC\n\n# _ _ O\n", [("rome", "B-LOC"), ("#", "O")]),
    ("#sent_id=1\nrome B-LOC\n\n# 2\n# 17\n# O\n", [("rome", "B-LOC"), ("#", "O")]),
    ("# text = O\nrome A B B-LOC\n\n# B A O\nrome B A O\n", [("rome", "B-LOC"), ("# rome", "O O")]),
    ("# newdoc\n\n# text\trome\n# id = 1\nrome\tB-LOC\n\n#\tO\n", [("rome", "B-LOC"), ("#", "O")]),
    ("rome NNP B-NP B-LOC\n# # B-NP O\nis VBZ B-VP O\n", [("rome # is", "B-LOC O O")]),
    ("rome NNP B-NP B-LOC\n#1=best NN I-NP O\n", [("rome #1=best", "B-LOC O")]),
]  # fmt: skip
CONTEXT = "good film in rome."


def squad(*entries):
    """A file of SQuAD with questions on one context."""
    return json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": entries}]}]})


def question(id=1, text="rome", start=13, **more):
    answers = [{"text": text, "answer_start": start}]
    return {"id": id, "question": " who ", "answers": answers, **more}


TAG, QA = {"kind": "token_classification"}, {"kind": "question_answering"}
OPEN = {"id": 1, "question": "a"}  # without an answer
# Name, content, values of the config, the place, and a word of the message.
ERRORS = [
    ("x.csv", "", {}, "", "no examples"),
    ("x.csv", "text,label\n", {}, "", "no examples"),
    ("x.txt", "", {}, "", "must end in"),
    ("x.csv", "text,label\na,1\n".encode("utf-16"), {}, "", "not UTF-8"),
    ("x.csv", "text,label\na,1\n", {"text": "txt"}, ", line 2", "data.text.*did you mean text"),
    ("x.csv", "text;label\na;x\n", {}, ", line 2", "known: text;l"),
    ("x.csv", "text,label\na,x\n   \nb,y\n", {}, ", line 3", "1 columns"),
    ("x.csv", 'text,label\n"a" b,1\n', {}, ", line 2", "not CSV"),
    ("x.csv", 'text,label\na,b\n"c,d\n' + 50 * "e,f\n", {}, ", line 3", "not CSV"),  # unclosed
    ("x.csv", "text, text\na,x\n", {}, ", line 1", "same name"),
    ("x.csv", "text,label\n ,1\n", {}, ", line 2", "empty text"),
    ("x.csv", 'text,label\n"a\nb",x\nc, \n', {}, ", line 4", "needs a label"),
    ("x.jsonl", '{"text": "a", "label": 0}\n{"text', {}, ", line 2", "not JSON"),
    ("x.jsonl", "[1]", {}, ", line 1", "object"),
    ("x.jsonl", "[" * 10**5, {}, ", line 1", "recursion"),
    ("x.jsonl", '{"text": "\\ud800", "label": 0}', {}, ", line 1", "not JSON"),
    ("x.jsonl", '{"text": "a", "label": "b\\tc"}', {}, ", line 1", "tabs"),
    ("x.jsonl", '{"text": "a", "label": 1e400}', {}, ", line 1", "inf"),
    ("x.jsonl", '{"text": 3, "label": 0}', {}, ", line 1", "text, not 3"),
    ("x.csv", "text,label\na,b|c\n", {"kind": "multi_label"}, ", line 2", "JSON list"),
    ("x.csv", "text,label\na," + 9999 * "[" + "\n", {"kind": "multi_label"}, ", line 2", "JSON list"),
    ("x.jsonl", '{"text": "a", "label": ["x\\ty"]}', {"kind": "multi_label"}, ", line 1", "tabs"),
    ("x", "\n\n", TAG, "", "no sentences"),
    ("x", "b\tNN\tO\n\n\tNN\tO\n", TAG, ", line 3", "a word and its tag"),
    ("x", "b\tNN\tO\n\na\tNN\t\n", TAG, ", line 3", "a word and its tag"),
    ("x", "a O\nb\n", TAG, ", line 2", "a word and its tag"),
    ("x", "a O\nb X O\n", TAG, ", line 2", "3 columns"),
    ("x", "1\t" + 8 * "_\t" + "_\n", TAG, "", "CoNLL-U"),
    ("x.json", "{", QA, "", "is not JSON"),
    ("x.json", squad(), QA, "", "no questions"),
    ("x.json", squad({}), QA, "", "SQuAD's format"),
    ("x.json", squad(question(start=12)), QA, ", question '1'", "its context has"),
    ("x.json", squad(question(start=-5)), QA, ", question '1'", "correct answer_start"),
    ("x.json", squad(question(start=True)), QA, ", question '1'", "whole number"),
    ("x.json", squad(question(), question()), QA, "", "2 questions have the id"),
    ("x.json", squad(question(is_impossible="false")), QA, ", question '1'", "true or false"),
    ("x.json", squad({**question(), "question": " "}), QA, ", question '1'", "needs a question"),
    ("x.json", squad(OPEN, question(2)), QA, ", question '1'", "needs answers, or leave them out"),
]  # fmt: skip


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(("name", "content", "expected"), TABLES)
def test_odd_tables_are_read(tmp_path, name, content, expected):
    found = CLASSES.read_file(write(tmp_path / name, content), labeled=True)
    assert [(*example.texts, example.label) for example in found] == expected


@pytest.mark.parametrize(("content", "expected"), SENTENCES)
def test_odd_sentences_are_read(tmp_path, content, expected):
    found = TAGS.read_file(write(tmp_path / "x.conll", content), labeled=None)
    assert [(" ".join(own.texts), " ".join(own.label)) for own in found] == expected


@pytest.mark.parametrize(("name", "content", "values", "place", "word"), ERRORS)
def test_errors_name_the_file_and_the_line(tmp_path, name, content, values, place, word):
    file = write(tmp_path / name, content)
    config = FilesConfig(**{"kind": "classification", **values})
    with pytest.raises(ValueError, match=rf"^{re.escape(str(file) + place)}(?!\w).*{word}"):
        config.read_file(file, labeled=True)


def test_labels_in_one_cell_are_read_like_a_label(tmp_path):
    config = FilesConfig(kind="multi_label", separator="|")
    file = write(tmp_path / "x.csv", "text,label\na,1| 2.0 |\nb,\nc,1.0\n")
    assert [row.label for row in config.read_file(file, labeled=True)] == [["1", "2"], [], ["1"]]
    for labels in ("1.0, 2", '["1.0", " 2"]'):
        assert FilesConfig(kind="multi_label", labels=labels).known_labels == ["1", "2"]


def test_an_empty_line_between_texts_is_an_error(tmp_path):
    """If it was skipped, the predictions of the following texts would have other indices."""
    file = write(tmp_path / "new.csv", "\ntext\na\n\nb\n")
    with pytest.raises(ValueError, match="line 4"):
        CLASSES.read_file(file, labeled=False)
    write(file, "\ntext\na\nb\n\n\n")
    assert [own.texts for own in CLASSES.read_file(file, labeled=False)] == [("a",), ("b",)]


@pytest.mark.parametrize("first", [True, False])
def test_a_test_file_needs_labels_in_all_rows_or_none(tmp_path, first):
    lines = ['{"text": "a", "label": 1}', '{"text": "b"}']
    file = write(tmp_path / "x.jsonl", "\n".join(lines if first else lines[::-1]))
    with pytest.raises(ValueError, match=rf"line {2 if first else 1}.*data\.label"):
        CLASSES.read_file(file, labeled=None)
    write(file, lines[1])
    assert CLASSES.read_file(file, labeled=None)[0].label is None


def test_labels_have_a_fixed_order():
    """Integers of any number of digits are in numerical order, and O is the first tag."""
    labels = [*("0" * (9 - i) + "1" for i in range(9)), "9" * 5000]
    examples = [Example(("a",), label) for label in [*labels[::-1], "-5"]]
    assert labels_of("classification", examples) == ["-5", *labels]
    several = [Example((), ["10", "9"]), Example((), ["a"])]
    assert labels_of("multi_label", several) == ["10", "9", "a"]
    assert labels_of("token_classification", [Example((), ["B-X", "O", "A"])]) == ["O", "A", "B-X"]


def test_questions_have_their_answers(tmp_path):
    impossible = question(2, is_impossible=True)
    file = write(tmp_path / "x.json", squad(question(), impossible))
    known, unknown = QUESTIONS.read_file(file, labeled=None)
    assert (known.id, known.texts, known.label) == ("1", ("who", CONTEXT), Answers(["rome"], 13))
    assert unknown.label == Answers([], -1)
    assert QUESTIONS.read_file(file, labeled=False)[0].label is None
    open_questions = [{"id": i, "question": "who"} for i in range(2)]
    file = write(file, squad(*open_questions))
    assert [own.label for own in QUESTIONS.read_file(file, labeled=None)] == [None, None]
