"""A plan in words: memory, communication, time and cost of a run, and what would fit if it does not."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from nystromformer_jax.training.job import Job
from nystromformer_jax.training.plan import Memory, Plan, largest_batch, make_plan
from nystromformer_jax.training.topology import Chip

__all__ = ["Report", "report"]

Config = Mapping[str, Mapping[str, Any]]

UNPRINTED = "unknown: this jaxlib cannot print the compiled program; a newer one may"
NO_TIME = "no estimate: only a TPU's compiler makes one; pass --topology, such as v5e:1x1"
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
    """What `run_plan.py` prints, and whether the step fits."""

    text: str
    fits: bool


def report(
    config: Config,
    make_job: Callable[[Config], Job],
    chip: Chip | None,
    *,
    topology: str = "",
    price: float = 0.0,
    largest: bool = True,
) -> Report:
    """Plans a run and says what came out.

    Args:
        config: Sections of plain values.
        make_job: Makes its job, for the devices of the plan.
        chip: What they are; None: whatever is here, whose memory and speed are not known.
        topology: Their name.
        price: What a chip costs an hour; 0: unknown.
        largest: Whether to look for the largest batch, which compiles the step a few times more.
    """
    limit = math.inf if chip is None else chip.memory_bytes
    job = make_job(config)
    plan = make_plan(job, limit)
    lines = [_head(job, topology), "", *_memory_lines(plan, chip), ""]
    if plan.fits:
        lines += [*_step_lines(plan), *_time_lines(job, plan, chip, price)]
    else:
        lines.append(f"what would fit     {_what_would_fit(config, make_job, limit)}")
    if largest and chip is not None:
        batch = largest_batch(job, limit, {job.config.train.batch_size: plan})
        least = job.mesh.shape["data"] * job.config.train.accumulation
        most = f"{batch} examples, {batch / job.mesh.size:g} a chip"
        lines.append(
            f"largest batch      {most if batch else f'none, not even {least} example(s)'}"
        )
    return Report("\n".join(lines), plan.fits)


def _head(job: Job, topology: str) -> str:
    config, shape = job.config, job.mesh.shape
    lengths = sorted({leaf.shape[0] for leaf in job.row.values() if leaf.shape})
    parts = [
        f"{topology or jax.devices()[0].device_kind}: {job.mesh.size} device(s),"
        f" data {shape['data']} × sequence {shape['sequence']}",
        f"batch {config.train.batch_size}, length {', '.join(f'{length:,}' for length in lengths)}",
    ]
    if config.train.accumulation > 1:
        parts.append(f"in {config.train.accumulation} parts")
    if config.train.remat:
        parts.append("layers rematerialised")
    if config.mesh.shard_params:
        parts.append("parameters split")
    return "; ".join(parts)


def _memory_lines(plan: Plan, chip: Chip | None) -> Iterator[str]:
    yield "memory of a device"
    if plan.memory is None:
        yield f"  the compiler refused: {plan.reason}"
        return
    for field in dataclasses.fields(Memory):
        yield f"  {_NAMES[field.name]:38} {_bytes(getattr(plan.memory, field.name)):>12}"
    of = "" if chip is None else f" of {_bytes(chip.memory_bytes)}"
    yield f"  {'together':38} {_bytes(plan.memory.total):>12}{of}{'' if plan.fits else ': DOES NOT FIT'}"


def _step_lines(plan: Plan) -> Iterator[str]:
    if plan.flops is not None:
        yield f"FLOPs of a step    {plan.flops:.3g} a device"
    for kind, found in (plan.collectives or {}).items():
        yield f"{kind:18} {found.count} a step, {_bytes(found.nbytes)} to each device"


def _time_lines(job: Job, plan: Plan, chip: Chip | None, price: float) -> Iterator[str]:
    steps = job.config.train.total_steps
    if plan.collectives is None:
        yield f"collectives, time  {UNPRINTED}"
        return
    if chip is None or (seconds := plan.step_seconds(chip)) is None:
        yield f"time               {NO_TIME}"
        return
    compute, links = plan.compute_seconds(chip) or 0.0, plan.link_seconds(chip) or 0.0
    yield (
        f"time of a step     {_seconds(seconds)} by the compiler's estimate: {_seconds(compute)} computing,"
        f" {_seconds(links)} communicating if nothing hides it; ± 40 %, and input is not in it"
    )
    hours = steps * seconds / 3600
    yield f"time of the run    {steps:,} steps, {_hours(hours)}, without evaluation"
    if price:
        chip_hours = hours * job.mesh.size
        yield f"cost of the run    {chip_hours * price:,.2f} ({chip_hours:,.2f} chip-hours at {price:g})"


def _what_would_fit(config: Config, make_job: Callable[[Config], Job], limit: int | float) -> str:
    """Flags with which the step fits, as few as possible and in the order of what they cost."""
    job = make_job(config)
    for changes in _smaller(config, job):
        changed = {name: dict(section) for name, section in config.items()}
        for key, value in changes.items():
            section, name = key.split(".")
            changed[section][name] = value
        if make_plan(make_job(changed), limit).fits:
            return " ".join(f"--config.{key}={value}" for key, value in changes.items())
    others = ["a smaller train.batch_size", "a shorter length", "more chips"]
    if job.mesh.shape["sequence"] == 1:
        is_nystrom = config["attention"].get("name", "nystrom") == "nystrom"
        others.append("mesh.sequence" if is_nystrom else "Nyström attention with mesh.sequence")
    return (
        "nothing of train.remat, mesh.shard_params and train.accumulation: take"
        f" {', '.join(others[:-1])} or {others[-1]}"
    )


def _smaller(config: Config, job: Job) -> Iterator[dict[str, Any]]:
    """Ever more changes that take less memory and more time."""
    changes: dict[str, Any] = {}
    data = job.mesh.shape["data"]
    if not config["train"]["remat"]:
        changes["train.remat"] = True
        yield dict(changes)
    if not config["mesh"]["shard_params"] and job.mesh.size > 1:
        changes["mesh.shard_params"] = True
        yield dict(changes)
    rows = job.config.train.batch_size // data
    for parts in range(job.config.train.accumulation + 1, rows + 1):
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
