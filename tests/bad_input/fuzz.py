"""How the fuzz tests draw arrays (few shapes, any values, any padding), and which errors are valid.

Each test draws 10 examples; `FUZZ_EXAMPLES=500` changes that. Shapes, options and dtypes come from short
lists, so that few programs are compiled; values, masks and mistakes are free.
"""

import functools
import itertools
import os
import traceback
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import nystromformer_jax

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10"))
SLOW_CHECKS = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.function_scoped_fixture,
)
OURS = os.path.dirname(nystromformer_jax.__file__)
DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
FILLERS = (0.0, np.nan, np.inf, -np.inf, "largest")


def fuzz(examples=EXAMPLES):
    """Settings of a fuzz test: the same examples in every run, without a time limit."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=SLOW_CHECKS,
    )


class Case(NamedTuple):
    """Shapes and sizes of one compiled program."""

    length: int
    key_length: int
    num_landmarks: int
    width: int = 0
    batch: int = 3
    heads: int = 2
    dim: int = 5


CASES = (
    Case(1, 1, 1, batch=1),  # one token
    Case(2, 2, 7, width=5),  # fewer tokens than landmarks
    Case(13, 13, 1, heads=1),  # one landmark
    Case(17, 17, 5, width=3),
    Case(11, 11, 11),  # a landmark for each
    Case(11, 19, 5),  # queries and keys of different lengths
    Case(3, 19, 5),  # and few queries
)


def programs(cases):
    """Cases with dtypes: all pairs if many examples are drawn, else two, because each is compiled."""
    if EXAMPLES > 100:
        return list(itertools.product(cases, DTYPES))
    return list(zip((cases[3], cases[-1]), DTYPES, strict=False))


# Scales of ordinary and of extreme numbers. The largest float16 is 65,504.
SCALES = {"ordinary": 1.0, "tiny": 1e-20, "denormal": 1e-40, "zero": 0.0, "huge": 1e9}
HALF_SCALES = {"ordinary": 1.0, "tiny": 1e-5, "denormal": 1e-7, "zero": 0.0, "huge": 3e2}
KINDS = st.sampled_from(list(SCALES))
SEEDS = st.integers(0, 2**32 - 1)
ORDINARY = st.just("ordinary")


def values(seed, kind, shape, dtype):
    """Numbers of one kind; one array in four is constant, and one in four has a spike."""
    random = np.random.default_rng(seed)
    scale = (HALF_SCALES if dtype == jnp.float16 else SCALES)[kind]
    x = random.normal(size=shape)
    if seed % 4 == 1:
        x = np.full(shape, x.flat[0])
    if seed % 4 == 2:
        x.flat[random.integers(x.size)] *= 30
    return jnp.asarray(scale * x, dtype)


@st.composite
def masks(draw, batch, length):
    """A mask in which each example has all tokens real, a prefix, any subset, one or none."""
    random = np.random.default_rng(draw(SEEDS))
    rows = []
    for kind in draw(st.lists(st.sampled_from("aprno"), min_size=batch, max_size=batch)):
        count = {"a": length, "n": 0, "o": 1}.get(kind, random.integers(0, length + 1))
        row = np.arange(length) < count
        rows.append(row if kind == "p" else random.permutation(row))
    return np.array(rows)


def filled(x, mask, filler):
    """`x` with `filler` where `mask` is False."""
    where = np.asarray(mask).reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
    largest = jnp.finfo(x.dtype).max
    return jnp.where(where, x, largest if filler == "largest" else jnp.asarray(filler, x.dtype))


class Drawn(NamedTuple):
    """One call of an attention function."""

    case: Case
    inputs: tuple[jax.Array, ...]
    mask: np.ndarray
    query_mask: np.ndarray
    kernel: jax.Array | None
    seed: int

    def __repr__(self):
        sizes = [float(jnp.abs(x).max()) for x in self.inputs]
        return f"Drawn({self.case}, {self.inputs[0].dtype}, {sizes=}, {self.mask=}, {self.seed=})"

    def filled(self, filler):
        """The same call with other values in padding."""
        query, *others = self.inputs
        query = filled(query, self.query_mask, filler)
        return self._replace(inputs=(query, *(filled(x, self.mask, filler) for x in others)))


@st.composite
def attention_inputs(draw, cases=CASES, kinds=KINDS):
    """Query, key and value of one dtype, each with values of its own kind, and masks of both."""
    case, dtype = draw(st.sampled_from(programs(cases)))
    return draw(attention_call(case, dtype, kinds))


@st.composite
def attention_call(draw, case, dtype, kinds=KINDS):
    """The same for one program."""
    seed = draw(SEEDS)
    lengths = (case.length, case.key_length, case.key_length)
    inputs = tuple(
        values(seed + i, draw(kinds), (case.batch, length, case.heads, case.dim), dtype)
        for i, length in enumerate(lengths)
    )
    mask = draw(masks(case.batch, case.key_length))
    query_mask = mask if case.length == case.key_length else draw(masks(case.batch, case.length))
    kernel = values(seed + 3, "ordinary", (case.heads, case.width), dtype) if case.width else None
    return Drawn(case, inputs, mask, query_mask, kernel, seed)


def finite(tree):
    """Returns True if every number is finite."""
    return all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(tree))


def same_bits(one, other, where=...):
    """Returns True if two arrays are equal where `where` is True."""
    return np.array_equal(*(np.asarray(x, np.float64)[where] for x in (one, other)))


def refusal(call, *arguments, **options):
    """Returns the message of the ValueError that `call` raises, or None if it raises none.

    Fails unless the message is one sentence and this package raised it.
    """
    try:
        call(*arguments, **options)
    except ValueError as error:
        text = str(error)
        last = traceback.extract_tb(error.__traceback__)[-1]
        assert last.filename.startswith(OURS), f"not ours: {last.filename}, {last.lineno}: {text}"
        assert "\n" not in text, text
        assert text.rstrip(")").endswith((".", "?")), text
        return text
    return None


@functools.cache
def compiled(function, **options):
    """The function behind `jax.jit`, compiled once for all tests of a process."""
    return jax.jit(functools.partial(function, **options))
