"""Figures and their numbers from a run's folder, and errors."""

import json
import re
import sys

import pytest

from lra.figures import __main__ as figures
from lra.figures import approximation
from lra.figures.trained_run import open_run
from nystromformer_jax.training import config_sha256
from tests.lra.figures.tiny_run import BEST, small_config, write_run

ENDINGS = (".json", "-error.png", "-maps.png", "-pinv.png")


@pytest.fixture
def few_numbers(monkeypatch):
    """Curves of a few points, on lengths that a tiny run has."""
    few = {"LANDMARKS": (2, 5, 11), "FIXED_LANDMARKS": (11, 5), "SHORTEST": 26, "MAX_ITERS": 7}
    for name, value in few.items():
        monkeypatch.setattr(approximation, name, value)


@pytest.mark.slow(minutes=0.2)
def test_a_nystrom_run_gives_three_figures_and_their_numbers(
    tmp_path, few_numbers, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # whose state is the user's
    config = small_config(model__num_layers=2)
    folder = write_run(tmp_path / "run", config)
    out = tmp_path / "out" / "run-0.1"
    arguments = [str(folder), "--example=3", "--examples=2", "--out", str(out)]
    assert figures.main(arguments) == 0
    assert capsys.readouterr().out.count(str(out)) == 4
    written = {path.name for path in out.parent.iterdir()}
    assert written == {f"run-0.1{ending}" for ending in ENDINGS}
    for ending in ENDINGS[1:]:
        assert out.with_name(f"run-0.1{ending}").read_bytes()[:4] == b"\x89PNG"
    found = json.loads(out.with_name("run-0.1.json").read_text())
    assert found["run"] == "run"
    assert (found["task"], found["attention"]) == ("listops", "nystrom")
    assert found["config_sha256"] == config_sha256(config)
    assert found["checkpoint"] == {"step": BEST, "best": True}
    assert (found["nystrom"]["num_landmarks"], found["nystrom"]["pinv_iters"]) == (7, 6)
    assert (found["maps"]["example"], found["maps"]["tokens"]) == (3, 53)
    heads = found["maps"]["heads"]
    assert [(row["layer"], row["head"]) for row in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (len(found["curves"]["examples"]), found["curves"]["tokens"]) == (2, 53)
    for kind in ("trained", "random"):
        curves = found["curves"][kind]
        assert [row["num_landmarks"] for row in curves["by_landmarks"]] == [2, 5, 11]
        assert [row["length"] for row in curves["by_length"]] == [53, 53, 26, 26]
        assert [len(curves["by_iteration"][start]) for start in ("exact", "batch_max")] == [8, 8]
    assert not re.search("NaN|Infinity", out.with_name("run-0.1.json").read_text())


@pytest.fixture(scope="module")
def softmax_run(tmp_path_factory):
    """An opened run, as `figures.main` opens it."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NYSTROMFORMER_JAX_CACHE", str(folder / "cache"))
        return open_run(write_run(folder / "run", small_config("softmax"), finished=False))


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("--example=12", "0 to 11"),
        ("--example=-1", "--example"),
        ("--num_landmarks=53", "--num_landmarks"),
        ("--examples=1", "64 landmarks"),  # the default
        ("--examples=0", "--examples"),
        ("--num_landmarks=0", "--num_landmarks"),
    ],
)
def test_invalid_arguments_are_one_line_and_write_nothing(
    tmp_path, softmax_run, capsys, monkeypatch, argument, word
):
    monkeypatch.setattr(figures, "open_run", lambda *_, **__: softmax_run)
    out = tmp_path / "out" / "name"
    try:
        code = figures.main(["run", "--out", str(out), argument])
    except SystemExit as stopped:  # by the parser
        code = stopped.code
    output, errors = capsys.readouterr()
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("lra.figures: ")
    assert word in errors
    assert not out.parent.exists()
