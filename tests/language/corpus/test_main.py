"""`python -m language.corpus`."""

import signal

import pytest

from dataprep import cache
from language import corpus
from language.corpus.__main__ import main
from tests import programs
from tests.language import texts

SMALL = ["--vocab_size=97", "--max_len=31", "--held_out=0.1", "--workers=1"]


@pytest.fixture
def path(tmp_path):
    return str(texts.in_form("heading", texts.documents(97), tmp_path / "data.seed"))


def test_a_corpus_is_prepared_checked_and_described(path, capsys):
    assert main([path, *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "all hashes match.\nSHA-256 " in shown
    counts = [line.split(" | ") for line in shown.split("\n| ")[3:5]]
    assert counts[0][0] == "train"
    assert sum(int(row[1]) for row in counts) == 97
    assert all(row[5] == "0.00" for row in counts)
    assert "Training pair 1, " in shown
    assert shown.count("\nA: ") == shown.count("\nB: ") == 2
    assert "Training pair 2" not in shown


def test_every_flag_reaches_the_corpus(path, monkeypatch):
    asked = []

    def load(config):
        asked.append(config)
        raise ValueError("that is enough")

    monkeypatch.setattr(corpus, "load", load)
    flags = ["--cased", "--documents=heading", "--source=text", "--seed=3", "--short_rate=0.5"]
    assert main([path, *SMALL, *flags, "--tokenizer=x"]) == 2
    sizes = {"vocab_size": 97, "max_len": 31, "held_out": 0.1, "workers": 1, "short_rate": 0.5}
    options = {"source": "text", "documents": "heading", "tokenizer": "x", "lowercase": False}
    assert asked == [corpus.CorpusConfig(dir=path, seed=3, **sizes, **options)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "set DIR"),
        ([""], "set DIR"),
        (["PATH", "--max_len=4"], "--max_len"),
        (["PATH", "--held_out=1e-9"], "raise --held_out"),
        (["PATH", "--tokenizer=nowhere"], "set --tokenizer"),
        (["PATH", "--documents=line", "--vocab_size=9"], "--vocab_size"),
    ],
)
def test_errors_name_the_flags_of_the_command(path, arguments, words, capsys):
    given = [argument.replace("PATH", path) for argument in arguments]
    assert main([given[0], *SMALL, *given[1:]]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.splitlines()[-1].startswith("language.corpus: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_stopped_preparation_prints_no_traceback_and_keeps_its_pieces(path, number, code):
    """The process also shows that no accelerator framework is imported."""
    script = (
        "import sys, time\n"
        "from language.corpus import documents, pieces\n"
        "from language.corpus.__main__ import main\n"
        "documents.PIECE_BYTES = 4_000\n"
        "make = pieces.PairMaker.__call__\n"
        "frameworks = {'jax', 'flax', 'torch', 'tensorflow', 'transformers'}\n"
        "def slow(self, piece, folder):\n"
        "    make(self, piece, folder)\n"
        "    if piece == 1:\n"
        "        print('imported', sorted(frameworks & set(sys.modules)), flush=True)\n"
        "        time.sleep(60)\n"
        "pieces.PairMaker.__call__ = slow\n"
        f"sys.exit(main([{path!r}, *{SMALL!r}]))"
    )
    process = programs.start("-c", script)
    assert process.stdout.readline() == "imported []\n"
    process.send_signal(number)
    answer = programs.finish(process)
    assert (answer.code, "Traceback" in answer.errors) == (code, False)
    [kept] = (cache.cache_dir() / "data").glob("corpus-*.pieces")
    assert len(list(kept.glob("000000-of-*[0-9]"))) == 1
    assert list(kept.glob("000001-of-*[0-9]")) == []
    assert main([path, *SMALL]) == 0
    assert not kept.exists()
