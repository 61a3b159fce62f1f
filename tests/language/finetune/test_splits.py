"""Rows of own files have the tokens and labels of their texts; splits are held out by content."""

import dataclasses
import json

import numpy as np
import pytest

from language.finetune import data as files
from language.finetune.examples import IGNORED
from language.finetune.files import FilesConfig
from language.tokenizer import load_tokenizer
from tests.helpers import data_folders
from tests.language import texts
from tests.language.finetune import fakes


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(texts.write_vocabulary(tmp_path / "tokens", *fakes.WORDS, *fakes.PIECES))


def load(tokenizer, kind, file, **values):
    return files.load(FilesConfig(**{"kind": kind, "train_file": str(file), **values}), tokenizer)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_every_format_gives_the_same_rows(tmp_path, tokenizer, suffix, kind):
    file = fakes.write_rows(tmp_path / f"rows{suffix}", kind, pair=True)
    values = {"text_pair": "second", "max_len": 31, "valid_file": str(file)}
    values |= {"separator": "|"} if kind == "multi_label" else {}
    data = load(tokenizer, kind, file, **values)
    labels = data.task.labels
    assert labels == {"classification": ("neg", "pos"), "multi_label": ("fun", "odd", "sad")}[kind]
    batch = data.splits["train"].batch(np.arange(fakes.COUNT), 31)
    for row in range(fakes.COUNT):
        text, label = fakes.text(row), fakes.label(kind, fakes.text(row))
        first, second = tokenizer.encode([text, fakes.text(row, 1)])
        inputs = [tokenizer.cls_id, *first, tokenizer.sep_id, *second, tokenizer.sep_id]
        assert batch["inputs"][row][batch["mask"][row]].tolist() == inputs
        expected = [int(name in label) for name in labels]
        if kind == "classification":
            expected = labels.index(label)
        assert batch["labels"][row].tolist() == expected


def test_first_pieces_of_words_have_their_tags(tmp_path, tokenizer):
    file = tmp_path / "x.conll"
    file.write_text("films B-A\nthe I-A\n\u0007 O\n\ngoods\tnear\tO\nfilm\t-\tB-A")
    data = load(tokenizer, "token_classification", file, max_len=6, valid_file=str(file))
    assert data.task.labels == ("O", "B-A", "I-A")
    split = data.splits["train"]
    assert split.owners.tolist() == [0, 1]
    batch = split.batch(np.arange(2), 6)
    words = [[tokenizer.backend.id_to_token(id) for id in row] for row in batch["inputs"]]
    none = IGNORED
    assert words[0] == ["[CLS]", "film", "##s", "the", "[UNK]", "[SEP]"]
    assert batch["labels"][0].tolist() == [none, 1, none, 2, 0, none]
    assert words[1] == ["[CLS]", "good", "##s", "film", "[SEP]", "[PAD]"]
    assert batch["labels"][1].tolist() == [none, 0, none, 1, none, none]
    classes = np.where(batch["labels"] == none, 2, batch["labels"])
    assert data.task.predict(split, {"classes": classes}) == [
        example.label for example in split.examples
    ]
    first_only = data.task.predict(split, {"classes": classes[:1]})
    assert first_only == [split.examples[0].label]


def test_sentences_longer_than_a_row_have_several(tmp_path, tokenizer):
    file = tmp_path / "x.conll"
    tags = ["O", "B-A", "I-A", "O", "B-B"]
    words = [fakes.WORDS[i % 12] for i in range(11)]
    file.write_text("".join(f"{word} {tags[i % 5]}\n" for i, word in enumerate(words)))
    data = load(tokenizer, "token_classification", file, max_len=6, valid_file=str(file))
    split = data.splits["train"]
    batch = split.batch(np.arange(len(split)), 6)
    assert batch["mask"].sum(axis=1).tolist() == [6, 6, 5]
    assert (batch["inputs"] == tokenizer.sep_id).sum(axis=1).tolist() == [1, 1, 1]
    assert data.task.predict(split, {"classes": batch["labels"]}) == [split.examples[0].label]


@pytest.mark.parametrize("separators", [1, 2])
def test_windows_have_the_answer_at_their_labels(tmp_path, tokenizer, separators):
    """An answer of three words, at every place of a context, and a question without an answer."""
    tokenizer = dataclasses.replace(tokenizer, pair_separators=separators)
    words = [fakes.WORDS[i % 11] for i in range(40)]
    answers = [" ".join(words[i : i + 3]) for i in range(38)]
    starts = [len(" ".join(words[:i])) + bool(i) for i in range(38)]
    entries = [
        {"id": i, "question": "who", "answers": [{"text": text, "answer_start": start}]}
        for i, (text, start) in enumerate(zip(answers, starts, strict=True))
    ]
    entries.append({"id": "none", "question": "who", "answers": [], "is_impossible": True})
    paragraph = {"context": " ".join(words), "qas": entries}
    file = texts.write(tmp_path / "x.json", json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    values = {"max_len": 16, "overlap": 3, "valid_file": str(file)}
    data = load(tokenizer, "question_answering", file, **values)
    split = data.splits["train"]
    assert data.task.has_unanswerable
    assert split.count_complete(len(split)) == 39 < len(split)
    batch = split.batch(np.arange(len(split)), 16)
    outputs = {name: np.zeros(batch["inputs"].shape, np.float32) for name in ("start", "end")}
    for row, (first, last) in enumerate(batch["labels"].tolist()):
        outputs["start"][row, first], outputs["end"][row, last] = 5 + row % 2, 5
        if first:
            answer = answers[split.owners[row]]
            assert batch["inputs"][row, first : last + 1].tolist() == tokenizer.encode([answer])[0]
    predicted = data.task.predict(split, outputs)
    assert predicted == [*answers, ""]
    scores, errors = data.task.score(split, predicted)
    assert scores == {"f1": 1, "exact_match": 1}
    assert errors == {"f1": 0, "exact_match": 0}


def test_validation_is_held_out_without_shared_contexts(tmp_path, tokenizer):
    file = fakes.write_squad(tmp_path / "train.json", unanswerable=True)
    data = load(tokenizer, "question_answering", file, valid_share=0.3)
    contexts = [{own.texts[1] for own in data.splits[name].examples} for name in ("train", "valid")]
    assert not contexts[0] & contexts[1]
    assert [len(own) for own in contexts] == [9, 3]
    again = load(tokenizer, "question_answering", file, valid_share=0.3, max_len=64)
    assert again.sha256 == data.sha256


JSON = '{"text": "a", "label": %s}\n{"text": "b", "label": 1}'
ROWS = "text,label\ngood film,1\nbad film,0\n"
# Kind, name, content, values of the config, and a word of the message.
INVALID = [
    ("classification", "x.csv", "text,label\na,1\nb,1\n", {}, "only the label '1'"),
    ("classification", "x.csv", ROWS, {"labels": "1,2"}, "line 3.*not among the labels 1, 2"),
    ("classification", "x.csv", ROWS, {"labels": '["1"]'}, "data.labels.*two or more"),
    ("classification", "x.csv", ROWS, {"labels": "0,1,"}, "data.labels.*not empty"),
    ("classification", "x.csv", ROWS, {"labels": "[1, 2]"}, "data.labels.*commas"),
    ("classification", "x.csv", ROWS, {"metric": "f2"}, "data.metric: 'f2'"),
    ("classification", "x.csv", ROWS, {"metric": "macro_f1"}, "data.metric='macro_f1'.*0, 1"),
    ("classification", "x.csv", "text,label\na,1\na,0\n", {}, "x.csv: a validation set"),
    ("classification", "x.csv", ROWS, {"overlap": 3}, "data.overlap=3.*does not use"),
    ("classification", "x.csv", ROWS, {"max_len": 2}, "data.max_len=2.*at least 3"),
    ("classification", "x.csv", ROWS, {"examples": -1}, "data.examples"),
    ("classification", "x.csv", ROWS, {"valid_share": 1.0}, "data.valid_share"),
    ("classification", "x.csv", ROWS, {"train_file": ""}, "data.train_file"),
    ("classification", "x.csv", ROWS, {"valid_file": "none.csv"}, "none.csv does not exist"),
    ("regression", "x.csv", "text,label\nb,good\na,1\n", {}, "line 2.*'good'"),
    ("regression", "x.csv", "text,label\nb,1_0\na,1\n", {}, "line 2.*'1_0'"),
    ("regression", "x.csv", "text,label\nb,1e39\na,1\n", {}, "line 2.*'1e39'"),
    ("regression", "x.jsonl", JSON % "null", {}, "line 1.*number"),
    ("regression", "x.jsonl", JSON % ("1" + "0" * 400), {}, "line 1.*number"),
    ("regression", "x.csv", ROWS, {"labels": "1,2"}, "data.labels='1,2'"),
    ("multi_label", "x.csv", "text,label\na,[]\nb,[]\n", {}, "no labels"),
    ("multi_label", "x.csv", "text,label\na,[]\nb,[2]\n", {}, "only the label '2'"),
    ("token_classification", "x.txt", "a O\n", {"text_pair": "b"}, "data.text_pair='b'"),
    ("token_classification", "x.txt", "a O\nb O\n", {}, "two or more"),
    ("question_answering", "x.json", "{}", {"max_len": 20, "overlap": 10}, "data.overlap=10"),
]


@pytest.mark.parametrize(("kind", "name", "content", "values", "word"), INVALID)
def test_errors_leave_no_data(tmp_path, tokenizer, kind, name, content, values, word):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=word):
        load(tokenizer, kind, file, **values)
    assert data_folders() == []


def test_labels_that_only_validation_has_are_an_error(tmp_path, tokenizer):
    train, valid = tmp_path / "train.csv", tmp_path / "valid.csv"
    train.write_text(ROWS)
    valid.write_text("text,label\ngood,1\nbad,maybe\n")
    with pytest.raises(ValueError, match=r"valid.csv, line 3: the label 'maybe' is not among"):
        load(tokenizer, "classification", train, valid_file=str(valid))
    labels = "0,1,maybe"
    data = load(tokenizer, "classification", train, valid_file=str(valid), labels=labels)
    assert data.splits["valid"].labels.tolist() == [1, 2]
