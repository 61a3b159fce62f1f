"""Odd but legal files are read, or refused with their name and line."""

import re

import pytest

from language.files import FilesConfig, conll, rows

LONG = "a" * 200_000  # longer than a field of the module csv may be by default
READ = [
    # Name, content, and the texts and labels.
    ("x.csv", "\ufefftext,label\r\na,x\r\n\r\nb,y", [("a", "x"), ("b", "y")]),
    ("x.csv", '"text",label\ra,x\r"b\nc",y\r', [("a", "x"), ("b\nc", "y")]),
    ("x.csv", " text ,label\t\n a , x \nb,x\u00a0\n", [("a", "x"), ("b", "x")]),
    ("x.csv", "text,label,\na,NaN,\nb,None,\n", [("a", "NaN"), ("b", "None")]),
    ("x.csv", f"text,label\n{LONG},é\nb,日本\n", [(LONG, "é"), ("b", "日本")]),
    ("x.csv", "text,label\na\u2028b\x85c\x0cd,x\n", [("a\u2028b\x85c\x0cd", "x")]),
    ("x.tsv", 'text\tlabel\n"a\t01\n\n\nb"\t1.000\n', [('"a', "01"), ('b"', "1")]),
    ("x.tsv", "text\tlabel\ra\tTrue\rb\t+1\r", [("a", "True"), ("b", "+1")]),
    ("x.jsonl", '\ufeff{"text": "a", "label": 1e0}\r\n\r\n', [("a", "1")]),
    ("x.jsonl", '{"text": "a", "label": -0.0}\r{"text": "b", "label": true}', [("a", "0"), ("b", "true")]),
]  # fmt: skip
REFUSED = [
    ("x.csv", "text,label\na,x\n   \nb,y\n", ", line 3, has 1 columns"),
    ("x.csv", "# a comment\ntext,label\n", ", line 2, has 2 columns"),
    ("x.csv", "text;label\na;x\n", ", line 2: the column 'text' (data.text) is missing; known: text;l"),
    ("x.csv", "text,label,,\na,x,,\n", ", line 1: two columns have the same name"),
    ("x.csv", "text, text\na,x\n", ", line 1: two columns have the same name"),
    ("x.csv", 'text,label\n"a\nb",x\nc, \n', ", line 4: the column 'label' needs a label"),
    ("x.tsv", "text\tlabel\na\tx\rb\ty\n", ", line 2, has 3 columns"),
    ("x.tsv", "text\tlabel\ncafé\tx\n".encode("latin-1"), " is not UTF-8 text: byte 15 is 0xe9"),
    ("x.jsonl", '{"text": "a", "label": 1e400}', ", line 1: the column 'label' needs a label, not inf"),
    ("x.jsonl", '[{"text": "a", "label": 1},\n', ", line 1 is not JSON"),
]  # fmt: skip
SENTENCES = [
    ("\ufeffa O\r\nb B-X\r\n \t\r\nc O", [(["a", "b"], ["O", "B-X"]), (["c"], ["O"])]),
    ("-DOCSTART- O\r\ra O\rb B-X\r\rc O\r", [(["a", "b"], ["O", "B-X"]), (["c"], ["O"])]),
    ("New York\t\tB-Städte\r\n", [(["New York"], ["B-Städte"])]),
    ('" O\n\u2028 O\na\x85b\tO\n', [(['"', "\u2028", "a\x85b"], ["O"] * 3)]),
]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(("name", "content", "expected"), READ)
def test_odd_tables_are_read(tmp_path, name, content, expected):
    config = FilesConfig(kind="classification")
    records = rows.read(write(tmp_path / name, content), config, labeled=True)
    found = [(*record.texts, record.label) for record in records]
    assert found == expected


@pytest.mark.parametrize(("name", "content", "words"), REFUSED)
def test_other_tables_are_refused_with_the_line(tmp_path, name, content, words):
    file = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file) + words)}"):
        rows.read(file, FilesConfig(kind="classification"), labeled=True)


def test_labels_in_one_cell_are_read_like_a_label(tmp_path):
    config = FilesConfig(kind="multi_label", separator="|")
    file = write(tmp_path / "x.csv", "text,label\na,1| 2.0 |\nb,\nc,1.0\n")
    assert [row.label for row in rows.read(file, config, labeled=True)] == [["1", "2"], [], ["1"]]
    write(file, 'text,label\na,"x|y\tz"\n')
    with pytest.raises(ValueError, match=r"line 2: .* without tabs"):
        rows.read(file, config, labeled=True)


@pytest.mark.parametrize(("content", "expected"), SENTENCES)
def test_odd_sentences_are_read(tmp_path, content, expected):
    file = write(tmp_path / "x.conll", content)
    records = conll.read(file, FilesConfig(kind="token_classification"), labeled=True)
    assert [record.sentence for record in records] == expected


@pytest.mark.parametrize("line", ["\tNN\tO", "a\tNN\t", "a\tNN\t\u00a0", "\tO", "a\t", "\u00a0"])
def test_a_line_without_its_word_or_tag_is_refused(tmp_path, line):
    """An empty first or last column is not the column beside it."""
    file = write(tmp_path / "x.conll", f"b\tNN\tO\n\n{line}\n")
    with pytest.raises(ValueError, match="line 3: needs a word and its tag"):
        conll.read(file, FilesConfig(kind="token_classification"), labeled=True)
