"""Files of runs are read and checked."""

import math
from pathlib import Path

import pytest

from reporting.runs import (
    Run,
    curve_of,
    display_path,
    format_device,
    nonfinite_to_none,
    read_metrics,
    unique_names,
    version_sentences,
)


@pytest.mark.parametrize("cut", [b'{"step": 3, "lo', b"{", b'{"ste\xff', b"{}"])
def test_a_truncated_last_line_of_metrics_is_dropped(tmp_path, cut):
    file = tmp_path / "metrics.jsonl"
    assert read_metrics(file) == []
    file.write_bytes(b'{"step": 1, "loss": 2.5}\n{"step": 2}\n' + cut)
    assert read_metrics(file) == [{"step": 1, "loss": 2.5}, {"step": 2}]
    file.write_text("")
    assert read_metrics(file) == []


def test_curve_has_only_lines_with_the_metric():
    lines = [{"step": 2, "loss": 0.5}, {"step": 3, "accuracy": 0.3}, {"step": 5, "accuracy": 0.7}]
    assert curve_of(lines, "accuracy") == ([3, 5], [0.3, 0.7])
    assert curve_of(lines, "nothing") == ([], [])


@pytest.mark.parametrize(
    "line",
    ["{", "3", "{}", '{"loss": 2}', '{"step": null}', '{"step": 2.5}', '{"step": 2, "loss": "2"}'],
)
def test_error_names_another_invalid_line(line, tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2, cannot be read as metrics"):
        read_metrics(file)


def test_non_finite_numbers_become_none():
    values = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, 2, True, "nan")}]}
    assert nonfinite_to_none(values) == {"a": None, "b": [1.5, None, {"c": [None, 2, True, "nan"]}]}


def test_display_path_is_relative_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert display_path(tmp_path / "runs/a") == str(Path("runs/a"))
    assert display_path(tmp_path.parent) == str(tmp_path.parent)


def test_only_cpus_are_described_with_threads():
    cpu = {"device": {"kind": "cpu", "count": 1}, "cpu_threads": 2}
    assert format_device(cpu) == "1 × cpu, 2 threads"
    assert format_device({**cpu, "cpu_threads": None}) == "1 × cpu"
    assert format_device({**cpu, "device": {"kind": "TPU v5e", "count": 4}}) == "4 × TPU v5e"
    assert format_device({"device": None}) == format_device({"device": {"kind": "cpu"}}) == ""


def test_most_common_versions_come_first_and_once():
    def run(name, versions):
        values = {"task": "", "seed": 0, "config": {}, "metrics": [], "device": ""}
        return Run(folder=Path(name), name=name, versions=versions, **values)

    new = {"python": "3.12", "jax": "0.11"}
    all_new = [run("a", new), run("b", new)]
    assert version_sentences(all_new) == ["All runs: python 3.12, jax 0.11."]
    mixed = {"a": {"jax": "0.10"}, "b": new, "c": {}, "d": new}
    assert version_sentences(run(*item) for item in mixed.items()) == [
        "All others: python 3.12, jax 0.11.",
        "a: jax 0.10.",
        "c: versions not known.",
    ]


def test_names_have_as_many_folders_as_are_needed_to_differ():
    folders = [Path(path) for path in ("/fast/a", "/fast/b", "/slow/b", "/x/u/c", "/y/u/c")]
    assert list(unique_names(folders).values()) == ["a", "fast/b", "slow/b", "x/u/c", "y/u/c"]
    relative = [Path("x"), Path("runs/x")]  # one is the end of the other
    assert list(unique_names(relative).values()) == ["x", "runs/x"]
