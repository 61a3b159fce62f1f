"""Estimates memory and time of a training step by compiling it; the devices need not exist."""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from nystromformer_jax.training.environment import machine_bytes
from nystromformer_jax.training.errors import is_out_of_memory, needed_temporaries
from nystromformer_jax.training.planning.hlo import (
    Collectives,
    Launches,
    estimated_cycles,
    find_collectives,
    find_launches,
    kernel_costs,
)
from nystromformer_jax.training.spec import TrainSpec
from nystromformer_jax.training.topology import Chip, compiler_options


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
    """Estimates per device for one training step."""

    memory: Memory | None  # None: out of memory, size not reported
    fits: bool  # True if the step fits the device's memory
    flops: float | None = None  # some compilers count a loop body once; None: unknown
    # Collectives by kind; empty for one device; None if jaxlib cannot print the program.
    collectives: Mapping[str, Collectives] | None = dataclasses.field(default_factory=dict)
    cycles: int | None = None  # see `estimated_cycles`
    kernel_bytes: int = 0  # bytes of memory access that the Pallas kernels declare
    launches: Launches | None = None  # of a GPU; None for other devices
    reason: str = ""  # the compiler's error if it ran out of memory

    @property
    def collective_bytes(self) -> int | None:
        """Total bytes of all collectives; None if unknown."""
        if self.collectives is None:
            return None
        return sum(found.nbytes for found in self.collectives.values())

    def compute_seconds(self, chip: Chip) -> float | None:
        """Returns the estimated compute time: compiler cycles, plus memory access of Pallas kernels.

        Compared to measured kernels, this estimate was off by 40 %. For GPUs it is the time of memory
        access or of the FLOPs, whichever is longer.
        """
        if self.launches is not None:
            return max(self.launches.nbytes / chip.memory_rate, (self.flops or 0) / chip.flops)
        if self.cycles is None:
            return None
        return self.cycles / chip.hertz + self.kernel_bytes / chip.memory_rate

    def link_seconds(self, chip: Chip) -> float | None:
        """Returns the total time of the collectives, run sequentially over one link."""
        return None if self.collective_bytes is None else self.collective_bytes / chip.link_rate

    def step_seconds(self, chip: Chip) -> float | None:
        """Returns the time of computation plus communication, without overlap."""
        compute, links = self.compute_seconds(chip), self.link_seconds(chip)
        return None if compute is None or links is None else compute + links


def make_plan(spec: TrainSpec, limit_bytes: int | float = math.inf, batch_size: int = 0) -> Plan:
    """Compiles the training step of `spec` and returns the compiler's estimates.

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

    try:
        device = spec.mesh.devices.flat[0]
        compiled = (
            spec.make_train_step().lower(*shapes).compile(compiler_options=compiler_options(device))
        )
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        temporaries = needed_temporaries(str(error))
        memory = None if temporaries is None else memory_with(0, temporaries, 0)
        return Plan(memory, fits=False, reason=str(error).splitlines()[0])
    statistics: Any = compiled.memory_analysis()
    arguments = statistics.argument_size_in_bytes
    new_results = statistics.output_size_in_bytes - statistics.alias_size_in_bytes
    memory = memory_with(
        arguments - _device_bytes(shapes) + new_results,
        statistics.temp_size_in_bytes,
        statistics.generated_code_size_in_bytes,
    )
    try:
        text = compiled.as_text()
    except JaxRuntimeError:  # a newer libtpu can compile what jaxlib cannot print
        text = None
    return Plan(
        memory,
        fits=memory.total <= limit_bytes,
        flops=(compiled.cost_analysis() or {}).get("flops"),
        collectives=None if text is None else find_collectives(text),
        cycles=None if text is None else estimated_cycles(text),
        launches=find_launches(text) if text is not None and device.platform == "gpu" else None,
        kernel_bytes=0 if text is None else sum(nbytes for _, nbytes in kernel_costs(text)),
    )


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


def largest_batch(
    spec: TrainSpec, limit_bytes: int | float, known: Mapping[int, Plan] | None = None
) -> int:
    """Returns the largest global batch size that fits a device's memory; 0 if none does.

    `known` holds existing plans by batch size.
    """
    parts = spec.mesh.shape["data"] * (spec.config.train.accumulation or 1)

    def needed(multiple: int) -> int | float | None:
        plan = (known or {}).get(multiple * parts) or make_plan(spec, limit_bytes, multiple * parts)
        return None if plan.memory is None else plan.memory.total

    first = max(1, spec.config.train.batch_size // parts)
    state, _, _ = spec.argument_shapes(parts)
    base = _device_bytes(state)
    found = parts * largest_that_fits(needed, limit_bytes, first=first, base=base)
    # A known batch need not be a multiple of `parts`: it may have fewer parts, see `num_parts`.
    return max(found, *(size for size, plan in (known or {}).items() if plan.fits), 0)


def largest_that_fits(
    needed: Callable[[int], int | float | None],
    limit_bytes: int | float,
    *,
    first: int = 1,
    base: int | float | None = None,
) -> int:
    """Returns the largest integer that needs at most `limit_bytes`; 0 if none does.

    `needed(n)` returns the bytes that n needs, or None if they exceed the limit by an unknown amount.
    The search starts at `first` and assumes almost linear growth, to need few evaluations. `base` is
    `needed(0)`; None: unknown.
    """
    sizes: dict[int, int | float] = {} if base is None else {0: base}
    low, high, misses = 0, 0, 0  # high: the smallest known not to fit (0: unknown)
    guess = first
    while high != low + 1:
        size = needed(guess)
        if size is not None:
            sizes[guess] = size
        if size is not None and size <= limit_bytes:
            low, misses = guess, 0
        else:
            high, misses = guess, misses + 1
        guess = _next_guess(sizes, low, high, limit_bytes, misses)
    return low


def _next_guess(
    sizes: Mapping[int, int | float], low: int, high: int, limit_bytes: int | float, misses: int
) -> int:
    """Returns the next guess: where a line through the two sizes nearest to the limit reaches the limit.

    The guess is between `low` and `high` and at most 32 times `low`. After two misses it is a bisection.
    """
    if high and misses > 1:
        return max((low + high) // 2, low + 1)
    guess = 8 * max(low, 1)
    if len(sizes) > 1:
        near = sorted(sizes, key=lambda number: abs(sizes[number] - limit_bytes))[:2]
        small, large = sorted(near)
        slope = max((sizes[large] - sizes[small]) / (large - small), 1.0)
        guess = min(large + int((limit_bytes - sizes[large]) // slope), 32 * max(low, 1))
    if high:
        guess = min(guess, high - 1)
    return max(guess, low + 1)


def _device_bytes(tree: Any) -> int:
    """Returns the bytes per device of `tree`, a tree of shapes with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )
