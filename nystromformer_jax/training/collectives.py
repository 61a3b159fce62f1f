"""What devices send each other, and how long they compute, read from a compiled program's text."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterator

__all__ = ["Collectives", "estimated_cycles", "find_collectives", "kernel_costs"]

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(r"^\s*(?:ROOT )?%?[\w.\-]+ = (.*)$")
_NAME = re.compile(r" ([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_IDENTITY = re.compile(r'channel_id=\d+|chain_id="\d+"|op_name="[^"]*"')
_KERNEL = re.compile(r'op_name="[^"]*[/(]nystrom_(\w+)')
_KERNEL_BYTES = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


@dataclasses.dataclass(frozen=True)
class Collectives:
    """How often a kind occurs in one run of a program, and the bytes it brings to each device."""

    count: int
    nbytes: int


def find_collectives(text: str) -> dict[str, Collectives]:
    """The collectives of a compiled program by kind.

    Bytes are those of the result on one device, of a reduce-scatter those of its operand; what travels
    over the wires is up to twice as much for an all-reduce, and no more for the others. What stands in a
    loop whose length is known counts that often; both branches of a condition count.

    Args:
        text: `compiled.as_text()`.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    in_fusions = set()
    for times, operation, name, fused in _operations(text):
        kind = name.removesuffix("-start")
        if kind not in KINDS:
            continue
        # A TPU's compiler writes one collective into the fusions of its start, way and end.
        if fused:
            same = (kind, *_IDENTITY.findall(operation))
            if same in in_fusions:
                continue
            in_fusions.add(same)
        types = operation[: operation.index(f" {name}(")]
        if name.endswith("-start") and kind in ("all-gather", "collective-permute"):
            sizes = _sizes(types.replace("u32[]", ""))  # (operands …, results …) without contexts
            sizes = sizes[len(sizes) // 2 :]
        else:
            sizes = _sizes(types)
        nbytes = sum(sizes)
        if kind == "reduce-scatter":
            nbytes *= _group_size(operation)
        found[kind][0] += times
        found[kind][1] += times * nbytes
    return {kind: Collectives(*found[kind]) for kind in KINDS if kind in found}


def estimated_cycles(text: str) -> int | None:
    """The cycles that a TPU's compiler expects of a program, loops as often as they run.

    None where it says nothing, as the compilers of other devices do. Waits for other devices, and Pallas
    kernels, have no estimate.
    """
    cycles = [
        times * int(found[1])
        for times, operation, _, _ in _operations(text)
        if (found := _CYCLES.search(operation))
    ]
    return sum(cycles) if cycles else None


def kernel_costs(text: str) -> list[tuple[str, int]]:
    """Pallas kernels of a TPU's program, in order: their names, and the bytes that they say they move."""
    return [
        (found[1] if (found := _KERNEL.search(operation)) else "", times * int(cost[1]))
        for times, operation, name, _ in _operations(text)
        if name == "custom-call" and (cost := _KERNEL_BYTES.search(operation))
    ]


def _operations(text: str) -> Iterator[tuple[int, str, str, bool]]:
    """(how often it runs, its line behind the `=`, its name, whether in a fusion) of every operation."""
    computations: dict[str, list[str]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = head[2]
            computations[current] = []
            entry = current if head[1] else entry
        elif current and (operation := _OPERATION.match(line)):
            computations[current].append(operation[1])

    def walk(computation: str, times: int, fused: bool) -> Iterator[tuple[int, str, str, bool]]:
        for operation in computations.get(computation, ()):
            if not (name := _NAME.search(operation)):
                continue
            yield times, operation, name[1], fused
            called = _CALLED.findall(operation)
            if branches := _BRANCHES.search(operation):
                called += [branch.strip().lstrip("%") for branch in branches[1].split(",")]
            trips = _TRIPS.search(operation) if name[1] == "while" else None
            if name[1] in KINDS or name[1] in ("reduce", "scatter", "sort", "map", "reduce-window"):
                continue  # what they apply is a function of scalars
            for below in called:
                often = times * int(trips[1]) if trips else times
                yield from walk(below, often, fused or name[1] == "fusion")

    yield from walk(entry, 1, fused=False)


def _sizes(types: str) -> list[int]:
    """Bytes of each array in a type such as `(f32[1,8]{1,0}, bf16[4]{0})`."""
    return [
        math.prod(map(int, filter(None, shape.split(",")))) * _itemsize(kind)
        for kind, shape in _ARRAY.findall(types)
    ]


def _itemsize(kind: str) -> int:
    bits = re.search(r"\d+", kind)
    return max(1, int(bits[0]) // 8) if bits else 1


def _group_size(operation: str) -> int:
    """How many devices take part in one group of a collective."""
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]", operation):
        return int(iota[1])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", operation):
        return listed[1].count(",") + 1
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", operation):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        # Of a part of an axis its size is told: 'data':(1)2.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return 1
