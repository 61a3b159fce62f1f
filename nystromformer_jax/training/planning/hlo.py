"""Parses collectives, cycles and kernel costs from the HLO text of a compiled program."""

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterator

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r" ([a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")  # bits and shape
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_IDENTITY = re.compile(r'channel_id=\d+|chain_id="\d+"|op_name="[^"]*"')
_KERNEL = re.compile(r'op_name="[^"]*[/(]nystrom_(\w+)')
_KERNEL_BYTES = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')
_DEFINITION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
NO_KERNEL = (
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "opt-barrier"),
    *("while", "conditional", "call", "after-all", "partition-id", "replica-id"),
)
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Number of collectives of one kind per run of a program, and total bytes per device."""

    count: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Launches:
    """Kernels that a GPU program starts per run, and the bytes that they read and write."""

    count: int
    nbytes: int
    conditionals: int


def find_launches(text: str) -> Launches:
    """Returns the launches of a GPU program, from its `compiled.as_text()`.

    Each operation of the optimized program is a kernel, except those that compute nothing. Its bytes are the
    sizes of its operands and results: an upper bound, because a kernel may read a part of an operand or find
    it in the cache. Loops of known length are counted once per iteration.
    """
    sizes = {
        found[1]: sum(_sizes(found[2][: named.start()]))
        for line in text.splitlines()
        if (found := _DEFINITION.match(line)) and (named := _NAME.search(found[2]))
    }
    count = nbytes = conditionals = 0
    for times, operation, name, fused in _operations(text):
        conditionals += name == "conditional"
        if fused or name in NO_KERNEL or name.endswith("-done"):
            continue
        start = operation.index(f" {name}(")
        operands = _OPERAND.findall(operation[start : operation.index(")", start)])
        count += times
        nbytes += times * (
            sum(_sizes(operation[:start])) + sum(sizes.get(operand, 0) for operand in operands)
        )
    return Launches(count, nbytes, conditionals)


def find_collectives(text: str) -> dict[str, Collectives]:
    """Returns the collectives by kind, from the `compiled.as_text()` of a program.

    Bytes are the size per device of the result, or of the operand for a reduce-scatter. The link traffic of
    an all-reduce is up to twice this size, and at most this size for other kinds. Collectives in a loop of
    known length are counted once per iteration. Both branches of a conditional are counted.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    in_fusions = set()
    for times, operation, name, fused in _operations(text):
        kind = name.removesuffix("-start")
        if kind not in KINDS:
            continue
        # The TPU compiler repeats one collective in several fusions (start, middle, end).
        if fused:
            identity = (kind, *_IDENTITY.findall(operation))
            if identity in in_fusions:
                continue
            in_fusions.add(identity)
        types = operation[: operation.index(f" {name}(")]
        if name.endswith("-start") and kind != "all-reduce":  # all-reduce-start has results only
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
    """Returns the TPU compiler's estimate of the cycles of a program, loop iterations included.

    Returns None for devices whose compiler gives no estimate. Pallas kernels and waiting for other devices
    are not included.
    """
    cycles = [
        times * int(found[1])
        for times, operation, _, _ in _operations(text)
        if (found := _CYCLES.search(operation))
    ]
    return sum(cycles) if cycles else None


def kernel_costs(text: str) -> list[tuple[str, int]]:
    """Returns name and declared bytes of each Pallas kernel in a TPU program."""
    return [
        (found[1] if (found := _KERNEL.search(operation)) else "", times * int(cost[1]))
        for times, operation, name, _ in _operations(text)
        if name == "custom-call" and (cost := _KERNEL_BYTES.search(operation))
    ]


def _operations(text: str) -> Iterator[tuple[int, str, str, bool]]:
    """Yields (number of runs, text after `=`, name, True if in a fusion) of every operation."""
    computations: dict[str, list[str]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = head[2]
            computations[current] = []
            entry = current if head[1] else entry
        elif current and (operation := _DEFINITION.match(line)):
            computations[current].append(operation[2])

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
                continue  # their computations are scalar functions
            for below in called:
                often = times * int(trips[1]) if trips else times
                yield from walk(below, often, fused or name[1] == "fusion")

    yield from walk(entry, 1, fused=False)


def _sizes(types: str) -> list[int]:
    """Returns the bytes of each array in a type such as `(f32[1,8]{1,0}, bf16[4]{0})`."""
    return [
        math.prod(map(int, filter(None, shape.split(",")))) * max(1, int(bits or 8) // 8)
        for bits, shape in _ARRAY.findall(types)
    ]


def _group_size(operation: str) -> int:
    """Returns the number of devices in one group of a collective."""
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]", operation):
        return int(iota[1])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", operation):
        return listed[1].count(",") + 1
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", operation):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
        # A sub-axis has an explicit size: 'data':(1)2.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return 1
