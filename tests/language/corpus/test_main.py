"""`python -m language.corpus`."""

import pathlib
import subprocess
import sys

import pytest

from dataprep import cache
from language import corpus
from language.corpus.__main__ import main
from tests.language import texts

ROOT = pathlib.Path(corpus.__file__).parents[2]
SMALL = ["--vocab_size=97", "--max_len=31", "--held_out=0.1", "--workers=1"]


@pytest.fixture
def path(tmp_path):
    return str(texts.in_form("heading", texts.documents(97), tmp_path / "data.seed"))


def test_a_corpus_is_prepared_checked_and_described(path, capsys):
    assert main([path, *SMALL]) == 0
    captured = capsys.readouterr()
    assert "documents by spaced_heading; will be saved to " in captured.err
    assert "all hashes match.\nSHA-256 " in captured.out
    train, valid = captured.out.split("\n| ")[3:5]
    assert train.startswith("train | ")
    counts = [line.split(" | ") for line in (train, valid)]
    assert sum(int(row[1]) for row in counts) == 97
    assert all(row[5] == "0.00" for row in counts)
    assert "Training pair 1, " in captured.out
    assert captured.out.count("\nA: ") == captured.out.count("\nB: ") == 2
    assert "Training pair 2" not in captured.out


def test_every_flag_reaches_the_corpus(path, capsys, monkeypatch):
    asked = []
    load = corpus.load
    monkeypatch.setattr(corpus, "load", lambda config: asked.append(config) or load(config))
    flags = [
        *SMALL,
        "--cased",
        "--documents=heading",
        "--source=text",
        "--seed=3",
        "--short_rate=0.5",
    ]
    assert main([path, *flags, "--show=0"]) == 0
    assert asked == [
        corpus.CorpusConfig(
            dir=path,
            source="text",
            documents="heading",
            vocab_size=97,
            lowercase=False,
            max_len=31,
            short_rate=0.5,
            held_out=0.1,
            seed=3,
            workers=1,
        )
    ]
    assert "Training pair" not in capsys.readouterr().out


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


def test_stopped_preparation_prints_no_traceback_and_keeps_its_pieces(path):
    script = (
        "import sys, time\n"
        "from language.corpus import documents, pieces\n"
        "from language.corpus.__main__ import main\n"
        "documents.PIECE_BYTES = 4_000\n"
        "make = pieces.PairMaker.__call__\n"
        "def slow(self, piece, folder):\n"
        "    make(self, piece, folder)\n"
        "    if piece == 1:\n"
        "        print('waiting', flush=True)\n"
        "        time.sleep(60)\n"
        "pieces.PairMaker.__call__ = slow\n"
        f"sys.exit(main([{path!r}, *{SMALL!r}]))"
    )
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "waiting\n"
    process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in error
    [kept] = (cache.cache_dir() / "data").glob("corpus-*.pieces")
    assert len(list(kept.glob("000000-of-*[0-9]"))) == 1
    assert list(kept.glob("000001-of-*[0-9]")) == []
    assert main([path, *SMALL]) == 0
    assert not kept.exists()


def test_no_accelerator_framework_is_imported(path):
    script = (
        "import sys\n"
        "from language.corpus.__main__ import main\n"
        f"assert main([{path!r}, *{SMALL!r}]) == 0\n"
        "print(sorted({'jax', 'flax', 'torch', 'tensorflow', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    printed = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert printed.splitlines()[-1] == "[]"
