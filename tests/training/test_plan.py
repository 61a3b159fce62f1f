"""The largest batch, and the text of plans; tests/layers/test_meshes.py measures a step."""

import copy
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError

from nystromformer_jax.training import MeshConfig, make_mesh
from nystromformer_jax.training import plan as module
from nystromformer_jax.training.collectives import Collectives
from nystromformer_jax.training.plan import (
    Memory,
    Plan,
    describe_plan,
    largest_batch,
    make_plan,
    warn_if_too_large,
)
from nystromformer_jax.training.topology import CHIPS
from tests.training import tiny

GIB = 2**30


def spec(devices=8, **sections):
    config, mesh = tiny.config(batch_size=16), MeshConfig(**sections.get("mesh", {}))
    train = dataclasses.replace(config.train, **sections.get("train", {}))
    return tiny.make_spec(
        tiny.examples(1),
        dataclasses.replace(config, train=train, mesh=mesh),
        mesh=make_mesh(mesh, jax.devices()[:devices]),
    )


def test_memory_is_counted_by_kind_on_one_device():
    memory = make_plan(spec()).memory
    parameters = 4 * tiny.FEATURES * tiny.CLASSES
    assert memory.params == parameters
    assert memory.optimizer == 2 * parameters + 4 + 4 + 4  # both moments, the step, and two counts
    assert memory.batch == 2 * 4 * (tiny.FEATURES + 1 + 1)


def test_an_unprintable_program_has_memory_and_flops(monkeypatch):
    def fail(*_, **__):
        raise JaxRuntimeError("INTERNAL: RET_CHECK failure (hlo_instruction.cc:1)")

    expected = make_plan(spec())
    monkeypatch.setattr(jax.stages.Compiled, "as_text", fail)
    found = make_plan(spec())
    assert found.memory == expected.memory
    assert found.flops == expected.flops
    assert found.collectives is None
    chip = CHIPS["v5e"]
    assert found.link_seconds(chip) is found.step_seconds(chip) is None
    text, fits = describe_plan(CONFIG, lambda config: spec(), chip, largest=False)
    assert fits
    assert "cannot print the compiled program" in text


def test_flops_and_bytes_are_known_without_the_compilers_own_analysis():
    class Silent:
        def __init__(self, compiled):
            self.runtime_executable = compiled.runtime_executable

        def cost_analysis(self):
            return None

    x = jnp.zeros((16, 32))
    compiled = jax.jit(lambda x: x @ x.T).lower(x).compile()
    cost = module.program_cost(Silent(compiled))
    assert cost["flops"] == pytest.approx(2 * 16 * 16 * 32, rel=0.1)
    assert cost["bytes accessed"] >= 4 * (16 * 32 + 16 * 16)


@pytest.mark.parametrize(
    ("limit", "tried", "found"),
    [
        (16, [32], 16),
        (200, [32, 64, 128, 256], 128),
        (9, [8], 8),
        (7, [8], 0),
    ],
)
def test_largest_batch_is_that_of_the_config_doubled_or_halved(monkeypatch, limit, tried, found):
    asked = []

    def make_plan(spec, limit_bytes, batch_size):
        asked.append(batch_size)
        return plan_of(GIB * 16 * batch_size // limit_bytes)

    monkeypatch.setattr(module, "make_plan", make_plan)
    own = plan_of(GIB * 16 * 16 // limit)  # of 16 examples, on eight devices
    assert largest_batch(spec(), limit, own) == found
    assert asked == tried


@pytest.mark.parametrize(("batch_size", "largest"), [(96, 8), (24, 8), (40, 16)])
def test_a_halved_batch_is_divisible_by_the_devices(monkeypatch, batch_size, largest):
    monkeypatch.setattr(module, "make_plan", lambda spec, limit, size: plan_of(size * GIB))
    own = spec(train={"batch_size": batch_size, "accumulation": 2})
    assert largest_batch(own, 16 * GIB, plan_of(batch_size * GIB)) == largest


CONFIG = {
    "train": {"remat": False},
    "mesh": {"shard_params": False},
    "attention": {"name": "nystrom"},
}


def plan_of(total, **values):
    memory = Memory(1, 2, 3, 4, total - 15, 5)
    values = {"flops": 1e9, "bytes_accessed": 1.62e9, **values}
    return Plan(memory=memory, fits=total <= 16 * GIB, **values)


def report(monkeypatch, plans, *, largest=None, config=CONFIG, **options):
    """The text of the given plans, and True if the first fits."""
    left = iter(plans)
    monkeypatch.setattr(module, "make_plan", lambda *arguments: next(left))
    monkeypatch.setattr(module, "largest_batch", lambda *arguments: largest)
    make_spec = lambda config: spec(train=config["train"], mesh=config["mesh"])
    options |= {"topology": "v5e:2x4", "largest": largest is not None}
    return describe_plan(config, make_spec, CHIPS["v5e"], **options)


def test_report_of_a_fitting_plan_has_time_and_cost(monkeypatch):
    links = {"all-reduce": Collectives(2, 45_000_000)}
    text, fits = report(monkeypatch, [plan_of(GIB, collectives=links)], price=3.6)
    assert fits
    assert "v5e:2x4: 8 device(s), data 8 × sequence 1; batch 16, length" in text
    assert "parts" not in text
    assert "total                                      1.00 GiB of 16.00 GiB\n" in text
    # 1.62 GB at 810 GB per second, 45 MB over a link of 45 GB/s.
    assert "3 ms, a roofline: 2 ms by FLOPs or memory access, 1 ms communicating" in text
    assert "30 steps, 0.1 seconds" in text
    assert f"cost of the run    {8 * 30 * 0.003 / 3600 * 3.6:,.2f} (" in text


def test_time_is_that_of_memory_or_of_flops():
    plan = plan_of(GIB, bytes_accessed=9.6e9)
    assert plan.compute_seconds(CHIPS["h200"]) == pytest.approx(0.002)
    plan = plan_of(GIB, flops=9.89e12)
    assert plan.compute_seconds(CHIPS["h200"]) == pytest.approx(0.01)
    assert plan_of(GIB, bytes_accessed=None).step_seconds(CHIPS["h200"]) is None


REMAT, SHARDED = {"train": {"remat": True}}, {"mesh": {"shard_params": True}}
SPLIT = {"train": {"remat": True, "batch_size": 8}, "mesh": {"shard_params": True, "sequence": 2}}
SOFTMAX = {"attention": {"name": "softmax"}}


@pytest.mark.parametrize(
    ("config", "tried", "end"),
    [
        ({}, 1, "--config.train.remat=True"),
        ({}, 2, "--config.train.remat=True --config.mesh.shard_params=True"),
        (REMAT, 1, "--config.mesh.shard_params=True"),
        # Sixteen examples on eight devices have at most two parts.
        ({}, 3, "--config.mesh.shard_params=True --config.train.accumulation=2"),
        ({}, None, "a shorter length, more chips or mesh.sequence"),
        # Accumulations divide the rows of a device.
        (
            {"train": {"remat": True, "batch_size": 8 * 18, "accumulation": 3}, **SHARDED},
            3,
            "what would fit     --config.train.accumulation=18",
        ),
        (SPLIT, None, "a shorter length or more chips"),
        (SPLIT | SOFTMAX, None, "a shorter length or more chips"),
        # Parts would change its outputs.
        ({"attention": {"pinv_start": "batch_max"}}, 3, "more chips or mesh.sequence"),
        (SOFTMAX | SHARDED, None, "more chips or Nyström attention with mesh.sequence"),
    ],
)
def test_report_suggests_the_first_options_that_fit_or_what_else_helps(
    monkeypatch, config, tried, end
):
    config = {"train": {}, "mesh": {}, "attention": {}} | config
    before, too_large = copy.deepcopy(config), plan_of(17 * GIB, reason="too much")
    fitting = [] if tried is None else [*[too_large] * tried, plan_of(GIB)]
    text, fits = report(monkeypatch, fitting or itertools.repeat(too_large), config=config)
    assert not fits
    assert "17.00 GiB of 16.00 GiB: DOES NOT FIT" in text
    assert text.endswith(end)
    assert (" helps: use " in text) == ("=" not in end)
    assert ("train.accumulation helps" in text) == (tried is None)
    assert config == before


@pytest.mark.parametrize(
    ("largest", "sequence", "words"),
    [
        (160, 1, "160 examples, 20 per chip, by doubling"),
        (12, 4, "12 examples, 1.5 per chip, by doubling"),
        (0, 1, "none, not even 8 example(s)"),
        (0, 4, "none, not even 2 example(s)"),
    ],
)
def test_report_has_the_largest_batch(monkeypatch, largest, sequence, words):
    config = {**CONFIG, "train": {"remat": True, "accumulation": 2}}
    config["mesh"] = {"shard_params": True, "sequence": sequence}
    text, _ = report(monkeypatch, [plan_of(GIB)], largest=largest, config=config)
    assert f"largest batch      {words}" in text.splitlines()


def test_a_step_that_exceeds_the_memory_of_the_machine_warns(monkeypatch, caplog):
    own = spec(devices=2)
    needed = 2 * make_plan(own).memory.total
    for excess, count in ((10**9, 0), (0, 0), (-1, 1)):
        monkeypatch.setattr(module, "machine_bytes", lambda excess=excess: needed + excess)
        warn_if_too_large(own)
        warned = ["train.accumulation" in record.getMessage() for record in caplog.records]
        assert warned == [True] * count
