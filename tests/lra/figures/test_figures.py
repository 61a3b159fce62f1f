"""Figures and their numbers from a run's folder, and errors."""

import json
import math
import sys

import pytest

from lra import train
from lra.figures import __main__ as figures
from lra.figures import approximation
from nystromformer_jax.training import config_sha256
from tests.lra.figures.tiny_run import BEST, LATEST, small_config, write_run

ENDINGS = (".json", "-error.png", "-maps.png", "-pinv.png")


@pytest.fixture
def few_numbers(monkeypatch):
    """Curves of a few points, on lengths that a tiny run has."""
    monkeypatch.setattr(approximation, "LANDMARKS", (2, 5, 11))
    monkeypatch.setattr(approximation, "FIXED_LANDMARKS", (11, 5))
    monkeypatch.setattr(approximation, "SHORTEST", 26)
    monkeypatch.setattr(approximation, "MAX_ITERS", 7)


def numbers_in(values):
    """All numbers of a nest of dicts and lists."""
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return [number for value in values for number in numbers_in(value)]
    return [values] if isinstance(values, int | float) else []


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
    assert found["config_sha256"] == config_sha256(config, train.PATHS)
    assert found["checkpoint"] == {"step": BEST, "best": True}
    assert (found["nystrom"]["num_landmarks"], found["nystrom"]["pinv_iters"]) == (7, 6)
    assert {"jax", "numpy", "python"} <= set(found["versions"])
    assert (found["maps"]["example"], found["maps"]["tokens"]) == (3, 53)
    heads = found["maps"]["heads"]
    assert [(row["layer"], row["head"]) for row in heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for row in heads:
        assert 0 < row["map_error"] < 10
        assert 0 < row["output_error"] < 10
    assert (len(found["curves"]["examples"]), found["curves"]["tokens"]) == (2, 53)
    for kind in ("trained", "random"):
        curves = found["curves"][kind]
        assert [row["num_landmarks"] for row in curves["by_landmarks"]] == [2, 5, 11]
        assert [row["length"] for row in curves["by_length"]] == [53, 53, 26, 26]
        assert [len(curves["by_iteration"][start]) for start in ("exact", "batch_max")] == [8, 8]
    assert all(math.isfinite(number) for number in numbers_in(found))


@pytest.mark.slow(minutes=0.2)
def test_other_attentions_use_64_landmarks_by_default(tmp_path, few_numbers, capsys):
    folder = write_run(tmp_path / "run", small_config("softmax"), finished=False)
    out = tmp_path / "softmax"
    assert_refused(folder, ["--examples=1"], "--num_landmarks", tmp_path, capsys)
    arguments = ["--examples=1", "--num_landmarks=13", "--out", str(out)]
    assert figures.main([str(folder), *arguments]) == 0
    found = json.loads(out.with_suffix(".json").read_text())
    assert found["nystrom"]["num_landmarks"] == 13
    assert found["checkpoint"] == {"step": LATEST, "best": False}


@pytest.mark.parametrize("flag", ["--examples=0", "--num_landmarks=0"])
def test_counts_are_positive(flag, capsys):
    with pytest.raises(SystemExit):
        figures.main(["run", flag])
    assert flag.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("--example=12", "examples 0 to 11"),
        ("--example=-1", "--example"),
        ("--num_landmarks=53", "--num_landmarks"),
    ],
)
def test_invalid_arguments_are_one_line_and_write_nothing(tmp_path, capsys, argument, word):
    folder = write_run(tmp_path / "run", small_config())
    assert_refused(folder, [argument], word, tmp_path, capsys)


def assert_refused(folder, arguments, sentence, tmp_path, capsys):
    out = tmp_path / "out" / "name"
    assert figures.main([str(folder), "--out", str(out), *arguments]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("lra.figures: ")
    assert errors.count("\n") == 1
    assert sentence in errors
    assert not out.parent.exists()
