"""What a run costs before it is paid for: its training step, compiled for devices that need not be there."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from nystromformer_jax.training.collectives import (
    Collectives,
    estimated_cycles,
    find_collectives,
    kernel_costs,
)
from nystromformer_jax.training.job import Job
from nystromformer_jax.training.topology import Chip, is_out_of_memory, needed_temporaries

__all__ = ["Memory", "Plan", "largest_batch", "largest_that_fits", "make_plan"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device; all fields together are what the compiler takes.

    Attributes:
        params: Of the model.
        optimizer: What the optimizer keeps of them, and the step.
        batch: One batch of examples.
        other: Metric sums, and what the device's layouts pad.
        temporaries: Activations, gradients, and what is gathered; what is updated in place is not here.
        code: The program.
    """

    params: int
    optimizer: int
    batch: int
    other: int
    temporaries: int
    code: int

    @property
    def total(self) -> int:
        """All together."""
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Plan:
    """One training step on each device.

    Attributes:
        memory: By kind; None where the compiler refused and did not say how much was missing.
        fits: Whether it is within the device's memory.
        flops: Of one device, loops as often as they run where the compiler says so; None: unknown.
        collectives: By kind; empty for one device; None: unknown, where jaxlib cannot print the program.
        cycles: What a TPU's compiler expects of all but Pallas kernels; see `estimated_cycles`.
        kernel_bytes: What those kernels say that they read and write.
        reason: What the compiler said if it refused.
    """

    memory: Memory | None
    fits: bool
    flops: float | None = None
    collectives: Mapping[str, Collectives] | None = dataclasses.field(default_factory=dict)
    cycles: int | None = None
    kernel_bytes: int = 0
    reason: str = ""

    @property
    def collective_bytes(self) -> int | None:
        """Of all kinds."""
        if self.collectives is None:
            return None
        return sum(found.nbytes for found in self.collectives.values())

    def compute_seconds(self, chip: Chip) -> float | None:
        """The compiler's cycles on the chip's clock, and kernels' bytes at the speed of its memory.

        On measured kernels such figures were off by 40 %.
        """
        if self.cycles is None:
            return None
        return self.cycles / chip.hertz + self.kernel_bytes / chip.memory_rate

    def link_seconds(self, chip: Chip) -> float | None:
        """What collectives take if all their bytes went through one link, and nothing was hidden."""
        return None if self.collective_bytes is None else self.collective_bytes / chip.link_rate

    def step_seconds(self, chip: Chip) -> float | None:
        """Both after each other."""
        compute, links = self.compute_seconds(chip), self.link_seconds(chip)
        return None if compute is None or links is None else compute + links


def make_plan(job: Job, limit_bytes: int | float = math.inf, batch_size: int = 0) -> Plan:
    """Compiles the training step of `job` for its mesh, and reads what the compiler says of it.

    Args:
        job: From a trainer.
        limit_bytes: The memory of a device.
        batch_size: Of all devices together, where it is not the config's.
    """
    shapes = job.shapes(batch_size)
    state, totals, batch = shapes
    try:
        compiled = job.step().lower(*shapes).compile()
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        temporaries = needed_temporaries(str(error))
        memory = None
        if temporaries is not None:
            memory = _memory(state, totals, batch, 0, temporaries, 0)
        return Plan(memory, fits=False, reason=str(error).splitlines()[0])
    statistics: Any = compiled.memory_analysis()
    arguments = statistics.argument_size_in_bytes
    new_results = statistics.output_size_in_bytes - statistics.alias_size_in_bytes
    memory = _memory(
        state,
        totals,
        batch,
        arguments - _device_bytes(shapes) + new_results,
        statistics.temp_size_in_bytes,
        statistics.generated_code_size_in_bytes,
    )
    try:
        text = compiled.as_text()
    except JaxRuntimeError:  # jaxlib reads the program before it prints it, and libtpu may be newer
        text = None
    return Plan(
        memory,
        fits=memory.total <= limit_bytes,
        flops=(compiled.cost_analysis() or {}).get("flops"),
        collectives=None if text is None else find_collectives(text),
        cycles=None if text is None else estimated_cycles(text),
        kernel_bytes=0 if text is None else sum(nbytes for _, nbytes in kernel_costs(text)),
    )


def largest_batch(
    job: Job, limit_bytes: int | float, known: Mapping[int, Plan] | None = None
) -> int:
    """The largest batch, of all devices together, whose step a device has memory for; 0: none.

    Args:
        job: From a trainer.
        limit_bytes: The memory of a device.
        known: Plans of some batches.
    """
    parts = job.mesh.shape["data"] * job.config.train.accumulation

    def needed(multiple: int) -> int | float | None:
        plan = (known or {}).get(multiple * parts) or make_plan(job, limit_bytes, multiple * parts)
        return None if plan.memory is None else plan.memory.total

    have = max(1, job.config.train.batch_size // parts)
    state, _, _ = job.shapes(parts)
    base = _device_bytes(state)
    return parts * largest_that_fits(needed, limit_bytes, first=have, base=base)


def largest_that_fits(
    needed: Callable[[int], int | float | None],
    limit_bytes: int | float,
    *,
    first: int = 1,
    base: int | float | None = None,
) -> int:
    """The largest number for which no more than `limit_bytes` are needed; 0: none.

    What is needed grows in an almost straight line, so that few numbers have to be tried.

    Args:
        needed: The bytes for a number; None: too many to tell.
        limit_bytes: How many there are.
        first: Where to begin.
        base: The bytes for 0; None: unknown.
    """
    sizes: dict[int, int | float] = {} if base is None else {0: base}
    low, high, misses = 0, 0, 0  # the largest that fits, the smallest that does not (0: unknown)
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
    """Where the straight line through the two numbers nearest to the limit meets it.

    Between `low` and `high`, and no wild leap beyond what is known; after two misses in the middle.
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


def _memory(state: Any, totals: Any, batch: Any, rest: int, temporaries: int, code: int) -> Memory:
    return Memory(
        params=_device_bytes(state.params),
        optimizer=_device_bytes((state.step, state.opt_state)),
        batch=_device_bytes(batch),
        other=_device_bytes(totals) + rest,
        temporaries=temporaries,
        code=code,
    )


def _device_bytes(tree: Any) -> int:
    """Bytes of `tree`, shapes that know their place, on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )
