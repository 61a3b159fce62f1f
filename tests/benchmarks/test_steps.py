"""Training steps: what a cell measures."""

import jax
import pytest
from jax.errors import JaxRuntimeError

from benchmarks import steps


def compile_to(monkeypatch, held, example=30e6, message="INTERNAL: YNNPACK operation failed"):
    """Steps that need `example` bytes per example, in a process that may use `held` bytes."""

    def compiled_step(config, attention, batch_size, parts):
        def step():
            if example * batch_size > held:
                raise JaxRuntimeError(message)

        return lambda: step, example * batch_size

    monkeypatch.setattr(steps, "compiled_step", compiled_step)
    monkeypatch.setattr(steps, "in_own_process", lambda measure, *cell: measure(*cell))


@pytest.mark.parametrize(("limit", "held"), [(1.0, 1e15), (1e15, 200e9)])
def test_a_step_with_too_little_memory_does_not_fit(limit, held, monkeypatch):
    compile_to(monkeypatch, held, example=30e9)
    assert not steps.row_of("listops", "nystrom", 8, limit, 0)["fits"]


def test_a_killed_process_does_not_fit(monkeypatch):
    def killed(measure, config, attention, limit, batch_size, parts):
        raise MemoryError("killed")

    monkeypatch.setattr(steps, "in_own_process", killed)
    assert not steps.row_of("listops", "nystrom", 8, 1e12, 0)["fits"]


def test_a_step_above_the_limit_does_not_fit_and_other_errors_are_raised(monkeypatch):
    compile_to(monkeypatch, held=1e12)
    assert not steps.measure("listops", "nystrom", 40e6, 1, 0)["fits"]  # Python alone has more
    compile_to(monkeypatch, held=0, message="INTERNAL: something else")
    with pytest.raises(JaxRuntimeError, match="something else"):
        steps.measure("listops", "nystrom", 1e12, 8, 0)


@pytest.mark.slow(minutes=0.3)
def test_a_compiled_step_runs_in_its_own_process():
    found = steps.row_of("listops_short", "linear", 8, 1e12, 0)
    assert (found["fits"], found["batch_size"]) == (True, 8)
    assert found["step_seconds"] > 0
    assert found["peak_bytes"] > found["compiled_bytes"] > 0


def test_parts_divide_the_batch():
    assert [steps._divisor(12, limit) for limit in (1, 5, 8, 99)] == [1, 4, 6, 12]


@pytest.mark.parametrize("config", ["retrieval", "mqar:length=128", "pretrain:demo"])
def test_batches_have_the_shapes_of_the_step(config):
    values = steps.config_of(config, "nystrom")
    values["train"]["batch_size"], values["model"]["num_layers"] = 2, 1
    run, spec = steps.spec_of(values, jax.devices()[:1])
    batch = steps.random_batch(run, spec)
    _, _, shapes = spec.argument_shapes()
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in shapes.items()} == {
        name: (array.shape, array.dtype) for name, array in batch.items()
    }
    if "positions" in batch:
        assert batch["positions"].max() < batch["inputs"].shape[1]


@pytest.mark.parametrize("config", ["listops:recipe=fast", "pretrain:demo"])
def test_options_of_a_config_go_with_an_attention(config):
    assert steps.config_of(config, "linear")["attention"]["name"] == "linear"
