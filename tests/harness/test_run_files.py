"""A run's files are read whole, but for a last line that was cut; what is no JSON is one sentence."""

import math
from pathlib import Path

import pytest

from harness.run_files import finite, read_metrics, read_object, shown


def test_objects(tmp_path):
    file = tmp_path / "result.json"
    file.write_text('{"a": [1, null]}')
    assert read_object(file) == {"a": [1, None]}
    for content, words in (
        (b'{"a": ', "cannot be read as JSON"),
        (b"\xff", "cannot be read as JSON"),
        (b"[1]", "must hold a JSON object, not a list"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=words) as refusal:
            read_object(file)
        assert str(file) in str(refusal.value)


def test_metrics_lose_a_last_line_that_was_cut(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": 2.5}\n{"step": 2}\n{"step": 3, "lo')
    assert read_metrics(file) == [{"step": 1, "loss": 2.5}, {"step": 2}]
    file.write_text("")
    assert read_metrics(file) == []


@pytest.mark.parametrize(
    "line", ["{", "3", '{"loss": 2}', '{"step": null}', '{"step": 2.5}', '{"step": 2, "loss": "2"}']
)
def test_another_line_that_is_broken_is_named(line, tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2, cannot be read as metrics"):
        read_metrics(file)


def test_what_json_has_no_word_for_becomes_none():
    values = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, 2, True, "nan")}]}
    assert finite(values) == {"a": None, "b": [1.5, None, {"c": [None, 2, True, "nan"]}]}


def test_a_folder_is_shown_from_here_if_it_lies_below(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs/a") == str(Path("runs/a"))
    assert shown(tmp_path.parent) == str(tmp_path.parent)
