"""ListOps: predict the value of nested lists of MAX, MED, MIN and SM (sum modulo 10) over digits.

    [MAX 2 9 [MIN 4 7 ] 0 ]   has the value 9

The data are generated from a seed, identically for any number of processes, or read from the official
files `basic_{train,val,test}.tsv`.

Source: google-research/long-range-arena, lra_benchmarks/data/listops.py and
listops/input_pipeline.py at cd31e5c. Same distribution: rejection sampling without duplicates.
Differs: data and splits depend on the seed alone; those of the original depend on Python's
randomized string hashes. The vocabulary has a fixed order; the original iterates over a set.
"""

import dataclasses
import functools
import hashlib
import itertools
import random
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from dataprep import cache, parallel
from lra.data import release
from lra.data.task import DataConfig, Split, Task, TaskInfo, save_split
from nystromformer_jax.support.durable import sha256_of

OPERATORS = ("[MAX", "[MED", "[MIN", "[SM")
VOCAB: Mapping[str, int] = {
    token: i for i, token in enumerate(["<pad>", *"0123456789", *OPERATORS, "]"])
}
SIZES: Mapping[str, int] = {"train": 96_000, "valid": 2_000, "test": 2_000}
FILES: Mapping[str, str] = {
    "train": "basic_train.tsv",
    "valid": "basic_val.tsv",
    "test": "basic_test.tsv",
}

# Part of the fingerprint: increase it when a change of the code changes the prepared data.
FORMAT = 1

MAX_DEPTH = 10
MIN_ARGS, MAX_ARGS = 2, 10
CHUNK_TREES = 250  # takes a tenth of a second; another value changes the data
# The shortest trees of each stage of the curriculum; a list of two digits has 4 tokens.
STAGES = (4, 16, 32, 64, 128, 256)
MAX_TRIES_PER_TREE = 1_000_000  # the official lengths need 12.3 tries on average

_TOKENS = tuple(VOCAB)
_CLOSE = VOCAB["]"]
_FIRST_DIGIT = VOCAB["0"]
_SPELLINGS = {**VOCAB, "X": _CLOSE}  # the official pipeline replaces ] by X
del _SPELLINGS["<pad>"]
_WORD = re.compile(r"\[\w+|\d+|[\]X]|[^\s()]+")  # skips parentheses


def load(
    config: DataConfig,
    *,
    name: str = "listops",
    min_length: int = 500,
    max_length: int = 2000,
    sources: Sequence[str] = ("files", "generated"),
) -> Task:
    """Opens the task ListOps; prepares the data if they are missing.

    `source` is "files", "generated", or "auto" (files if `dir` is set). If `examples` is set, only that
    many examples per split and of the curriculum are generated or read. Generated trees have more than
    `min_length` and fewer than `max_length` tokens, brackets included. Trees of the curriculum are always
    generated and have fewer than `min_length`.

    Raises:
      ValueError: The source is not in `sources` or contradicts `dir`, or a file is malformed.
      FileNotFoundError: An official file is missing.
    """
    fingerprint: dict[str, Any] = {"task": name, "format": FORMAT}
    build: Callable[[Path], None]
    if config.choose_source(name, sources, f"the files {', '.join(FILES.values())}") == "files":
        folder = release.find(name, config.dir, ("listops-1000", "listops"), FILES.values())
        paths = {split: folder / file for split, file in FILES.items()}
        files = {
            split: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
            for split, path in paths.items()
        }
        fingerprint |= {"source": "files", "files": files, "examples": config.examples}
        build = functools.partial(_build_from_files, paths=paths, examples=config.examples)
        description = f"ListOps: reading {folder}"
    else:
        sizes = {split: min(config.examples or size, size) for split, size in SIZES.items()}
        options = {"seed": config.seed, "min_length": min_length, "max_length": max_length}
        fingerprint |= {"source": "generated", "sizes": sizes, **options}
        build = functools.partial(
            _build_generated, sizes=sizes, options=options, num_processes=config.num_processes
        )
        description = (
            f"ListOps: {sum(sizes.values()):,} trees, seed {config.seed},"
            f" {config.num_processes} processes"
        )
    return Task.open(
        name,
        cache.prepared(name, fingerprint, build, description),
        decode,
        open_curriculum=functools.partial(_curriculum, config, name, min_length),
    )


def load_short(config: DataConfig) -> Task:
    """Opens the task ListOps with trees of 101 to 499 tokens, for quick comparisons; only generated."""
    return load(
        config, name="listops-short", min_length=100, max_length=500, sources=("generated",)
    )


def _build_from_files(folder: Path, *, paths: Mapping[str, Path], examples: int) -> None:
    for split, path in paths.items():
        lines = release.read_lines(path, _example, header=b"Source\tTarget")
        save_split(folder, split, itertools.islice(lines, examples or None))


def _example(line: bytes) -> tuple[bytes, int]:
    """Returns the tokens and the label of a line of an official file."""
    source, label = (cell.decode() for cell in release.cells(line, ("Source", "Target")))
    if label not in tuple("0123456789"):
        raise ValueError(f"expected a label from 0 to 9, found {label!r}.")
    tokens = encode(source)
    if (value := _value(tokens.tolist())) != int(label):
        raise ValueError(f"the label is {label}, but the value of the expression is {value}.")
    return tokens.tobytes(), value


def _build_generated(
    folder: Path, *, sizes: Mapping[str, int], options: Mapping[str, int], num_processes: int
) -> None:
    total = sum(sizes.values())
    with closing(generate(total, num_processes=num_processes, **options)) as trees:
        remaining = iter(tqdm(trees, "ListOps", total, unit=" trees", disable=None))
        for split, size in sizes.items():
            save_split(folder, split, itertools.islice(remaining, size))


def _curriculum(config: DataConfig, task: str, max_length: int) -> tuple[Split, cache.Prepared]:
    """Opens the short trees; generates them if they are missing."""
    name = f"{task}-curriculum"
    count = config.num_easier
    draw = functools.partial(draw_short_trees, count=count, seed=config.seed, max_length=max_length)

    def build(folder: Path) -> None:
        chunks = range(-(-count // CHUNK_TREES))
        num_processes = min(config.num_processes, len(chunks))
        with closing(parallel.in_order(draw, chunks, num_processes)) as drawn:
            trees = itertools.chain.from_iterable(drawn)
            progress = tqdm(trees, "ListOps, short trees", count, unit=" trees", disable=None)
            save_split(folder, "train", progress)

    fingerprint = {
        "task": name,
        "format": FORMAT,
        "seed": config.seed,
        "examples": count,
        "max_length": max_length,
    }
    description = f"ListOps: {count:,} short trees, seed {config.seed}"
    prepared = cache.prepared(name, fingerprint, build, description)
    return Split.open(prepared.folder, "train"), prepared


# --- Expressions: text and tokens -----------------------------------------------------------------


def encode(expression: str) -> npt.NDArray[np.uint8]:
    """Converts an expression without parentheses to tokens; the nesting is not validated.

    Raises:
      ValueError: The expression is empty or has an unknown token.
    """
    words = _WORD.findall(expression)
    try:
        tokens = bytes(map(_SPELLINGS.__getitem__, words))
    except KeyError as error:
        (word,) = error.args
        raise ValueError(
            f"Token {words.index(word) + 1} is {word!r}; ListOps has the digits 0 to 9,"
            f" {', '.join(OPERATORS)} and ]."
        ) from None
    if not tokens:
        raise ValueError("The expression is empty.")
    return np.frombuffer(tokens, np.uint8)


def decode(tokens: npt.NDArray[np.integer]) -> str:
    """Converts tokens to an expression without parentheses; skips padding."""
    return " ".join(_TOKENS[token] for token in np.asarray(tokens).tolist() if token)


def evaluate(expression: str) -> int:
    """Returns the value of an expression in the official notation.

    Parentheses are optional, and X stands for ].

    Raises:
      ValueError: The expression is malformed. The message gives the token's position; parentheses
        are not counted.
    """
    value = _value(encode(expression).tolist())
    _check_parentheses(expression)
    return value


def _check_parentheses(expression: str) -> None:
    """Raises ValueError unless the parentheses are balanced and none of them is empty."""
    opened, closed = expression.count("("), expression.count(")")
    if opened != closed:
        raise ValueError(f"The expression has {opened} '(' but {closed} ')'.")
    depth, is_empty = 0, False
    for mark in re.findall(r"[()]|[^()\s]+", expression):
        depth += (mark == "(") - (mark == ")")
        if depth < 0:
            raise ValueError("The expression has a ')' before its '('.")
        if mark == ")" and is_empty:
            raise ValueError("The expression has an empty pair of parentheses.")
        is_empty = mark == "("


def _value(tokens: Iterable[int]) -> int:
    """Returns the value of an expression given as tokens; not recursive."""
    open_lists: list[tuple[int, str, list[int]]] = []  # (position, operator, arguments)
    result: list[int] = []
    for position, token in enumerate(tokens, start=1):
        if result:
            raise ValueError(f"The expression ends before token {position}, {_TOKENS[token]!r}.")
        if _TOKENS[token] in OPERATORS:
            open_lists.append((position, _TOKENS[token], []))
            continue
        if token == _CLOSE:
            if not open_lists:
                raise ValueError(f"Token {position} closes a list, but none is open.")
            opened_at, operator, arguments = open_lists.pop()
            if not arguments:
                raise ValueError(f"{operator} at token {opened_at} has no arguments.")
            value = _FUNCTIONS[operator](arguments)
        else:
            value = token - _FIRST_DIGIT
        (open_lists[-1][2] if open_lists else result).append(value)
    if open_lists:
        opened_at, operator, _ = open_lists[-1]
        raise ValueError(f"{operator} at token {opened_at} is never closed.")
    if not result:
        raise ValueError("The expression is empty.")
    return result[0]


def _median(values: Sequence[int]) -> int:
    """Returns the median, truncated to an integer as in the official generator."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


_FUNCTIONS: Mapping[str, Callable[[Sequence[int]], int]] = {
    "[MAX": max,
    "[MED": _median,
    "[MIN": min,
    "[SM": lambda values: sum(values) % 10,
}


# --- The generator --------------------------------------------------------------------------------


class Tree(NamedTuple):
    """Tokens and value of a generated tree."""

    tokens: bytes
    label: int


class Chunk(NamedTuple):
    """Trees drawn from one seed, and the number of draws that they took."""

    trees: list[Tree]
    num_tries: int


class _Kind(NamedTuple):
    """Kind of node: a digit without children, or an operator with `num_args` children."""

    num_args: int
    token: bytes
    value: int
    function: Callable[[Sequence[int]], int]


def _kinds(*, digits_only: bool) -> list[_Kind]:
    """Returns 720 node kinds; a uniform draw from them has the official probabilities.

    A node is an operator with probability 0.25. The four operators and 2 to 10 arguments are equally
    likely, so each of these 36 kinds occurs 5 times. Each digit occurs 54 times, or 72 times on the last
    level, where all nodes are digits.
    """
    digits = [_Kind(0, bytes([VOCAB[str(value)]]), value, max) for value in range(10)]
    if digits_only:
        return [digit for digit in digits for _ in range(72)]
    lists = [
        _Kind(num_args, bytes([VOCAB[operator]]), 0, function)
        for operator, function in _FUNCTIONS.items()
        for num_args in range(MIN_ARGS, MAX_ARGS + 1)
    ]
    return [kind for kind in lists for _ in range(5)] + [kind for kind in digits for _ in range(54)]


_KINDS = _kinds(digits_only=False)
_LAST_KINDS = _kinds(digits_only=True)


def generate_chunk(seed: int, chunk: int, min_length: int, max_length: int) -> Chunk:
    """Draws `CHUNK_TREES` trees with `min_length < tokens < max_length` by rejection sampling.

    Uses only `random.Random.random`, whose output is guaranteed to be the same in all Python versions.
    """
    digest = hashlib.sha256(f"listops {seed} {chunk}".encode()).digest()
    draw = random.Random(int.from_bytes(digest, "big")).random
    trees: list[Tree] = []
    num_tries = 0
    while len(trees) < CHUNK_TREES:
        num_tries += 1
        if num_tries > MAX_TRIES_PER_TREE * (len(trees) + 1):
            raise ValueError(
                f"ListOps has hardly any trees with {min_length} < length < {max_length}: {num_tries:,}"
                f" tries gave {len(trees)}. Choose a wider range."
            )
        levels = _draw_levels(draw, min_length, max_length)
        if levels is not None:
            trees.append(_assemble(levels))
    return Chunk(trees, num_tries)


def draw_short_trees(chunk: int, *, count: int, seed: int, max_length: int) -> list[Tree]:
    """Draws the trees of a chunk of a curriculum; returns an empty list after the last of `count` trees.

    The trees of stage k have at least `STAGES[k]` tokens, and fewer than in the next stage or than
    `max_length`. All stages have equally many trees. Half of the trees have a length of their stage. The
    others have a length of a random stage up to theirs. Trees may occur twice.
    """
    starts = [start for start in STAGES if start < max_length]
    bounds = list(itertools.pairwise([*starts, max_length]))
    digest = hashlib.sha256(f"listops curriculum {seed} {chunk}".encode()).digest()
    draw = random.Random(int.from_bytes(digest, "big")).random
    trees = []
    for number in range(chunk * CHUNK_TREES, min((chunk + 1) * CHUNK_TREES, count)):
        stage = number * len(bounds) // count
        if draw() < 0.5:
            stage = int(draw() * (stage + 1))
        start, stop = bounds[stage]
        levels = None
        while levels is None:
            levels = _draw_levels(draw, start - 1, stop)
        trees.append(_assemble(levels))
    return trees


def _draw_levels(
    draw: Callable[[], float], min_length: int, max_length: int
) -> list[list[_Kind]] | None:
    """Draws the nodes of one tree, level by level; returns None if its length is out of bounds.

    Differs from the official generator: trees are drawn breadth first, so that trees that are too long
    are rejected early. The draws are independent, so the distribution is the same.
    """
    levels: list[list[_Kind]] = []
    width, length = 1, 0
    for depth in range(1, MAX_DEPTH + 1):
        kinds = _KINDS if depth < MAX_DEPTH else _LAST_KINDS
        level = [kinds[int(draw() * 720)] for _ in range(width)]
        levels.append(level)
        num_args = [kind.num_args for kind in level if kind.num_args]
        length += width + len(num_args)  # one closing bracket per operator
        width = sum(num_args)
        if length + width >= max_length:
            return None
        if not width:
            break
    return levels if length > min_length else None


def _assemble(levels: list[list[_Kind]]) -> Tree:
    """Returns the tokens and the value of a tree, computed bottom-up."""
    texts: list[bytes] = []
    values: list[int] = []
    close = bytes([_CLOSE])
    for level in reversed(levels):
        child_texts, child_values = texts, values
        texts, values = [], []
        start = 0
        for num_args, token, value, function in level:
            if num_args:
                stop = start + num_args
                texts.append(token + b"".join(child_texts[start:stop]) + close)
                values.append(function(child_values[start:stop]))
                start = stop
            else:
                texts.append(token)
                values.append(value)
    return Tree(texts[0], values[0])


def generate(
    num_trees: int, *, seed: int, min_length: int, max_length: int, num_processes: int
) -> Generator[Tree, None, None]:
    """Yields `num_trees` distinct trees; the trees do not depend on the number of processes.

    Every chunk has a different seed. Chunks are read in order, and duplicates are dropped.

    Raises:
      ValueError: Fewer than `num_trees` distinct trees have these lengths.
    """
    seen: set[bytes] = set()
    chunks_without_new = 0
    num_processes = min(num_processes, -(-num_trees // CHUNK_TREES))
    draw_chunk = functools.partial(
        generate_chunk, seed, min_length=min_length, max_length=max_length
    )
    with closing(parallel.in_order(draw_chunk, itertools.count(), num_processes)) as chunks:
        for chunk in chunks:
            known = len(seen)
            for tree in chunk.trees:
                digest = hashlib.blake2b(tree.tokens, digest_size=16).digest()
                if digest not in seen:
                    seen.add(digest)
                    yield tree
                    if len(seen) == num_trees:
                        return
            chunks_without_new = 0 if len(seen) > known else chunks_without_new + 1
            if chunks_without_new == 20:
                raise ValueError(
                    f"ListOps seems to have only {len(seen):,} distinct trees with"
                    f" {min_length} < length < {max_length}; {num_trees:,} were requested."
                )


INFO = TaskInfo(
    vocab_size=len(VOCAB),
    num_classes=10,
    load=load,
    sizes=SIZES,
    total_steps=5_000,
    has_curriculum=True,
)
SHORT_INFO = dataclasses.replace(INFO, load=load_short, total_steps=3_000)
