"""Log lines survive crashes, and events are never ahead of them."""

import json
import logging
import sys
import types

import pytest

from nystromformer_jax.training.run_log import JsonLines, RunLog
from tests.training import tiny


def write(folder, steps, keep_bytes=0, events=False, wandb=False):
    with RunLog(folder, keep_bytes=keep_bytes, events=events, wandb=wandb) as log:
        for step in steps:
            log.metrics(step, {"train/loss": 1 / step})
        return log.sync()


def steps(folder):
    return [line["step"] for line in tiny.lines_of(folder)]


def event_steps(folder):
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events/events.out.tfevents.*")
    data, found = file.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        found += [event.step for value in event.summary.value if value.tag == "train/loss"]
        data = data[16 + size :]
    return found


def test_later_lines_are_dropped_and_floats_are_exact(tmp_path):
    kept = write(tmp_path, [1, 2, 3])
    write(tmp_path, [4, 5], keep_bytes=kept)
    assert write(tmp_path, [], keep_bytes=kept) == kept
    write(tmp_path, [4], keep_bytes=kept)
    assert steps(tmp_path) == [1, 2, 3, 4]
    third = (tmp_path / "metrics.jsonl").read_text().splitlines()[2]
    assert json.loads(third)["train/loss"] == 1 / 3
    write(tmp_path, [1])  # a new run
    assert steps(tmp_path) == [1]


def test_a_corrupt_line_is_named(tmp_path):
    kept = write(tmp_path, [1, 2, 3])
    file = tmp_path / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b"X" + lines[1][1:], lines[2]]))
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2.*--workdir"):
        write(tmp_path, [4], keep_bytes=kept)


def test_a_truncated_line_is_dropped(tmp_path, caplog):
    kept = write(tmp_path, [1, 2, 3])
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        write(tmp_path, [4], keep_bytes=kept)
    assert steps(tmp_path) == [1, 2, 4]
    assert "lost lines" in caplog.text
    speed = JsonLines(tmp_path / "speed.jsonl")
    speed.write({"step": 1})
    speed.close()
    with (tmp_path / "speed.jsonl").open("a") as torn:
        torn.write('{"st')
    again = JsonLines(tmp_path / "speed.jsonl")
    again.write({"step": 2})
    assert [line["step"] for line in again.lines()] == [1, 2]
    again.close()


def test_events_are_rewritten_from_the_lines(tmp_path):
    (tmp_path / "events").mkdir()
    (tmp_path / "events/events.out.tfevents.1.elsewhere").write_bytes(b"stale")
    kept = write(tmp_path, [1, 2, 3], events=True)
    write(tmp_path, [4, 5], keep_bytes=kept, events=True)
    assert event_steps(tmp_path) == [1, 2, 3, 4, 5]
    write(tmp_path, [4], keep_bytes=kept, events=True)
    assert event_steps(tmp_path) == [1, 2, 3, 4]


def test_warns_once_without_tensorboardx_and_keeps_old_events(tmp_path, monkeypatch, caplog):
    write(tmp_path, [1, 2], events=True)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    write(tmp_path, [1, 2, 3], events=True)
    assert steps(tmp_path) == [1, 2, 3]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "tensorboardX" in caplog.text
    monkeypatch.undo()
    assert event_steps(tmp_path) == [1, 2]


class FakeWandb:
    """A service that keeps the values of each run by id, as wandb does."""

    def __init__(self):
        self.starts, self.pages, self.finished = [], {}, 0

    def init(self, **options):
        self.starts.append(options)
        page = self.pages.setdefault(options["id"], {})

        def log(values, step):
            assert step >= max(page, default=0)  # wandb drops earlier steps, with a warning
            page.setdefault(step, {}).update(values)

        def finish():
            self.finished += 1

        return types.SimpleNamespace(step=max(page, default=-1) + 1, log=log, finish=finish)


def test_a_resumed_run_continues_on_its_page_of_wandb(tmp_path, monkeypatch):
    service = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", service)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text('{"train": {"seed": 3}}')
    kept = write(folder, [1, 2, 3], wandb=True)
    write(folder, [4, 5], keep_bytes=kept, wandb=True)
    (page,) = service.pages.values()
    assert page == {step: {"train/loss": 1 / step} for step in range(1, 6)}
    first, second = service.starts
    assert first == second
    assert first["config"] == {"train": {"seed": 3}}
    assert (first["name"], first["project"]) == ("run", "nystromformer-jax")
    assert service.finished == 2
    write(tmp_path, [1])
    assert len(service.starts) == 2  # off by default


def test_a_missing_wandb_names_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match="pip install wandb"):
        write(tmp_path, [1], wandb=True)
