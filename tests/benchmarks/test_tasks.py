"""The table of training costs, from fixed rows."""

import json

import jax
import pytest
from jax.errors import JaxRuntimeError

from benchmarks import tasks
from benchmarks.stored import this_machine
from lra import train


def row(task, attention, **changes):
    made = {
        "task": task,
        "attention": attention,
        "config_batch_size": 32,
        "batch_size": 32,
        "fits": True,
        "step_seconds": 0.8,
        "peak_bytes": 3 * 2**30,
    }
    return made | changes


def test_cell_has_speed_memory_and_the_reduced_batch():
    rows = [
        row("listops", "nystrom"),
        row("text", "nystrom", batch_size=4, step_seconds=0.125),
        row("text", "softmax", fits=False),
    ]
    assert tasks.markdown({"rows": rows}).splitlines() == [
        "| steps/s · GiB | nystrom | softmax |",
        "| --- | ---: | --- |",
        "| listops, batch 32 | 1.25 · 3.0 |  |",
        "| text, batch 32 | 8 · 3.0 (batch 4) | does not fit |",
    ]


def test_rejects_results_of_another_machine(tmp_path, monkeypatch, capsys):
    out = tmp_path / "cpu"
    settings = {**this_machine(), "processor": "Abacus", "memory_gib": 16.0, "parts": 0}
    results = {"settings": settings, "commands": [], "rows": []}
    out.with_suffix(".json").write_text(json.dumps(results))
    monkeypatch.setattr("sys.argv", ["tasks", "--out", str(out)])
    assert tasks.main() == 2
    assert "with different settings (processor 'Abacus' in the file, " in capsys.readouterr().err


class Loss(float):
    def block_until_ready(self):
        return self


def compile_to(monkeypatch, held, example=30e6):
    """Steps that need `example` bytes per example, in a process that may use `held` bytes."""

    def compiled_step(config):
        needed = example * config["train"]["batch_size"]

        def step(state, totals, batch):
            if needed > held:
                raise JaxRuntimeError("INTERNAL: YNNPACK operation failed: error")
            return state, totals, Loss()

        return step, lambda: (None, None, None), needed

    monkeypatch.setattr(tasks, "prefer_oom_kill", lambda: None)
    monkeypatch.setattr(tasks, "_compiled_step", compiled_step)
    monkeypatch.setattr(
        tasks, "_config", lambda task, attention, parts: {"train": {"batch_size": 8}}
    )


@pytest.mark.parametrize(("limit", "expected"), [(1e15, 8), (120e9, 4), (1.0, 1)])
def test_batch_is_halved_until_the_compiled_step_fits(limit, expected, monkeypatch):
    compile_to(monkeypatch, held=1e12, example=30e9)
    found = tasks.measure("listops", "nystrom", limit)
    assert (found["batch_size"], found["fits"]) == (expected, limit > 1)


def test_a_recipe_with_a_curriculum_has_smaller_batches():
    config = tasks._config("pathfinder", "nystrom,recipe=fast", 1)
    config["train"]["batch_size"] = 1
    train.prepare(config, jax.devices()[:1])


def test_a_step_that_runs_out_of_memory_does_not_fit_at_its_batch(monkeypatch, capsys):
    compile_to(monkeypatch, held=60e6)
    row = tasks.measure("listops", "nystrom", 1e12)
    assert (row["batch_size"], row["fits"]) == (8, False)
    assert json.loads(capsys.readouterr().out) == row  # known before the step ran
    assert tasks.measure("listops", "nystrom", 1e12, batch_size=2)["fits"]


def test_step_that_uses_more_memory_than_the_limit_does_not_fit(monkeypatch):
    compile_to(monkeypatch, held=1e12)
    assert not tasks.measure("listops", "nystrom", 40e6, batch_size=1)[
        "fits"
    ]  # Python alone has more


def test_other_errors_of_a_step_are_raised(monkeypatch):
    def fail(config):
        def step(*_):
            raise JaxRuntimeError("INTERNAL: something else")

        return step, lambda: (None, None, None), 1

    monkeypatch.setattr(tasks, "prefer_oom_kill", lambda: None)
    monkeypatch.setattr(tasks, "_compiled_step", fail)
    with pytest.raises(JaxRuntimeError, match="something else"):
        tasks.measure("listops", "nystrom", 1e12)
