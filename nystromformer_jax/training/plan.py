"""Plans a training step by compiling it for devices that need not exist: memory, communication, time."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from nystromformer_jax.training.collectives import Collectives, find_collectives
from nystromformer_jax.training.config import num_parts
from nystromformer_jax.training.environment import machine_bytes
from nystromformer_jax.training.errors import is_out_of_memory, needed_temporaries
from nystromformer_jax.training.spec import TrainSpec
from nystromformer_jax.training.topology import Chip, compiler_options

Config = Mapping[str, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device, as the compiler allocates them."""

    params: int
    optimizer: int  # optimizer state and step counter
    batch: int
    other: int  # metric sums, and padding of array layouts
    temporaries: int  # activations, gradients, gathered parameters; excludes in-place updates
    code: int

    @property
    def total(self) -> int:
        """Total bytes."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The compiler's figures per device for one training step; None: unknown."""

    memory: Memory | None  # None: out of memory, size not reported
    fits: bool  # True if the step fits the device's memory
    flops: float | None = (
        None  # some compilers count the body of a loop once, also in `bytes_accessed`
    )
    bytes_accessed: float | None = None  # read and written by all operations
    # Collectives by kind; empty for one device; None if jaxlib cannot print the program.
    collectives: Mapping[str, Collectives] | None = dataclasses.field(default_factory=dict)
    reason: str = ""  # the compiler's error if it ran out of memory

    def compute_seconds(self, chip: Chip) -> float | None:
        """Returns the time by `roofline_seconds`."""
        return roofline_seconds(self.flops, self.bytes_accessed, chip)

    def link_seconds(self, chip: Chip) -> float | None:
        """Returns the total time of the collectives, run sequentially over one link, each byte sent once."""
        if self.collectives is None:
            return None
        return sum(found.nbytes for found in self.collectives.values()) / chip.link_rate

    def step_seconds(self, chip: Chip) -> float | None:
        """Returns the time of computation plus communication, without overlap."""
        compute, links = self.compute_seconds(chip), self.link_seconds(chip)
        return None if compute is None or links is None else compute + links


def make_plan(spec: TrainSpec, limit_bytes: int | float = math.inf, batch_size: int = 0) -> Plan:
    """Compiles the training step of `spec` and returns the compiler's figures.

    `limit_bytes` is the memory per device. `batch_size` is the global batch size; 0: from the config.
    """
    shapes = spec.argument_shapes(batch_size)
    state, metric_sums, batch = shapes

    def memory_with(rest: int, temporaries: int, code: int) -> Memory:
        return Memory(
            params=_device_bytes(state.params),
            optimizer=_device_bytes((state.step, state.opt_state)),
            batch=_device_bytes(batch),
            other=_device_bytes(metric_sums) + rest,
            temporaries=temporaries,
            code=code,
        )

    lowered = spec.make_train_step().lower(*shapes)
    program = compile_program(lowered, spec.mesh.devices.flat[0])
    if program.run is None:
        memory = None if program.temp_bytes is None else memory_with(0, program.temp_bytes, 0)
        return Plan(memory, fits=False, reason=program.reason)
    rest = program.argument_bytes - _device_bytes(shapes) + program.result_bytes
    memory = memory_with(rest, program.temp_bytes or 0, program.code_bytes)
    try:
        collectives = find_collectives(program.run.as_text() or "")
    except JaxRuntimeError:  # a newer libtpu can compile what jaxlib cannot print
        collectives = None
    return Plan(
        memory,
        fits=memory.total <= limit_bytes,
        flops=program.flops,
        bytes_accessed=program.bytes_accessed,
        collectives=collectives,
    )


@dataclasses.dataclass(frozen=True)
class Program:
    """A program compiled for a device, with the compiler's figures; None: unknown."""

    run: Any  # `jax.stages.Compiled`; None: the device has too little memory
    argument_bytes: int
    result_bytes: int  # excludes results in place of arguments
    temp_bytes: int | None
    code_bytes: int = 0
    flops: float | None = None  # see `Plan`
    bytes_accessed: float | None = None
    reason: str = ""  # the compiler's error if memory is too small

    @property
    def peak_bytes(self) -> int | None:
        """Bytes of arguments, results and temporaries."""
        if self.temp_bytes is None:
            return None
        return self.argument_bytes + self.result_bytes + self.temp_bytes


def compile_program(lowered: Any, device: jax.Device) -> Program:
    """Compiles a lowered function for `device` and devices like it."""
    try:
        run = lowered.compile(compiler_options=compiler_options(device))
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        arguments, results = (
            sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
            for tree in (lowered.args_info, lowered.out_info)
        )
        temporaries, reason = needed_temporaries(str(error)), str(error).splitlines()[0]
        return Program(None, arguments, results, temporaries, reason=reason)
    statistics: Any = run.memory_analysis()
    cost = program_cost(run)
    return Program(
        run,
        statistics.argument_size_in_bytes,
        statistics.output_size_in_bytes - statistics.alias_size_in_bytes,
        statistics.temp_size_in_bytes,
        statistics.generated_code_size_in_bytes,
        cost.get("flops"),
        cost.get("bytes accessed"),
    )


def roofline_seconds(flops: float | None, bytes_accessed: float | None, chip: Chip) -> float | None:
    """Returns the time of the FLOPs or of the memory access, whichever is longer.

    TPUs also count reads and writes of on-chip memory, so their time may be half of it.
    """
    if flops is None or bytes_accessed is None:
        return None
    return max(flops / chip.flops, bytes_accessed / chip.memory_rate)


def program_cost(compiled: Any) -> Mapping[str, float]:
    """Returns FLOPs and bytes of a program; empty if unknown."""
    if cost := compiled.cost_analysis():
        return dict(cost)
    try:  # the compiler of an absent GPU reports nothing, so XLA's analysis of the optimized program is used
        from jaxlib import _jax

        [module] = compiled.runtime_executable().hlo_modules()
        return dict(_jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module))
    except (ImportError, AttributeError, RuntimeError, ValueError):  # not a public function
        return {}


def warn_if_too_large(spec: TrainSpec) -> None:
    """Logs a warning if a training step on CPU devices needs more memory than the machine has.

    Linux ends such a program without a message. Accelerators refuse it with one.
    """
    if spec.mesh.devices.flat[0].platform != "cpu":
        return
    devices = len(spec.mesh.local_devices)
    limit = machine_bytes() / devices
    # What all operations read and write, each loop's body once, is an upper bound and quick to compute.
    lowered = spec.make_train_step().lower(*spec.argument_shapes())
    if (lowered.cost_analysis() or {}).get("bytes accessed", math.inf) < limit:
        return
    plan = make_plan(spec, limit)
    if plan.memory is not None and not plan.fits:
        logging.getLogger(__name__).warning(
            "A training step needs %.1f GiB, but this machine has %.1f GiB, so the system may end the"
            " program: raise train.accumulation, or lower train.batch_size or the length.",
            *(devices * nbytes / 2**30 for nbytes in (plan.memory.total, limit)),
        )


# --- The largest batch ----------------------------------------------------------------------------


def largest_batch(spec: TrainSpec, limit_bytes: int | float, plan: Plan) -> int:
    """Returns the largest global batch size that fits a device's memory; 0 if none does.

    It tries that of the config, whose plan is `plan`, and doubles or halves it.
    """
    devices = spec.mesh.shape["data"]
    batch, largest = spec.config.train.batch_size, 0
    while plan.fits:
        largest, batch = batch, 2 * batch
        plan = make_plan(spec, limit_bytes, batch)
    while not largest and (batch := batch // 2 // devices * devices):
        largest = batch if make_plan(spec, limit_bytes, batch).fits else 0
    return largest


def _device_bytes(tree: Any) -> int:
    """Returns the bytes per device of `tree`, a tree of shapes with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


# --- The text of run_plan.py ----------------------------------------------------------------------


def describe_plan(
    config: Config,
    make_spec: Callable[[Config], TrainSpec],
    chip: Chip | None,
    *,
    topology: str = "",
    price: float = 0.0,
    largest: bool = True,
) -> tuple[str, bool]:
    """Plans the run `make_spec(config)`; returns a text, and True if the step fits the device's memory.

    `chip` has the device specifications; None: local devices of unknown memory and speed. `price` is the
    cost per chip-hour; 0: unknown. `largest` adds the largest batch size by doubling, which compiles the
    step a few more times.
    """
    limit = math.inf if chip is None else chip.memory_bytes
    spec = make_spec(config)
    plan = make_plan(spec, limit)
    lines = [_head(spec, topology), "", *_memory_lines(plan, chip), ""]
    if plan.fits:
        lines += _step_lines(spec, plan, chip, price)
    else:
        lines.append(f"what would fit     {_what_would_fit(config, make_spec, spec, limit)}")
    if largest and chip is not None:
        batch = largest_batch(spec, limit, plan)
        least = spec.mesh.shape["data"]
        most = f"{batch} examples, {batch / spec.mesh.size:g} per chip, by doubling"
        lines.append(
            f"largest batch      {most if batch else f'none, not even {least} example(s)'}"
        )
    return "\n".join(lines), plan.fits


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
    names = {
        "params": "parameters",
        "optimizer": "optimizer state",
        "batch": "batch",
        "other": "metric sums, padding of layouts",
        "temporaries": "temporaries (activations, gradients)",
        "code": "program",
    }
    yield "memory per device"
    if plan.memory is None:
        yield f"  out of memory: {plan.reason}"
        return
    for name, nbytes in dataclasses.asdict(plan.memory).items():
        yield f"  {names[name]:38} {_bytes(nbytes):>12}"
    of = "" if chip is None else f" of {_bytes(chip.memory_bytes)}"
    yield f"  {'total':38} {_bytes(plan.memory.total):>12}{of}{'' if plan.fits else ': DOES NOT FIT'}"


def _step_lines(spec: TrainSpec, plan: Plan, chip: Chip | None, price: float) -> Iterator[str]:
    if plan.flops is not None:
        yield f"FLOPs of a step    {plan.flops:.3g} per device"
    if plan.bytes_accessed is not None:
        yield f"bytes of a step    {_bytes(plan.bytes_accessed)} read and written per device"
    for kind, found in (plan.collectives or {}).items():
        yield f"{kind:18} {found.count} per step, {_bytes(found.nbytes)} to each device"
    if plan.collectives is None:
        yield "collectives, time  unknown: this jaxlib cannot print the compiled program; a newer one may"
        return
    if chip is None or (seconds := plan.step_seconds(chip)) is None:
        yield "time               no estimate for this device: pass --topology, such as v5e:1x1 or h200:1"
        return
    compute, links = plan.compute_seconds(chip) or 0.0, plan.link_seconds(chip) or 0.0
    yield (
        f"time of a step     {_seconds(seconds)}, a roofline: {_seconds(compute)} by FLOPs or memory access,"
        f" {_seconds(links)} communicating if it does not overlap; without gaps"
        " between kernels and without input"
    )
    hours = spec.config.train.total_steps * seconds / 3600
    yield f"time of the run    {spec.config.train.total_steps:,} steps, {_hours(hours)}, without evaluation"
    if price:
        chip_hours = hours * spec.mesh.size
        yield f"cost of the run    {chip_hours * price:,.2f} ({chip_hours:,.2f} chip-hours at {price:g})"


def _what_would_fit(
    config: Config, make_spec: Callable[[Config], TrainSpec], spec: TrainSpec, limit: int | float
) -> str:
    """Returns the first flags of `_smaller` with which the step fits, or advice if none is enough."""
    # Its outputs depend on which examples are computed together.
    is_whole = config["attention"].get("pinv_start") == "batch_max"
    for changes in _smaller(spec):
        if is_whole and "train.accumulation" in changes:
            break
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
    tried = "neither train.remat nor mesh.shard_params"
    if not is_whole:
        tried = "none of train.remat, mesh.shard_params and train.accumulation"
    return f"{tried} helps: use {', '.join(others[:-1])} or {others[-1]}"


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


def _bytes(count: int | float) -> str:
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
