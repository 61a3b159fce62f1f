import gzip
import json
import re

import pytest

from language.corpus import documents
from language.corpus.documents import open_source
from tests.language import texts
from tests.lra.data.fakes import write_tfds

# Each form, the separator to read it with, and the separator that is inferred.
FORMS = {
    "blank_line": ("blank_line", "blank_line"),
    "blank_line.gz": ("blank_line", "blank_line"),
    "heading": ("heading", "spaced_heading"),
    "close_heading": ("heading", "heading"),
    "file": ("file", "file"),
    "line": ("line", "line"),
    "jsonl": ("auto", "line"),
    "jsonl.gz": ("auto", "line"),
}
DOCS = texts.documents(53)


def read(path, source="auto", documents="auto"):
    return list(open_source(str(path), source, documents).documents())


def kind(path, documents="auto"):
    return open_source(str(path), documents=documents).stamp()["documents"]


@pytest.fixture(params=FORMS)
def form(request, tmp_path):
    """The path, the separators and the documents of a corpus in each form."""
    docs = [doc.replace("\n", " ") for doc in DOCS] if request.param == "line" else DOCS
    return texts.in_form(request.param, DOCS, tmp_path), *FORMS[request.param], docs


# --- Every document once, in order


def test_reads_every_document_and_infers_what_separates_them(form):
    path, separator, inferred, docs = form
    assert read(path, documents=separator) == docs
    assert kind(path) == inferred
    assert read(path) == read(path.parent) == docs


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    for name in ("b/x.txt", "a.txt", "b/a/z", "c.txt.gz", ".hidden", "b/.git/config"):
        texts.write(tmp_path / name, f"Text of {name}.")
    names = ("a.txt", "b/a/z", "b/x.txt", "c.txt.gz")
    assert read(tmp_path) == [f"Text of {name}." for name in names]


@pytest.mark.parametrize("text", [" Ä text. \t\n", " Ä text. \t\r\n", " = Title = \nÄ text.\n"])
@pytest.mark.parametrize("documents", ["blank_line", "heading", "line", "file"])
def test_byte_order_marks_and_carriage_returns_are_not_text(tmp_path, documents, text):
    title = ["= Title ="] * ("=" in text and documents != "heading")
    path = texts.write(tmp_path / "x.txt", f"\ufeff{text}")
    assert "\n".join(read(path, documents=documents)).split("\n") == [*title, "Ä text."]


def test_headings_of_documents_and_of_sections_are_dropped(tmp_path):
    text = (
        "Before. \n = One = \n A = b = c .\n = = Part = = \n = = = 5 = = = \nMore .\n"
        "= E = mc =\n== Part ==\nEnd.\n = Empty = \n"
    )
    path = texts.write(tmp_path / "wiki.tokens", text)
    assert read(path, documents="heading") == ["Before.", "A = b = c .\nMore .", "End."]


def test_lines_like_headings_are_text_if_headings_are_spaced(tmp_path):
    text = " \n = One = \n \n Key : G \n = Goals ; A = \n Points . \n \n = = P = = \n \n More .\n"
    path = texts.write(tmp_path / "wiki.tokens", text + " = Two = \n \n = = 2 = = \nEnd . ")
    assert kind(path) == kind(path, "heading") == "spaced_heading"
    first = "Key : G\n= Goals ; A =\nPoints .\nMore ."
    assert read(path) == read(path, documents="heading") == [first, "End ."]


def test_source_selects_text_or_json_of_one_folder(tmp_path):
    texts.write(tmp_path / "a.txt", "Text.")
    texts.write(tmp_path / "b.jsonl", '{"text": "Json."}\n\n{"text": ""}\n')
    assert read(tmp_path, "text") == ["Text."]
    assert read(tmp_path, "jsonl") == ["Json."]
    assert read(tmp_path / "b.jsonl", "text", "line")[0] == '{"text": "Json."}'
    (tmp_path / "b.jsonl").rename(tmp_path / "b.json")
    assert read(tmp_path, "jsonl") == read(tmp_path / "b.json") == ["Json."]


def test_stamp_depends_on_text_and_separator(tmp_path):
    path = texts.write(tmp_path / "a.txt", "One.\n\nTwo.")
    stamps = [open_source(str(path)).stamp(), open_source(str(path), documents="line").stamp()]
    path.write_text("One.\n\nTwo. Three.")
    stamps.append(open_source(str(path)).stamp())
    assert len({json.dumps(stamp) for stamp in stamps}) == 3


def test_reads_one_document_at_a_time(tmp_path):
    """The first document of a file is yielded before the rest is read."""
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "A text."}\n' * 50_000)[:-100])
    assert next(open_source(str(path)).documents()) == "A text."


def test_reads_a_tensorflow_dataset(tmp_path):
    features = lambda connectors: dict.fromkeys(("text", "title"), connectors.Text())
    rows = {"train": [{"text": doc, "title": "x"} for doc in (*DOCS, " \n")]}
    path = write_tfds(tmp_path, "corpus", features, rows, disable_shuffling=True).parent
    assert read(path) == read(path / "1.0.0") == read(path, "tfds", "line") == DOCS
    with pytest.raises(ValueError, match=r"data\.documents"):
        open_source(str(path), documents="heading")
    info = path / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    for at in (path, path / "1.0.0"):
        with pytest.raises(FileNotFoundError, match="tfrecord"):
            open_source(str(at))


# --- Faults

NO_UTF8 = "Näive.\n\nOne line.\nNa".encode() + b"\xefve.\n\nMore."
NO_DOCUMENTS = ["{", "[]", "5", '"a"', '{"txt": "a"}', '{"text": 5}', '{"text": "\\ud800"}']
ARCHIVE = gzip.compress("\n".join(json.dumps({"text": doc}) for doc in DOCS).encode(), mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.txt", NO_UTF8, "byte 22 is 0xef"),
        ("x.txt.gz", gzip.compress(NO_UTF8, mtime=0), "byte 22 is 0xef"),
        *(
            ("x.jsonl", f'{{"text": "ä"}}\n{line}\n'.encode(), "at byte 16")
            for line in (*NO_DOCUMENTS, "[" * 99_999)
        ),
        ("x.jsonl.gz", ARCHIVE[:-50], "corrupt"),
        ("x.jsonl.gz", ARCHIVE[:100] + b"xxxxx" + ARCHIVE[105:], "corrupt"),
        ("x.jsonl.gz", b"no archive", "corrupt"),
        ("x.txt", b"One.\rTwo.\r\rThree.\r", "carriage returns"),
        ("x.txt", "\ufeffOne.\r\rTwo.".encode(), "carriage returns"),
    ],
)
def test_error_names_the_file_and_the_position(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"/{re.escape(name)} .*{words}"):
        read(tmp_path / name)


def test_error_names_a_document_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 2**20)
    path = texts.write(tmp_path / "x.txt", "Short.\n\n" + "A line without an end.\n" * 60_000)
    with pytest.raises(ValueError, match=r"1 MiB, from byte 9 .*data\.documents=blank_line"):
        read(path)
    assert len(read(path, documents="line")) == 60_001


@pytest.mark.parametrize(
    ("file", "options", "error", "words"),
    [
        ("", {}, ValueError, r"data\.dir"),
        ("x/none", {}, FileNotFoundError, "/none"),
        ("x/empty", {}, FileNotFoundError, "no text file"),
        ("x/a.txt", {"source": "jsonl"}, ValueError, r"a\.txt needs a JSON object"),
        ("x/text", {"source": "jsonl"}, FileNotFoundError, "no JSON lines"),
        ("x/text", {"source": "tfds"}, FileNotFoundError, "tensorflow-datasets"),
        ("x", {}, ValueError, r"set data\.source"),
        ("x/b.jsonl", {"documents": "file"}, ValueError, r"data\.documents=file"),
        ("x/b.jsonl", {"documents": "heading"}, ValueError, r"data\.documents=heading"),
    ],
)
def test_rejects_a_corpus_without_documents_of_its_format(
    tmp_path, monkeypatch, file, options, error, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x/empty").mkdir(parents=True)
    for name in ("a.txt", "text/a.txt", "b.jsonl"):
        texts.write(tmp_path / "x" / name, "Text.")
    with pytest.raises(error, match=words):
        read(file, **options)
