"""The search for the largest batch, and the text of plans; tests/test_meshes.py measures a step."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.errors import JaxRuntimeError

from nystromformer_jax.training import MeshConfig, TrainSpec, make_mesh
from nystromformer_jax.training.environment import machine_bytes
from nystromformer_jax.training.planning import estimate
from nystromformer_jax.training.planning import report as report_file
from nystromformer_jax.training.planning.estimate import Memory, Plan, largest_that_fits, make_plan
from nystromformer_jax.training.planning.hlo import Collectives, Launches
from nystromformer_jax.training.planning.report import make_report
from nystromformer_jax.training.topology import CHIPS, chip_of
from tests.training import tiny

GIB = 2**30


@pytest.mark.parametrize("limit", [1, 7, 8, 9, 100, 12_345])
@pytest.mark.parametrize("base", [None, 0])
@pytest.mark.parametrize("first", [1, 10])
def test_search_tries_few_batches_if_memory_is_linear(limit, base, first):
    tried = []

    def needed(number):
        tried.append(number)
        return number * 10 if number * 10 <= 3 * limit * 10 else None

    assert largest_that_fits(needed, 10 * limit + 5, first=first, base=base) == limit
    assert limit + 1 in tried
    assert len(tried) == len(set(tried)) <= 8


@pytest.mark.parametrize("power", [0.5, 1.5, 2.0])
@pytest.mark.parametrize("tells", [True, False])
def test_search_finds_the_largest_batch_if_memory_is_nonlinear(power, tells):
    tried = []

    def needed(number):
        tried.append(number)
        size = 1000 * (100 + number**power)
        return size if tells or size <= 150_000 else None

    found = largest_that_fits(needed, 150_000)
    assert found == int(50 ** (1 / power) + 1e-9)
    assert len(tried) < 25


def test_search_returns_zero_if_nothing_fits():
    assert largest_that_fits(lambda number: 10 * number + 7, 5, first=4) == 0


def row():
    number = jax.ShapeDtypeStruct((), jnp.int32)
    return {"inputs": jax.ShapeDtypeStruct((tiny.FEATURES,), jnp.float32), "labels": number}


def spec(devices=8, **sections):
    config = tiny.config(batch_size=16)
    train = dataclasses.replace(config.train, **sections.get("train", {}))
    mesh = MeshConfig(**sections.get("mesh", {}))
    return TrainSpec(
        config=dataclasses.replace(config, train=train, mesh=mesh),
        mesh=make_mesh(mesh, jax.devices()[:devices]),
        make_params=tiny.make_params,
        loss_fn=tiny.loss_fn,
        row=row(),
    )


def test_length_is_that_of_the_inputs():
    """Labels of some tokens are shorter."""
    labels = jax.ShapeDtypeStruct((2,), jnp.int32)
    tagger = dataclasses.replace(spec(), row={**row(), "labels": labels})
    assert f"length {tiny.FEATURES}" in report_file._head(tagger, "")


def test_memory_is_counted_by_kind_on_one_device():
    memory = make_plan(spec()).memory
    parameters = 4 * tiny.FEATURES * tiny.CLASSES
    assert memory.params == parameters
    assert memory.optimizer == 2 * parameters + 4 + 4 + 4  # both moments, the step, and two counts
    assert memory.batch == 2 * 4 * (tiny.FEATURES + 1 + 1)


class Unprintable:
    """A lowered and compiled step, whose text cannot be printed."""

    def __init__(self, real):
        self.real = real

    def lower(self, *shapes):
        return Unprintable(self.real.lower(*shapes))

    def compile(self, compiler_options):
        return Unprintable(self.real.compile(compiler_options))

    def as_text(self):
        raise JaxRuntimeError("INTERNAL: RET_CHECK failure (hlo_instruction.cc:1)")

    def __getattr__(self, name):
        return getattr(self.real, name)


def test_an_unprintable_program_has_memory_and_flops(monkeypatch):
    expected, real = make_plan(spec()), TrainSpec.make_train_step
    monkeypatch.setattr(TrainSpec, "make_train_step", lambda self: Unprintable(real(self)))
    found = make_plan(spec())
    assert found.memory == expected.memory
    assert found.flops == expected.flops
    assert found.collectives is found.cycles is found.collective_bytes is None
    chip = CHIPS["v5e"]
    assert found.link_seconds(chip) is found.step_seconds(chip) is None
    said = make_report(CONFIG, lambda config: spec(), chip, largest=False)
    assert said.fits
    line = (
        "collectives, time  unknown: this jaxlib cannot print the compiled program; a newer one may"
    )
    assert line in said.text.splitlines()


def test_largest_batch_is_divisible_by_devices_and_accumulation(monkeypatch):
    asked = []

    def make_plan(spec, limit_bytes, batch_size):
        asked.append(batch_size)
        return plan_of(1000 + 10 * batch_size)

    monkeypatch.setattr(estimate, "make_plan", make_plan)
    found = estimate.largest_batch(spec(train={"accumulation": 2}), 1000 + 10 * 175)
    assert found == 160
    assert 176 in asked


def test_largest_batch_is_at_least_a_known_batch_that_fits(monkeypatch):
    """On 8 devices the batch of 16 has two parts; batches with all four parts are multiples of 32."""
    monkeypatch.setattr(estimate, "make_plan", lambda *arguments: plan_of(20 * GIB))
    four_parts = spec(train={"accumulation": 4})
    assert estimate.largest_batch(four_parts, 16 * GIB, {16: plan_of(GIB)}) == 16
    assert estimate.largest_batch(four_parts, 16 * GIB, {16: plan_of(20 * GIB)}) == 0


CONFIG = {
    "train": {"remat": False},
    "mesh": {"shard_params": False},
    "attention": {"name": "nystrom"},
}


def plan_of(total, **values):
    return Plan(
        memory=None if total is None else Memory(1, 2, 3, 4, total - 15, 5),
        fits=total is not None and total <= 16 * GIB,
        **{"cycles": 3_000_000, "flops": 1e9, **values},
    )


def report(monkeypatch, plans, *, largest=None, config=CONFIG, **options):
    """A report on the given plans, and the configs that it planned."""
    asked = []

    def make_spec(config):
        asked.append(config)
        return spec(train=dict(config["train"]), mesh=dict(config["mesh"]))

    left = iter(plans)
    monkeypatch.setattr(report_file, "make_plan", lambda *arguments: next(left))
    monkeypatch.setattr(report_file, "largest_batch", lambda *arguments: largest)
    chip, largest_too = CHIPS["v5e"], largest is not None
    found = make_report(config, make_spec, chip, topology="v5e:2x4", largest=largest_too, **options)
    return found, asked


def test_report_of_a_fitting_plan_has_time_and_cost(monkeypatch):
    links = {"all-reduce": Collectives(2, 45_000_000)}
    found, _ = report(monkeypatch, [plan_of(GIB, collectives=links)], price=3.6)
    assert found.fits
    assert "v5e:2x4: 8 device(s), data 8 × sequence 1; batch 16" in found.text
    assert "total                                      1.00 GiB of 16.00 GiB\n" in found.text
    # 3 million cycles at 1.5 GHz, 45 MB over a link of 45 GB/s.
    assert "3 ms by the compiler's estimate: 2 ms computing, 1 ms communicating" in found.text
    assert "30 steps, 0.1 seconds" in found.text
    assert f"cost of the run    {8 * 30 * 0.003 / 3600 * 3.6:,.2f} (" in found.text


def test_kernel_time_is_bounded_by_memory_bandwidth(monkeypatch):
    plan = plan_of(GIB, kernel_bytes=810_000_000)  # a v5e moves 810 GB a second
    assert plan.compute_seconds(CHIPS["v5e"]) == pytest.approx(0.002 + 0.001)


def test_time_on_a_gpu_is_that_of_memory_or_flops(monkeypatch):
    launches = Launches(7, nbytes=9_600_000_000, conditionals=0)
    plan = plan_of(GIB, cycles=None, launches=launches)
    assert plan.compute_seconds(CHIPS["h200"]) == pytest.approx(0.002)
    plan = plan_of(GIB, cycles=None, launches=launches, flops=9.89e12)
    assert plan.compute_seconds(CHIPS["h200"]) == pytest.approx(0.01)
    found, _ = report(monkeypatch, [plan])
    assert "kernels of a step  7, which read and write 8.94 GiB" in found.text
    assert "by memory access and FLOPs" in found.text


def test_report_suggests_options_that_fit(monkeypatch):
    plans = [plan_of(17 * GIB, reason="too much"), plan_of(17 * GIB), plan_of(GIB)]
    found, asked = report(monkeypatch, plans)
    assert not found.fits
    assert "17.00 GiB of 16.00 GiB: DOES NOT FIT" in found.text
    assert "--config.train.remat=True --config.mesh.shard_params=True" in found.text
    assert asked[-1]["mesh"]["shard_params"]
    assert not CONFIG["mesh"]["shard_params"]


def test_report_suggests_options_that_the_config_leaves_to_their_defaults(monkeypatch):
    config = {"train": {}, "mesh": {}, "attention": {}}
    found, asked = report(monkeypatch, [plan_of(17 * GIB), plan_of(GIB)], config=config)
    assert found.text.endswith("--config.train.remat=True")
    assert asked[-1]["train"] == {"remat": True}


def test_report_states_that_no_option_fits(monkeypatch):
    found, asked = report(monkeypatch, [plan_of(None)] + [plan_of(17 * GIB)] * 3)
    assert "none of train.remat" in found.text
    assert asked[-1]["train"]["accumulation"] == 2  # sixteen examples on eight devices
    assert found.text.endswith("a shorter length, more chips or mesh.sequence")


def test_suggested_accumulations_divide_the_rows_per_device(monkeypatch):
    train = {"remat": True, "batch_size": 8 * 18, "accumulation": 3}
    config = {**CONFIG, "train": train, "mesh": {"shard_params": True}}
    found, asked = report(monkeypatch, [plan_of(17 * GIB)] * 4, config=config)
    assert [changed["train"]["accumulation"] for changed in asked[-3:]] == [6, 9, 18]
    assert "none of train.remat" in found.text


@pytest.mark.parametrize(
    ("name", "sequence", "end"),
    [
        ("nystrom", 2, "a smaller train.batch_size, a shorter length or more chips"),
        ("softmax", 2, "a smaller train.batch_size, a shorter length or more chips"),
        ("softmax", 1, "more chips or Nyström attention with mesh.sequence"),
    ],
)
def test_report_suggests_only_unused_options(monkeypatch, name, sequence, end):
    mesh = {"shard_params": True, "sequence": sequence}
    train = {"remat": True, "batch_size": 8}
    config = {"train": train, "mesh": mesh, "attention": {"name": name}}
    found, _ = report(monkeypatch, [plan_of(17 * GIB)] * 9, config=config)
    assert found.text.endswith(end)


@pytest.mark.parametrize(
    ("largest", "sequence", "words"),
    [
        (160, 1, "160 examples, 20 per chip"),
        (12, 4, "12 examples, 1.5 per chip"),
        (0, 1, "none, not even 16 example(s)"),
        (0, 4, "none, not even 4 example(s)"),
    ],
)
def test_report_has_the_largest_batch(monkeypatch, largest, sequence, words):
    config = {**CONFIG, "train": {"remat": True, "accumulation": 2}}
    config["mesh"] = {"shard_params": True, "sequence": sequence}
    found, _ = report(monkeypatch, [plan_of(GIB)], largest=largest, config=config)
    assert f"largest batch      {words}" in found.text.splitlines()


def test_rejects_an_unknown_chip():
    with pytest.raises(ValueError, match="Unknown chip 'v5x'"):
        chip_of("v5x:2x2")


@pytest.mark.parametrize("excess", [-1, 0, 10**9])
def test_a_step_that_exceeds_the_memory_of_the_machine_warns(monkeypatch, caplog, excess):
    own = spec(devices=2)
    needed = 2 * make_plan(own).memory.total
    monkeypatch.setattr(estimate, "machine_bytes", lambda: needed + excess)
    estimate.warn_if_too_large(own)
    warned = ["train.accumulation" in record.getMessage() for record in caplog.records]
    assert warned == [True] * (excess < 0)


def test_memory_of_this_machine_is_known():
    assert 10**8 < machine_bytes() < 10**15
