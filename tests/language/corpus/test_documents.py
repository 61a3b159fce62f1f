import gzip
import json

import pytest

from language.corpus import documents
from language.corpus.documents import open_source
from tests.language import texts

FORMS = [
    "blank_line",
    "heading",
    "close_heading",
    "file",
    "line",
    "jsonl",
    "jsonl.gz",
    "blank_line.gz",
]
DOCS = texts.documents(53)


def expected(form):
    """The documents as they are read from a format."""
    return [doc.replace("\n", " ") for doc in DOCS] if form == "line" else DOCS


def how(form):
    return "auto" if form.startswith("jsonl") else form.removesuffix(".gz").removeprefix("close_")


def read(path, source="auto", documents="auto"):
    opened = open_source(str(path), source, documents)
    return [doc for piece in range(opened.num_pieces) for doc in opened.read(piece)]


def kind(path):
    return open_source(str(path)).stamp()["documents"]


# --- Every document once, in order


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 61, 500, 10**9])
@pytest.mark.parametrize("form", FORMS)
def test_every_document_is_read_once_however_the_files_are_divided(
    tmp_path, monkeypatch, form, piece_bytes
):
    monkeypatch.setattr(documents, "PIECE_BYTES", piece_bytes)
    path = texts.in_form(form, DOCS, tmp_path)
    assert read(path, documents=how(form)) == expected(form)


@pytest.mark.parametrize("form", FORMS)
def test_infers_what_separates_documents(tmp_path, form):
    path = texts.in_form(form, DOCS, tmp_path)
    kinds = {"jsonl": "line", "jsonl.gz": "line", "heading": "spaced_heading"}
    assert kind(path) == kinds.get(form, how(form))
    assert read(path) == expected(form)
    assert read(path.parent) == expected(form)


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path):
    for name in ("b/x.txt", "a.txt", "b/a/z", "c.txt.gz", ".hidden", "b/.git/config"):
        texts.write(tmp_path / name, f"Text of {name}.")
    assert read(tmp_path) == [
        f"Text of {name}." for name in ("a.txt", "b/a/z", "b/x.txt", "c.txt.gz")
    ]


@pytest.mark.parametrize("documents", ["blank_line", "heading", "line", "file"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_byte_order_marks_and_carriage_returns_are_not_text(tmp_path, documents, end):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbf" + f" Ä text. \t{end}".encode())
    assert read(path, documents=documents) == ["Ä text."]


def test_a_byte_order_mark_before_a_heading_is_not_text(tmp_path):
    path = tmp_path / "wiki.tokens"
    path.write_bytes(b"\xef\xbb\xbf = Title = \nOne.\n")
    assert read(path, documents="heading") == ["One."]


def test_headings_of_documents_and_of_sections_are_dropped(tmp_path):
    text = (
        "Before. \n = One = \n A = b = c .\n = = Part = = \n = = = 5 = = = \nMore .\n"
        "= E = mc =\n== Part ==\nEnd.\n = Empty = \n"
    )
    path = texts.write(tmp_path / "wiki.tokens", text)
    assert read(path, documents="heading") == ["Before.", "A = b = c .\nMore .", "End."]


@pytest.mark.parametrize("piece_bytes", [1, 7, 10**9])
def test_lines_like_headings_are_text_if_headings_are_spaced(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr(documents, "PIECE_BYTES", piece_bytes)
    text = " \n = One = \n \n Key : G \n = Goals ; A = \n Points . \n \n = = P = = \n \n More .\n"
    path = texts.write(tmp_path / "wiki.tokens", text + " = Two = \n \n = = 2 = = \nEnd . ")
    assert kind(path) == open_source(str(path), documents="heading").stamp()["documents"]
    first = "Key : G\n= Goals ; A =\nPoints .\nMore ."
    assert kind(path) == "spaced_heading"
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
    line = b'{"text": "A text."}\n'
    path.write_bytes(gzip.compress(line * 50_000)[:-100])
    found = open_source(str(path)).read(0)
    assert next(found) == "A text."


def write_tfds(data_dir, docs, file_format="array_record", name="corpus"):
    """A dataset with a document of `docs` in each example."""
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict(
        {"text": tfds.features.Text(), "title": tfds.features.Text()}
    )

    class Corpus(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, dl_manager):
            return {"train": ((i, {"text": doc, "title": "x"}) for i, doc in enumerate(docs))}

        def _generate_examples(self):
            raise AssertionError

    Corpus.name = name
    Corpus(data_dir=data_dir, file_format=file_format).download_and_prepare()
    return data_dir / name


def test_reads_a_tensorflow_dataset(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "EXAMPLES_PER_PIECE", 7)
    path = write_tfds(tmp_path, [*DOCS, " \n"])
    assert read(path) == read(path / "1.0.0") == read(path, "tfds", "line") == DOCS
    assert open_source(str(path)).num_pieces == 8
    with pytest.raises(ValueError, match=r"data\.documents=heading: every entry of a dataset"):
        open_source(str(path), documents="heading")
    info = path / "1.0.0" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    for at in (path, path / "1.0.0"):
        with pytest.raises(
            FileNotFoundError, match=r"needs corpus .* contains tfrecord, which only Tens"
        ):
            open_source(str(at))


# --- Faults


@pytest.mark.parametrize("piece_bytes", [7, 10**9])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_error_names_file_and_position_of_an_invalid_byte(
    tmp_path, monkeypatch, suffix, piece_bytes
):
    monkeypatch.setattr(documents, "PIECE_BYTES", piece_bytes)
    content = "Näive.\n\nOne line.\nNa".encode() + b"\xefve.\n\nMore."
    path = tmp_path / f"x{suffix}"
    path.write_bytes(gzip.compress(content) if suffix == ".txt.gz" else content)
    with pytest.raises(
        ValueError, match=rf"x{suffix} is not UTF-8 text: byte 22 is 0xef\. Convert"
    ):
        read(path)


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "5", '"text"', '{"txt": "a"}', '{"text": 5}', '{"text": "\\ud800"}', "[" * 99_999],
)
def test_error_names_position_of_an_invalid_json_line(tmp_path, line):
    path = texts.write(tmp_path / "x.jsonl", f'{{"text": "ä"}}\n{line}\n')
    with pytest.raises(
        ValueError,
        match=r'x\.jsonl needs a JSON object with a string under "text" .* the line at byte 16',
    ):
        read(path)


def test_error_names_a_corrupt_archive(tmp_path):
    path = texts.in_form("jsonl.gz", DOCS, tmp_path)
    content = path.read_bytes()
    for damaged in (content[:-50], content[:100] + b"xxxxx" + content[105:], b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"all\.jsonl\.gz is truncated or corrupt \(.*\): down"
        ):
            read(path)


@pytest.mark.parametrize("content", ["One.\rTwo.\r\rThree.\r", "\ufeffOne.\r\rTwo."])
@pytest.mark.parametrize("separator", ["auto", "line", "file"])
def test_error_names_a_file_whose_lines_end_with_carriage_returns(tmp_path, content, separator):
    with pytest.raises(ValueError, match=r"x\.txt ends its lines with carriage returns"):
        read(texts.write(tmp_path / "x.txt", content), documents=separator)


def test_error_names_a_document_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 2**20)
    path = texts.write(tmp_path / "x.txt", "Short.\n\n" + "A line without an end.\n" * 60_000)
    with pytest.raises(
        ValueError,
        match=r"more than 1 MiB, from byte 9 on, with data\.documents=blank_line: check that",
    ):
        read(path)
    assert len(read(path, documents="line")) == 60_001


@pytest.mark.parametrize(
    ("file", "source", "error", "words"),
    [
        ("", "auto", ValueError, "corpus is needed"),
        ("x/none", "auto", FileNotFoundError, "/none does not exist"),
        ("x/empty", "auto", FileNotFoundError, "no text file"),
        ("x/a.txt", "jsonl", ValueError, r"a\.txt needs a JSON object"),
        ("x/text", "jsonl", FileNotFoundError, "no JSON lines"),
        ("x/text", "tfds", FileNotFoundError, "tensorflow-datasets"),
        ("x", "auto", ValueError, r"both .* set data\.source"),
    ],
)
def test_rejects_a_corpus_without_documents_of_its_format(
    tmp_path, monkeypatch, file, source, error, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x/empty").mkdir(parents=True)
    for name in ("a.txt", "text/a.txt", "b.jsonl"):
        texts.write(tmp_path / "x" / name, "Text.")
    with pytest.raises(error, match=words):
        read(file, source)


@pytest.mark.parametrize("separator", ["file", "heading"])
def test_every_json_line_is_a_document(tmp_path, separator):
    path = texts.write(tmp_path / "b.jsonl", '{"text": "Json."}')
    with pytest.raises(ValueError, match=rf"data\.documents={separator}"):
        open_source(str(path), "auto", separator)
