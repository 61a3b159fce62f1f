"""Text report of a plan: memory, communication, time, cost, and changes that make the run fit."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from nystromformer_jax.training.config import num_parts
from nystromformer_jax.training.planning.estimate import Memory, Plan, largest_batch, make_plan
from nystromformer_jax.training.spec import TrainSpec
from nystromformer_jax.training.topology import Chip

Config = Mapping[str, Mapping[str, Any]]

UNPRINTED = "unknown: this jaxlib cannot print the compiled program; a newer one may"
NO_TIME = "no estimate for this device: pass --topology, such as v5e:1x1 or h200:1"
_NAMES = {
    "params": "parameters",
    "optimizer": "optimizer state",
    "batch": "batch",
    "other": "metric sums, padding of layouts",
    "temporaries": "temporaries (activations, gradients)",
    "code": "program",
}


@dataclasses.dataclass(frozen=True)
class Report:
    """Text that `run_plan.py` prints; `fits` is True if the step fits the device's memory."""

    text: str
    fits: bool


def make_report(
    config: Config,
    make_spec: Callable[[Config], TrainSpec],
    chip: Chip | None,
    *,
    topology: str = "",
    price: float = 0.0,
    largest: bool = True,
) -> Report:
    """Returns the report of a plan for the run `make_spec(config)`.

    `chip` has the device specifications; None: local devices of unknown memory and speed. `price` is the
    cost per chip-hour; 0: unknown. `largest` enables the search for the largest batch size, which compiles
    the step a few more times.
    """
    limit = math.inf if chip is None else chip.memory_bytes
    spec = make_spec(config)
    plan = make_plan(spec, limit)
    lines = [_head(spec, topology), "", *_memory_lines(plan, chip), ""]
    if plan.fits:
        lines += [*_step_lines(plan), *_time_lines(spec, plan, chip, price)]
    else:
        lines.append(f"what would fit     {_what_would_fit(config, make_spec, spec, limit)}")
    if largest and chip is not None:
        batch = largest_batch(spec, limit, {spec.config.train.batch_size: plan})
        least = spec.mesh.shape["data"] * (spec.config.train.accumulation or 1)
        most = f"{batch} examples, {batch / spec.mesh.size:g} per chip"
        lines.append(
            f"largest batch      {most if batch else f'none, not even {least} example(s)'}"
        )
    return Report("\n".join(lines), plan.fits)


def _head(spec: TrainSpec, topology: str) -> str:
    config, shape = spec.config, spec.mesh.shape
    length = max((leaf.shape[0] for leaf in spec.row.values() if leaf.shape), default=0)
    parts = [
        f"{topology or jax.devices()[0].device_kind}: {spec.mesh.size} device(s),"
        f" data {shape['data']} × sequence {shape['sequence']}",
        f"batch {config.train.batch_size}, length {length:,}",
    ]
    if (count := _num_parts(spec)) > 1:
        parts.append(f"in {count} parts")
    if config.train.remat:
        parts.append("layers rematerialized")
    if config.mesh.shard_params:
        parts.append("parameters sharded")
    return "; ".join(parts)


def _num_parts(spec: TrainSpec) -> int:
    train = spec.config.train
    return num_parts(train.accumulation, train.batch_size, spec.mesh.shape["data"])


def _memory_lines(plan: Plan, chip: Chip | None) -> Iterator[str]:
    yield "memory per device"
    if plan.memory is None:
        yield f"  out of memory: {plan.reason}"
        return
    for field in dataclasses.fields(Memory):
        yield f"  {_NAMES[field.name]:38} {_bytes(getattr(plan.memory, field.name)):>12}"
    of = "" if chip is None else f" of {_bytes(chip.memory_bytes)}"
    yield f"  {'total':38} {_bytes(plan.memory.total):>12}{of}{'' if plan.fits else ': DOES NOT FIT'}"


def _step_lines(plan: Plan) -> Iterator[str]:
    if plan.flops is not None:
        yield f"FLOPs of a step    {plan.flops:.3g} per device"
    if plan.launches is not None:
        nbytes = _bytes(plan.launches.nbytes)
        yield f"kernels of a step  {plan.launches.count:,}, which read and write {nbytes}"
    for kind, found in (plan.collectives or {}).items():
        yield f"{kind:18} {found.count} per step, {_bytes(found.nbytes)} to each device"


def _time_lines(spec: TrainSpec, plan: Plan, chip: Chip | None, price: float) -> Iterator[str]:
    steps = spec.config.train.total_steps
    if plan.collectives is None:
        yield f"collectives, time  {UNPRINTED}"
        return
    if chip is None or (seconds := plan.step_seconds(chip)) is None:
        yield f"time               {NO_TIME}"
        return
    compute, links = plan.compute_seconds(chip) or 0.0, plan.link_seconds(chip) or 0.0
    if plan.launches is None:
        method, error = "the compiler's estimate", "± 40 %, without input"
    else:
        method, error = (
            "memory access and FLOPs",
            "without gaps between kernels and without input",
        )
    yield (
        f"time of a step     {_seconds(seconds)} by {method}: {_seconds(compute)} computing,"
        f" {_seconds(links)} communicating if it does not overlap; {error}"
    )
    hours = steps * seconds / 3600
    yield f"time of the run    {steps:,} steps, {_hours(hours)}, without evaluation"
    if price:
        chip_hours = hours * spec.mesh.size
        yield f"cost of the run    {chip_hours * price:,.2f} ({chip_hours:,.2f} chip-hours at {price:g})"


def _what_would_fit(
    config: Config, make_spec: Callable[[Config], TrainSpec], spec: TrainSpec, limit: int | float
) -> str:
    """Returns the first flags of `_smaller` with which the step fits, or advice if none is enough."""
    for changes in _smaller(spec):
        changed = {name: dict(section) for name, section in config.items()}
        for key, value in changes.items():
            section, name = key.split(".")
            changed[section][name] = value
        if make_plan(make_spec(changed), limit).fits:
            return " ".join(f"--config.{key}={value}" for key, value in changes.items())
    others = ["a smaller train.batch_size", "a shorter length", "more chips"]
    if spec.mesh.shape["sequence"] == 1:
        is_nystrom = config["attention"].get("name", "") in ("", "nystrom")  # "": the checkpoint's
        others.append("mesh.sequence" if is_nystrom else "Nyström attention with mesh.sequence")
    return (
        "none of train.remat, mesh.shard_params and train.accumulation helps: use"
        f" {', '.join(others[:-1])} or {others[-1]}"
    )


def _smaller(spec: TrainSpec) -> Iterator[dict[str, Any]]:
    """Yields config changes that trade time for memory, in ascending order of time cost."""
    changes: dict[str, Any] = {}
    data = spec.mesh.shape["data"]
    if not spec.config.train.remat:
        changes["train.remat"] = True
        yield dict(changes)
    if not spec.config.mesh.shard_params and spec.mesh.size > 1:
        changes["mesh.shard_params"] = True
        yield dict(changes)
    rows = spec.config.train.batch_size // data
    for parts in range(_num_parts(spec) + 1, rows + 1):
        if rows % parts == 0:
            yield {**changes, "train.accumulation": parts}


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{60 * hours:.1f} minutes" if hours >= 1 / 60 else f"{3600 * hours:.1f} seconds"
