import logging
import pathlib
import types

import numpy as np
import pytest

from dataprep import cache
from language import corpus
from language.corpus import CorpusConfig, pieces, sentences
from tests import programs
from tests.helpers import data_folders
from tests.language import texts

DOCS = texts.documents(211)
CONFIG = {"vocab_size": 97, "max_len": 31, "held_out": 0.1, "workers": 1}


def load(dir, **changes):
    return corpus.load(CorpusConfig(dir=str(dir), **{**CONFIG, **changes}))


def contents(found):
    """All pairs of a corpus, as token ids."""
    return {
        name: [tuple(split[i]) for i in range(len(split))] for name, split in found.splits.items()
    }


def docs_of(split, held_out=0.1):
    """The documents of a split, in order."""
    return [doc for doc in DOCS if pieces.draw_split(doc, 0, held_out)[0] == split]


def files(found):
    """All bytes of a prepared folder, except the manifest, which contains the time."""
    return {
        path.name: path.read_bytes()
        for path in found.folder.iterdir()
        if path.name != cache.MANIFEST
    }


@pytest.fixture
def path(tmp_path):
    return texts.in_form("blank_line", DOCS, tmp_path)


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 4_000)


# --- What is prepared


def test_all_text_is_in_pairs_once_and_in_order(path):
    found = load(path)
    tokenizer = found.tokenizer
    for name, pairs in contents(found).items():
        kept = [token for pair in pairs for part in pair for token in part]
        ids = [tokenizer.encode(sentences.split(doc)) for doc in docs_of(name)]
        expected = [token for doc in ids if len(doc) > 1 for sentence in doc for token in sentence]
        assert kept == expected
    assert tokenizer.unk_id not in kept


def test_a_pair_is_from_one_document(path):
    """Each document repeats a word of its own."""
    docs = [f"D{i} " * 7 + f"d{i}. " + f"D{i} d{i}. " * (i % 5) for i in range(61)]
    file = texts.write_vocabulary(path.parent, ".", *(f"d{i}" for i in range(61)))
    found = load(texts.write(path.parent / "x.txt", "\n".join(docs)), tokenizer=str(file))
    for first, second in contents(found)["train"]:
        assert len({*first, *second} - {5}) == 1
    assert sum(found.statistics[name].left_out for name in found.splits) == 13


def test_statistics_describe_the_pairs(path):
    found = load(path)
    assert sum(of.documents for of in found.statistics.values()) == len(DOCS)
    for name, pairs in contents(found).items():
        of = found.statistics[name]
        numbers = [len(sentences.split(doc)) for doc in docs_of(name)]
        assert (of.documents, of.left_out) == (len(numbers), numbers.count(1))
        assert of.sentences == sum(number for number in numbers if number > 1)
        assert of.pairs == len(pairs)
        assert of.tokens == sum(len(part) for pair in pairs for part in pair)
        assert of.tokens == found.splits[name].token_counts().sum()
    unknown = load(path, tokenizer=str(texts.write_vocabulary(path.parent))).statistics["train"]
    assert unknown.unknown == unknown.tokens > 0


def test_dtype_of_tokens_depends_on_the_vocabulary():
    for vocab_size, dtype in ((2**16, np.uint16), (2**16 + 1, np.uint32)):
        assert pieces.token_dtype(types.SimpleNamespace(vocab_size=vocab_size)) == dtype


def test_byte_level_sentences_keep_the_space_before_them(tmp_path, path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    ids = {token: i for i, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.BPE(ids, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    backend.save(str(tmp_path / "tokenizer.json"))
    found = load(path, tokenizer=str(tmp_path / "tokenizer.json"), held_out=0.01)
    kept = [token for pair in contents(found)["train"] for part in pair for token in part]
    docs = [doc for doc in docs_of("train", 0.01) if len(sentences.split(doc)) > 1]
    assert found.tokenizer.decode(kept) == "".join(doc.replace("\n", " ") for doc in docs)


def test_every_option_changes_the_data(path):
    changes = {"max_len": 37, "short_rate": 0.5, "seed": 1, "held_out": 0.2, "vocab_size": 50}
    found = [load(path), *(load(path, **{name: value}) for name, value in changes.items())]
    assert len({one.sha256 for one in found}) == len(found)
    assert contents(found[0])["valid"] != contents(found[3])["valid"]


def test_held_out_documents_do_not_depend_on_their_position(tmp_path, path):
    found = load(path)
    other = load(texts.in_form("blank_line", DOCS[::-1], tmp_path / "turned"))
    assert other.tokenizer.sha256 == found.tokenizer.sha256
    for name in ("train", "valid"):
        assert sorted(contents(other)[name]) == sorted(contents(found)[name])


def test_validation_documents_do_not_train_the_tokenizer(path):
    """A word that only they contain is not a piece."""
    docs = [doc + (" Zzz zzz zzz." * 9 if is_valid(doc) else "") for doc in DOCS]
    assert not all(map(is_valid, docs))  # the hash has changed with the text
    held = [doc for doc in docs if is_valid(doc)]
    plain = [doc for doc in docs if not is_valid(doc) and "Zzz" not in doc]
    found = load(texts.in_form("blank_line", plain + held, path.parent / "held"))
    vocabulary = found.tokenizer.backend.get_vocab()
    assert any("Zzz" in doc for doc in held)
    assert not any("z" in token for token in vocabulary)


def is_valid(doc):
    return pieces.draw_split(doc, 0, 0.1)[0] == "valid"


def test_fewer_examples_are_the_first_ones_of_the_same_data(path):
    whole, part = load(path), load(path, examples=7)
    assert part.sha256 == whole.sha256
    assert contents(part) == {**contents(whole), "train": contents(whole)["train"][:7]}
    assert part.statistics == whole.statistics


def test_prepared_data_never_change(path):
    """Golden: another hash means other data than those of the stored results."""
    found = load(path)
    assert found.sha256 == "54a2909826269f5fdfe90fe7d38c1404b0d8addb5f7110c32c697e97767d5a1d"


# --- Pieces


@pytest.mark.slow(minutes=0.1)
def test_number_of_pieces_and_processes_changes_no_byte(path, monkeypatch):
    found = load(path)
    for characters, workers in ((500, 1), (4_000, 2), (9_000, 3)):
        monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(path.parent / f"{characters}"))
        monkeypatch.setattr(pieces, "PIECE_CHARACTERS", characters)
        other = load(path, workers=workers)
        assert files(other) == files(found)
        assert other.sha256 == found.sha256


@pytest.mark.parametrize(
    ("maker", "characters", "reused"),
    [
        (pieces.PairMaker, 4_000, 3),
        (pieces.WordCounter, 4_000, 3),
        (pieces.PairMaker, 3_000, 0),  # pieces of another division
    ],
)
def test_resumes_a_stopped_preparation_from_its_pieces(
    path, monkeypatch, small_pieces, caplog, maker, characters, reused
):
    with monkeypatch.context() as context:
        context.setenv("NYSTROMFORMER_JAX_CACHE", str(path.parent / "undisturbed"))
        expected = files(load(path))
    with monkeypatch.context() as context:
        before = note_pieces(context, maker, stop_at=3)
        with pytest.raises(KeyboardInterrupt):
            load(path)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", characters)
    after = note_pieces(monkeypatch, maker)
    found = load(path)
    assert before == [0, 1, 2]
    assert after == list(range(reused, reused + len(after)))
    assert ("Resuming after 3 finished pieces." in caplog.messages) == (reused > 0)
    assert files(found) == expected
    if reused:
        assert [name.partition("-")[0] for name in data_folders()] == ["corpus", "tokenizer"]
        assert not [name for name in data_folders() if "." in name]  # pieces


def note_pieces(monkeypatch, maker, stop_at=None):
    """Records the numbers of the pieces that are made from now on."""
    make, made = maker.__call__, []

    def note(self, documents, folder):
        piece = int(folder.name[:6])
        (folder / "half").write_text("")
        if piece == stop_at:
            raise KeyboardInterrupt
        (folder / "half").unlink()
        make(self, documents, folder)
        made.append(piece)

    monkeypatch.setattr(maker, "__call__", note)
    return made


def test_prepares_data_once_and_again_after_a_change(path):
    first = load(path)
    assert load(path, workers=2).folder == first.folder
    path.write_text(path.read_text() + "\n\nOne more. And more.\n")
    assert load(path).sha256 != first.sha256


@pytest.mark.slow(minutes=0.1)
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("suffix", "many", "allowed"),
    [
        (".txt", 180, 4.5),
        (".txt.gz", 180, 4.5),
    ],
)
def test_the_corpus_is_never_held_in_memory(tmp_path, suffix, many, allowed):
    """Compares the peak memory of processes that prepare a small and a much larger text."""
    script = (
        "import pathlib, re, sys\n"
        "from language import corpus\n"
        "from language.corpus import pieces\n"
        "pieces.PIECE_CHARACTERS = 2**18\n"
        "corpus.load(corpus.CorpusConfig(dir=sys.argv[1], vocab_size=97, max_len=31, workers=1,"
        " held_out=0.1))\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    peaks = []
    for copies in (20, many):
        text = "\n\n".join([*DOCS, ""] * copies)
        path = texts.write(tmp_path / f"{copies}{suffix}", text)
        peaks.append(int(programs.finish(programs.start("-c", script, path)).output))
    assert len(text) > (allowed + 1.5) * 2**20
    assert peaks[1] - peaks[0] < allowed * 2**10  # KiB; held, the text alone would take more


# --- Faults

TEXT = "\n\n".join(DOCS)
LINES = "\n".join(sentence for doc in DOCS for sentence in sentences.split(doc))
NO_UTF8 = f"{TEXT}\n\nNa\udcefve. And more."
OWN = {"tokenizer": "vocab.txt"}


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("", {}, "no text"),
        (" \n\t\n", OWN, "no text"),
        (LINES, {}, r"by line: set data\.documents"),
        (TEXT, {"held_out": 1e-9}, r"valid, .* raise data\.held_out"),
        (TEXT, {"held_out": 0.9999999}, r"data\.held_out=0\.99.* Lower"),
        (TEXT, {"held_out": 0.9999999, **OWN}, r"train, .*: lower data\.held_out"),
        (TEXT, {"vocab_size": 20}, "vocab_size"),
        (NO_UTF8, {}, "0xef"),
        (NO_UTF8, {"workers": 2}, "0xef"),
        (NO_UTF8, {"workers": 2, **OWN}, "0xef"),
    ],
)
def test_data_without_pairs_are_an_error_and_leave_no_corpus(
    tmp_path, monkeypatch, text, changes, words
):
    monkeypatch.chdir(tmp_path)
    texts.write_vocabulary(tmp_path)
    (tmp_path / "x.txt").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=words):
        load("x.txt", **changes)
    assert not [name for name in data_folders() if name.startswith("corpus")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_len", 4),
        ("short_rate", 1.5),
        ("held_out", 0),
        ("held_out", 1),
        ("held_out", float("nan")),
        ("vocab_size", 0),
        ("examples", -1),
        ("workers", -2),
    ],
)
def test_rejects_invalid_configs(name, value):
    with pytest.raises(ValueError, match=rf"data\.{name}"):
        CorpusConfig(dir="x", **{name: value})
    least = {"max_len": 5, "short_rate": 1.0, "vocab_size": 1, "examples": 0, "workers": 0}
    assert CorpusConfig(dir="x", **least)
