"""The description of a corpus, and preparations that are stopped."""

import signal

import pytest

from dataprep import cache
from language import corpus
from language.corpus.describe import describe_data
from tests import programs
from tests.language import texts

SMALL = {"vocab_size": 97, "max_len": 31, "held_out": 0.1, "workers": 1}


@pytest.fixture
def path(tmp_path):
    return str(texts.in_form("heading", texts.documents(97), tmp_path / "data.seed"))


def test_a_corpus_is_prepared_checked_and_described(path):
    shown = describe_data(corpus.load(corpus.CorpusConfig(dir=path, **SMALL)))
    assert "all hashes match.\nSHA-256 " in shown
    counts = [line.split(" | ") for line in shown.split("\n| ")[3:5]]
    assert counts[0][0] == "train"
    assert sum(int(row[1]) for row in counts) == 97
    assert all(row[5] == "0.00" for row in counts)
    assert "Training pair 1, " in shown
    assert shown.count("\nA: ") == shown.count("\nB: ") == 2
    assert "Training pair 2" not in shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_stopped_preparation_prints_no_traceback_and_keeps_its_pieces(path, number, code):
    """The process also shows that no accelerator framework is imported."""
    script = (
        "import sys, time\n"
        "from cli.commands import run_to_end\n"
        "from language import corpus\n"
        "from language.corpus import pieces\n"
        "pieces.PIECE_CHARACTERS = 4_000\n"
        "make = pieces.PairMaker.__call__\n"
        "frameworks = {'jax', 'flax', 'torch', 'tensorflow', 'transformers'}\n"
        "def slow(self, documents, folder):\n"
        "    make(self, documents, folder)\n"
        "    if folder.name.startswith('000001'):\n"
        "        print('imported', sorted(frameworks & set(sys.modules)), flush=True)\n"
        "        time.sleep(60)\n"
        "pieces.PairMaker.__call__ = slow\n"
        f"config = corpus.CorpusConfig(dir={path!r}, **{SMALL!r})\n"
        "sys.exit(run_to_end('prepare', lambda: corpus.load(config)))"
    )
    process = programs.start("-c", script)
    assert process.stdout.readline() == "imported []\n"
    process.send_signal(number)
    answer = programs.finish(process)
    assert (answer.code, "Traceback" in answer.errors) == (code, False)
    [kept] = (cache.cache_dir() / "data").glob("corpus-*.pieces")
    assert len(list(kept.glob("000000-*[0-9]"))) == 1
    assert list(kept.glob("000001-*[0-9]")) == []
    corpus.load(corpus.CorpusConfig(dir=path, **SMALL))
    assert not kept.exists()
