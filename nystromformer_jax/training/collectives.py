"""Finds the collectives of a compiled program in its HLO text."""

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
_DEFINITION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$")


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Number of collectives of one kind per run of a program, and total bytes per device."""

    count: int
    nbytes: int


def find_collectives(text: str) -> dict[str, Collectives]:
    """Returns the collectives by kind, from the `compiled.as_text()` of a program.

    Bytes are the size per device of the result, or of the operand for a reduce-scatter. The link traffic of
    an all-reduce is up to twice this size, and at most this size for other kinds. Collectives in a loop of
    known length are counted once per iteration. Both branches of a conditional are counted.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    in_fusions = set()
    for times, operation, name, fused in operations_of(text):
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
            sizes = sizes_of(types.replace("u32[]", ""))  # (operands …, results …) without contexts
            sizes = sizes[len(sizes) // 2 :]
        else:
            sizes = sizes_of(types)
        nbytes = sum(sizes)
        if kind == "reduce-scatter":
            nbytes *= _group_size(operation)
        found[kind][0] += times
        found[kind][1] += times * nbytes
    return {kind: Collectives(*found[kind]) for kind in KINDS if kind in found}


def operations_of(text: str) -> Iterator[tuple[int, str, str, bool]]:
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


def sizes_of(types: str) -> list[int]:
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
