"""Rows of own files have the tokens and labels of their texts; splits are held out by content."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pytest

from dataprep.holdout import held_out_share
from language import files
from language.files import FilesConfig, conll, rows, squad
from language.tasks.tagging import IGNORED
from language.tokenizer import load_tokenizer
from tests.helpers import data_folders
from tests.language.files import fakes


@pytest.fixture
def tokenizer(tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    tokens = [*fakes.SPECIAL, *fakes.WORDS, *fakes.PIECES]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return load_tokenizer(folder)


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
    assert data.task.predict(split, {"classes": classes}) == [s.tags for s in split.sentences]
    first_only = data.task.predict(split, {"classes": classes[:1]})
    assert first_only == [split.sentences[0].tags]


def test_no_break_spaces_are_parts_of_words(tmp_path):
    file = tmp_path / "x.conll"
    file.write_text("10\u00a0000  X O\r\n\u00a0\tX\tO\u00a0\n \nrome \t B-LOC \n")
    records = conll.read(file, FilesConfig(kind="token_classification"), labeled=True)
    assert [record.sentence for record in records] == [
        (["10\u00a0000", "\u00a0"], ["O", "O"]),
        (["rome"], ["B-LOC"]),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "# id 12\tdomain=train\nrome\t_\t_\tB-LOC\n\n#\tNN\tX\tO\n",
        "# sent_id = 1\n# text = rome\nrome _ _ B-LOC\n\n# _ _ O\n",
        "#sent_id=1\nrome B-LOC\n\n# 2\n# 17\n# O\n",  # two comments, then a word
        "# text = O\nrome A B B-LOC\n\n# B A O\nrome B A O\n",
        "# newdoc\n\n# text\trome\n# id = 1\nrome\tB-LOC\n\n#\tO\n",
    ],
)
def test_comments_before_a_sentence_are_skipped_and_number_signs_are_words(tmp_path, text):
    file = tmp_path / "x.conll"
    file.write_text(text)
    records = conll.read(file, FilesConfig(kind="token_classification"), labeled=None)
    first, second = (record.sentence for record in records)
    assert first == (["rome"], ["B-LOC"])
    assert (second.words[0], second.tags[0]) == ("#", "O")


@pytest.mark.parametrize("word", ["# # B-NP O", "#1=best NN I-NP O"])
def test_a_number_sign_with_its_own_tags_is_a_word(tmp_path, word):
    file = tmp_path / "x.conll"
    file.write_text(f"rome NNP B-NP B-LOC\n{word}\nis VBZ B-VP O\n")
    [record] = conll.read(file, FilesConfig(kind="token_classification"), labeled=None)
    assert record.sentence.words[1] == word.split()[0]


def test_conll_u_is_an_error_because_its_first_column_is_a_number(tmp_path):
    file = tmp_path / "x.conllu"
    rows = [f"{i}\t{word}{8 * chr(9)}_" for i, word in enumerate(("rome", "fell"), 1)]
    file.write_text("# sent_id = 1\n" + "\n".join(rows))
    with pytest.raises(ValueError, match="CoNLL-U"):
        conll.read(file, FilesConfig(kind="token_classification"), labeled=None)


def test_hashtags_are_words_and_lines_with_fewer_columns_are_an_error(tmp_path):
    file, config = tmp_path / "x.conll", FilesConfig(kind="token_classification")
    file.write_text("#rome B-LOC\nis O\n\n#nice X\n")
    records = conll.read(file, config, labeled=True)
    assert [record.sentence.words for record in records] == [["#rome", "is"], ["#nice"]]
    file.write_text("rome B-LOC\n# id 12\n\n#nice\n")
    with pytest.raises(ValueError, match="line 2: has 3 columns"):
        conll.read(file, config, labeled=True)
    file.write_text("rome B-LOC\n\n#nice\n")
    with pytest.raises(ValueError, match="line 3: needs a word and its tag"):
        conll.read(file, config, labeled=True)


def test_a_file_of_words_without_tags_may_have_comments(tmp_path):
    file = tmp_path / "x.conll"
    file.write_text("# sent_id = 1\nrome\n#\n\n# 17\n#1\n")
    records = conll.read(file, FilesConfig(kind="token_classification"), labeled=None)
    assert [record.sentence for record in records] == [(["rome", "#"], None), (["#1"], None)]


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
    assert data.task.predict(split, {"classes": batch["labels"]}) == [split.sentences[0].tags]


@pytest.mark.parametrize("separators", [1, 2])
def test_labels_of_windows_are_inside_them(tmp_path, tokenizer, separators):
    """An answer of three words, at every place of a context."""
    tokenizer = dataclasses.replace(tokenizer, pair_separators=separators)
    words = [fakes.WORDS[i % 11] for i in range(40)]
    context = " ".join(words)
    starts = [len(" ".join(words[:i])) + bool(i) for i in range(38)]
    ends = [len(" ".join(words[: i + 3])) for i in range(38)]
    answers = [context[a:b] for a, b in zip(starts, ends, strict=True)]
    entries = [
        {"id": i, "question": "who", "answers": [{"text": text, "answer_start": start}]}
        for i, (text, start) in enumerate(zip(answers, starts, strict=True))
    ]
    file = tmp_path / "train.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": entries}]}]}))
    values = {"max_len": 16, "overlap": 3, "valid_file": str(file)}
    split = load(tokenizer, "question_answering", file, **values).splits["train"]
    batch = split.batch(np.arange(len(split)), 16)
    found = set()
    for row, (first, last) in enumerate(batch["labels"].tolist()):
        if first:
            answer = answers[split.owners[row]]
            assert batch["inputs"][row, first : last + 1].tolist() == tokenizer.encode([answer])[0]
            found.add(int(split.owners[row]))
    assert found == set(range(38))


@pytest.mark.parametrize("separators", [1, 2])
def test_windows_have_the_answer_at_their_labels(tmp_path, tokenizer, separators):
    tokenizer = dataclasses.replace(tokenizer, pair_separators=separators)
    file = fakes.write_squad(tmp_path / "train.json", unanswerable=True)
    values = {"max_len": 20, "overlap": 4, "valid_file": str(file)}
    data = load(tokenizer, "question_answering", file, **values)
    split = data.splits["train"]
    assert data.task.has_unanswerable
    assert split.count_complete(len(split)) == fakes.COUNT < len(split)
    batch = split.batch(np.arange(len(split)), 20)
    answered = set()
    outputs = {name: np.zeros(batch["inputs"].shape, np.float32) for name in ("start", "end")}
    for row, (first, last) in enumerate(batch["labels"]):
        outputs["start"][row, first], outputs["end"][row, last] = 5 + row % 2, 5
        if first:
            token = tokenizer.backend.id_to_token(batch["inputs"][row, first])
            assert (token, first) == ("rome", last)
            answered.add(split.questions[split.owners[row]].id)
    assert answered == {f"q{i}" for i in range(fakes.COUNT // 2)}
    predicted = data.task.predict(split, outputs)
    assert predicted == ["rome" if q.answers else "" for q in split.questions]
    scores, errors = data.task.score(split, predicted)
    assert scores == {"f1": 1, "exact_match": 1}
    assert errors == {"f1": 0, "exact_match": 0}


def test_held_out_examples_stay_together_and_do_not_depend_on_the_order():
    contents = [b"%d" % (i % 40) for i in range(60)]
    mask = held_out_share(contents, 0.2, seed=3)
    assert 8 <= mask.sum() <= 12
    selected = {content for content, chosen in zip(contents, mask, strict=True) if chosen}
    assert all(
        (content in selected) == chosen for content, chosen in zip(contents, mask, strict=True)
    )
    assert (held_out_share(contents[::-1], 0.2, seed=3)[::-1] == mask).all()
    assert (held_out_share(contents, 0.2, seed=4) != mask).any()
    for share in (1e-9, 1 - 1e-9):
        assert 0 < held_out_share(contents, share, seed=0).sum() < 60


@pytest.mark.parametrize("copies", [150, 500])
def test_a_frequent_content_does_not_shrink_the_held_out_share(copies):
    contents = [b"frequent"] * copies + [b"%d" % i for i in range(1000 - copies)]
    for seed in range(30):
        mask = held_out_share(contents, 0.1, seed)
        assert mask.sum() == 100
        assert not mask[0]


def test_the_rarest_content_is_held_out_if_none_fits():
    mask = held_out_share([b"a"] * 5 + [b"b"] * 2 + [b"c"] * 3, 0.1, seed=0)
    assert mask.nonzero()[0].tolist() == [5, 6]


def test_validation_is_held_out_without_shared_contexts(tmp_path, tokenizer):
    file = fakes.write_squad(tmp_path / "train.json", unanswerable=True)
    data = load(tokenizer, "question_answering", file, valid_share=0.3)
    contexts = [{q.context for q in data.splits[name].questions} for name in ("train", "valid")]
    assert not contexts[0] & contexts[1]
    assert [len(own) for own in contexts] == [9, 3]
    again = load(tokenizer, "question_answering", file, valid_share=0.3, max_len=64)
    assert again.sha256 == data.sha256


ROWS = 'text,label\ngood film,1\nbad film,0\n"a, b",1\n'
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "good film in rome",
                    "qas": [
                        {
                            "id": 1,
                            "question": "who",
                            "answers": [{"text": "rome", "answer_start": 13}],
                        }
                    ],
                }
            ]
        }
    ]
}


SHIFTED = json.dumps(SQUAD).replace("13", "12")
NEGATIVE = json.dumps(SQUAD).replace("13", "-5").replace("in rome", "in rome.")
TWICE = json.dumps({"data": SQUAD["data"] * 2})
# Name, content, values of the config, and a part of the message.
INVALID = {
    "classification": [
        ("x.csv", ROWS, {"text": "txt"}, "line 2: the column 'txt' (data.text) is missing"),
        ("x.csv", ROWS, {"text": "txt"}, "did you mean text?"),
        ("x.csv", ROWS, {"text_pair": "b"}, "the column 'b' (data.text_pair) is missing"),
        ("x.csv", ROWS, {"label": "y"}, "the column 'y' (data.label) is missing"),
        ("x.csv", "", {}, "x.csv has no examples"),
        ("x.csv", "text,label\n", {}, "x.csv has no examples"),
        ("x.txt", ROWS, {}, "x.txt must end in .tsv or .csv or .jsonl"),
        ("x.csv", ROWS.encode("utf-16"), {}, "x.csv is not UTF-8 text: byte 1 is 0xff. Convert it"),
        ("x.csv", "text,label\na b\n", {}, "line 2, has 1 columns instead of 2"),
        ("x.csv", 'text,label\n"a" b,1\n', {}, "line 2, is not CSV"),
        ("x.csv", "text,text\na,1\n", {}, "line 1: two columns have the same name"),
        ("x.csv", "text,label\n ,1\n", {}, "line 2: the column 'text' needs a text, not an empty"),
        ("x.csv", "text,label\na,\n", {}, "line 2: the column 'label' needs a label, not ''"),
        ("x.csv", "text,label\na,1\nb,1\n", {}, "has only the label '1', and classification needs two"),
        ("x.csv", ROWS, {"labels": "1,2"}, "line 3: the label '0' is not among the labels 1, 2"),
        ("x.csv", ROWS, {"labels": '["1"]'}, "data.labels: needs two or more different labels"),
        ("x.csv", ROWS, {"labels": "0,1,"}, "different labels that are not empty, got '0', '1', ''."),
        ("x.csv", ROWS, {"labels": "[1, 2]"}, "data.labels: needs labels separated by commas"),
        ("x.csv", ROWS, {"metric": "f2"}, "data.metric: 'f2' is not a metric that can select"),
        ("x.csv", ROWS, {"metric": "macro_f1"}, "data.metric='macro_f1' does not suit the labels 0, 1"),
        ("x.csv", "text,label\na,1\na,0\n", {}, "x.csv: a validation set is held out of it, which needs"),
        ("x.csv", ROWS, {"overlap": 3}, "data.overlap=3: classification does not use this key; leave it"),
        ("x.csv", ROWS, {"max_len": 2}, "data.max_len=2: an example for classification needs at least 3"),
        ("x.csv", ROWS, {"train_file": ""}, "data.train_file: needs the path of the training examples"),
        ("x.csv", ROWS, {"valid_file": "none.csv"}, "data.valid_file: none.csv does not exist"),
        ("x.jsonl", "{}", {}, "line 1: the column 'text' (data.text) is missing"),
        ("x.jsonl", '{"text": "a", "label": 0}\n{"text', {}, "line 2 is not JSON"),
        ("x.jsonl", "[1]", {}, "line 1 is not a JSON object"),
        ("x.jsonl", "[" * 10**5, {}, "line 1 is not JSON (maximum recursion depth exceeded"),
        ("x.jsonl", '{"text": "\\ud800", "label": 0}', {}, "line 1 is not JSON ('utf-8' codec can't encode"),
        ("x.jsonl", '{"text": "a", "label": "b\\tc"}', {}, "needs a label without tabs and line breaks"),
        ("x.jsonl", '{"text": "a", "label": NaN}', {}, "line 1: the column 'label' needs a label, not nan"),
        ("x.jsonl", '{"text": 3, "label": 0}', {}, "line 1: the column 'text' needs a text, not 3"),
    ],
    "regression": [
        ("x.csv", "text,label\nb,good\n", {}, "line 2: the column 'label' needs a number, not 'good'"),
        ("x.csv", "text,label\nb,1_0\n", {}, "line 2: the column 'label' needs a number, not '1_0'"),
        ("x.csv", "text,label\nb,1e39\n", {}, "line 2: the column 'label' needs a number, not '1e39'"),
        ("x.jsonl", '{"text": "a", "label": 1%s}' % ("0" * 400), {}, "line 1: the column 'label' needs a"),
        ("x.csv", ROWS, {"labels": "1,2"}, "data.labels='1,2': regression does not use this key"),
    ],
    "multi_label": [
        ("x.csv", "text,label\na,b|c\n", {}, "line 2: the column 'label' needs a JSON list of labels"),
        ("x.csv", 'text,label\na,"[""\\ud83d""]"\n', {}, "line 2: the column 'label' needs a JSON list"),
        ("x.csv", "text,label\na," + 9999 * "[" + "\n", {}, "line 2: the column 'label' needs a JSON"),
        ("x.csv", "text,label\na,[]\nb,[]\n", {}, "x.csv has no labels, and multi_label needs two"),
        ("x.csv", "text,label\na,[]\nb,[2]\n", {}, "only the label '2', and multi_label needs two"),
    ],
    "token_classification": [
        ("x.txt", "a O\nb\n", {}, "line 2: needs a word and its tag"),
        ("x.txt", "\n\n", {}, "x.txt has no sentences"),
        ("x.txt", "a O\n", {"text_pair": "b"}, "data.text_pair='b': token_classification does not use"),
        ("x.txt", "a O\nb O\n", {}, "token_classification needs two or more: add examples with other"),
    ],
    "question_answering": [
        ("x.json", "{", {}, "x.json is not JSON"),
        ("x.json", '{"data": [{}]}', {}, "x.json is not in SQuAD's format"),
        ("x.json", '{"data": []}', {}, "x.json has no questions"),
        ("x.json", SHIFTED, {}, "question '1': the answer is 'rome', but its context has"),
        ("x.json", NEGATIVE, {}, "'rome' at character -5: correct answer_start"),
        ("x.json", TWICE, {}, "2 questions have the id"),
        ("x.json", SHIFTED.replace('"id"', '"is_impossible": "false", "id"'), {}, "must be true or false"),
        ("x.json", re.sub(r'"answer_start": -?\d+', '"answer_start": true', SHIFTED), {}, "a whole number"),
        ("x.json", "{}", {"max_len": 20, "overlap": 10}, "data.overlap=10: needs less than half of"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "content", "values", "sentence"),
    [(kind, *case) for kind, cases in INVALID.items() for case in cases],
)
def test_errors_name_the_place_and_nothing_is_left(
    tmp_path, tokenizer, kind, name, content, values, sentence
):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        load(tokenizer, kind, file, **values)
    assert sentence in str(error.value)
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


def test_an_empty_line_between_texts_is_an_error(tmp_path):
    """If it was skipped, the predictions of the following texts would have other indices."""
    config, file = FilesConfig(kind="classification"), tmp_path / "new.csv"
    file.write_text("\ntext\na\n\nb\n")
    with pytest.raises(
        ValueError, match=r"new.csv, line 4: the column 'text' needs a text, not an"
    ):
        rows.read(file, config, labeled=False)
    file.write_text("\ntext\na\nb\n\n\n")
    assert [record.texts for record in rows.read(file, config, labeled=False)] == [("a",), ("b",)]
    file.write_text("text,other\na,1\n\nb,2\n")
    assert len(rows.read(file, config, labeled=False)) == 2


def test_labels_of_equal_numbers_have_a_fixed_order():
    """Their order is not that of a set, which differs between processes."""
    labels = ["0" * (9 - i) + "1" for i in range(9)]
    records = [rows.Record("", ("a",), label) for label in [*labels[::-1], "-5"]]
    assert rows.labels_of(records, FilesConfig(kind="classification")) == ["-5", *labels]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "x.jsonl",
            '{"text": "a", "label": 1}\n{"text": "b", "label": 1.0}\n{"text": "c", "label": 0.5}\n',
        ),
        ("x.csv", "text,label\na,1\nb,1.0\nc,0.5\n"),
        ("x.tsv", "text\tlabel\na\t1.00\nb\t1\nc\t0.5\n"),
    ],
)
def test_equal_numbers_are_one_label(tmp_path, name, content):
    config = FilesConfig(kind="classification")
    file = tmp_path / name
    file.write_text(content)
    records = rows.read(file, config, labeled=True)
    assert rows.labels_of(records, config) == ["0.5", "1"]


@pytest.mark.parametrize("first", [True, False])
def test_a_test_file_needs_labels_in_all_rows_or_none(tmp_path, first):
    lines = ['{"text": "a", "label": 1}', '{"text": "b"}']
    file = tmp_path / "x.jsonl"
    file.write_text("\n".join(lines if first else lines[::-1]))
    with pytest.raises(
        ValueError, match=rf"line {2 if first else 1}: the column 'label' \(data.label\) is missing"
    ):
        rows.read(file, FilesConfig(kind="classification"), labeled=None)
    file.write_text(lines[1])
    assert rows.read(file, FilesConfig(kind="classification"), labeled=None)[0].label is None


def test_labels_of_any_number_of_digits_are_in_numerical_order():
    records = [rows.Record("", ("a",), label) for label in ("9" * 5000, "10", "9")]
    labels = rows.labels_of(records, FilesConfig(kind="classification"))
    assert labels == ["9", "10", "9" * 5000]


def test_a_carriage_return_is_text_within_a_line_of_tsv(tmp_path):
    file = tmp_path / "x.tsv"
    file.write_bytes(b"text\tlabel\r\nfirst\rsecond\ta\r\nthird\tb\n")
    config = FilesConfig(kind="classification", train_file=str(file))
    assert [row.texts for row in rows.read(file, config, labeled=True)] == [
        ("first\rsecond",),
        ("third",),
    ]


def test_an_unclosed_quote_is_reported_at_its_first_line(tmp_path):
    file = tmp_path / "x.csv"
    file.write_text('text,label\na,b\n"c,d\n' + 50 * "e,f\n")
    config = FilesConfig(kind="classification", train_file=str(file))
    with pytest.raises(ValueError, match=r"x\.csv, line 3, is not CSV"):
        rows.read(file, config, labeled=True)


def test_a_test_file_needs_answers_in_all_questions_or_none(tmp_path):
    qas = [{"id": 1, "question": "a?"}, {"id": 2, "question": "b?", "is_impossible": True}]
    file = tmp_path / "x.json"
    content = {"data": [{"paragraphs": [{"context": "c", "qas": qas}]}]}
    file.write_text(json.dumps(content))
    config = FilesConfig(kind="question_answering", train_file=str(file))
    with pytest.raises(ValueError, match="question '1': needs answers, or leave them out of all"):
        squad.read(file, config, labeled=None)
    del qas[1]["is_impossible"]
    file.write_text(json.dumps(content))
    assert [question.answers for question in squad.read(file, config, labeled=None)] == [None] * 2


def test_quotes_are_text_in_tsv_and_quotes_in_csv(tmp_path, tokenizer):
    csv, tsv = tmp_path / "x.csv", tmp_path / "x.tsv"
    csv.write_text('\ufefftext,label\n"good, ""bad""\nfilm",10\nthe,9\n')
    tsv.write_text('text\tlabel\n"good\t10\nthe\t9\n')
    for file, words in ((csv, ["good", "bad", "film"]), (tsv, ["good"])):
        data = load(tokenizer, "classification", file, valid_file=str(file))
        assert data.task.labels == ("9", "10")  # integers in numerical order
        row = data.splits["train"].batch(np.array([0]), 19)
        known = {id for word in fakes.WORDS for id in tokenizer.encode([word])[0]}
        kept = [id for id in row["inputs"][0].tolist() if id in known]
        assert kept == list(itertools.chain(*tokenizer.encode(words)))
