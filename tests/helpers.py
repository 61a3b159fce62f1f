"""Shared by tests: the table of tolerances, random attention inputs, float64, a full disk."""

import contextlib
import dataclasses
import functools
import itertools
import re
import resource

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from dataprep import cache
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.training import on_mesh


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Largest allowed difference, relative to the largest entry of what is expected (at least 1)."""

    relative: float


SAME_ARITHMETIC = Tolerance(1e-6)
REFERENCE = Tolerance(1e-5)
OTHER_FRAMEWORK = Tolerance(1e-4)
GRADIENT = Tolerance(2e-3)
HALF = Tolerance(1e-2)
HALF_GRADIENT = Tolerance(3e-2)


def assert_close(actual, expected, tolerance, where=None):
    """Compares two trees; `where` is a mask over the leading axes of every leaf."""
    actual_leaves, actual_tree = jax.tree.flatten(actual)
    expected_leaves, expected_tree = jax.tree.flatten(expected)
    assert actual_tree == expected_tree
    for one, other in zip(actual_leaves, expected_leaves, strict=True):
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if where is not None:
            one, other = one[np.asarray(where)], other[np.asarray(where)]
        assert one.shape == other.shape
        assert np.isfinite(one).all(), "not finite"
        assert np.isfinite(other).all(), "the expected value is not finite"
        difference = np.abs(one - other).max(initial=0.0)
        allowed = tolerance.relative * max(1.0, np.abs(other).max(initial=0.0))
        assert difference <= allowed, f"differs by {difference:.2e}, allowed are {allowed:.2e}"


@contextlib.contextmanager
def files_of_at_most(size):
    """Limits the size of files that this process writes, with errors like those of a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def rematerialises(job):
    """Returns True if the gradient of the loss recomputes activations, with softmax attention."""
    state, _, batch = job.argument_shapes()
    loss = on_mesh(job.loss_fn, job.mesh)
    jaxpr = jax.make_jaxpr(loss)(state.params, batch, jax.random.key(0))
    return re.search(r"\b(remat2?|checkpoint)\[", str(jaxpr)) is not None


def equations(jaxpr):
    """All equations of a program, also those of the programs that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def pallas_calls(jaxpr):
    """Returns the equations of a program that call kernels, at any depth."""
    return [equation for equation in equations(jaxpr) if equation.primitive.name == "pallas_call"]


def largest_array(function, *shapes):
    """Returns the number of entries of the largest array that the program of `function` computes."""
    program = jax.make_jaxpr(function)(*shapes).jaxpr
    return max(x.aval.size for equation in equations(program) for x in equation.outvars)


def cost(function, *shapes):
    """Returns operations and temporary bytes of a sum of squares and of its gradient, as compiled."""
    total = lambda *inputs: (function(*inputs) ** 2).sum()
    gradient = jax.jit(jax.value_and_grad(total, tuple(range(len(shapes)))))
    compiled = gradient.lower(*shapes).compile()
    nbytes = compiled.memory_analysis().temp_size_in_bytes
    return np.array([compiled.cost_analysis()["flops"], nbytes])


def normal(rng, shape, dtype=float):
    """Standard normal numbers like `jax.random.normal`, from NumPy: no program is compiled per shape.

    `device_put` compiles nothing either, unlike `jnp.asarray`.
    """
    numbers = np.random.default_rng(np.asarray(jax.random.key_data(rng))).standard_normal(shape)
    return jax.device_put(numbers.astype(jax.dtypes.canonicalize_dtype(dtype)))


def random_variables(rng, module, *inputs, scale=0.5, deterministic=True):
    """Random variables of a module, from NumPy: initialization is traced, and nothing is compiled.

    `deterministic` is None for a module without this argument, or with the attribute.
    """
    options = {} if deterministic is None else {"deterministic": deterministic}
    init = functools.partial(module.init, **options)
    random = np.random.default_rng(np.asarray(jax.random.key_data(rng)))

    def draw(leaf):
        return jax.device_put(random.normal(scale=scale, size=leaf.shape).astype(leaf.dtype))

    return jax.tree.map(draw, jax.eval_shape(init, rng, *inputs))


def random_inputs(rngs, batch, length, heads, dim, key_length=None, dtype=jnp.float32):
    """Query, key and value; sharp enough that attention is not uniform."""
    key_length = length if key_length is None else key_length
    return tuple(
        normal(next(rngs), (batch, n, heads, dim), dtype) for n in (length, key_length, key_length)
    )


def forward_and_gradients(function, inputs, cotangent):
    """Returns the output, and the gradients of its product with the cotangent, of one program."""

    @jax.jit
    def run(inputs, cotangent):
        output, pull_back = jax.vjp(function, *inputs)
        return output, pull_back(cotangent.astype(output.dtype))

    return run(list(inputs), cotangent)


def output_and_gradients(attention, tokens, conv_kernel, cotangent, **options):
    """Returns the output, and the gradients with respect to query, key and value and to the kernel."""
    attend = lambda tokens, kernel: attention(*tokens, conv_kernel=kernel, **options)
    return forward_and_gradients(attend, (list(tokens), conv_kernel), cotangent)


def assert_same_attention(actual, expected, inputs, mask, gradient=REFERENCE):
    """Compares two functions of `inputs`, of which the first has the queries: outputs and gradients.

    `mask` is True at real queries.
    """
    cotangent = jnp.where(mask[..., None, None], jnp.cos(inputs[0]), 0)
    one, other = (forward_and_gradients(attend, inputs, cotangent) for attend in (actual, expected))
    assert_close(one[0], other[0], REFERENCE, where=mask)
    assert_close(one[1], other[1], gradient)


def data_folders():
    """Sorted names of the folders of prepared data, in the cache of the test."""
    folder = cache.cache_dir() / "data"
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.name for path in paths if path.is_dir())


def mask_of_lengths(lengths, length):
    """True at the first `lengths[b]` positions of each row."""
    return jax.device_put(np.arange(length)[None, :] < np.asarray(lengths)[:, None])


def masks_of_all_kinds(length, num_landmarks, batch=8):
    """Masks with holes, few tokens, none, padding at the end, none, M and M + 1 tokens, padding in front."""
    positions = np.arange(length)
    spread = np.linspace(0, length - 1, num_landmarks + 1).astype(int)
    rows = [
        np.random.default_rng(length).random(length) < 0.6,
        (positions >= 3) & (positions < 2 + num_landmarks),
        positions < 0,
        positions < 4 * length // 5,
        positions >= 0,
        np.isin(positions, spread[1:]),
        np.isin(positions, spread),
        positions >= length // 2,
    ]
    return jax.device_put(np.stack(rows[:batch]))


def nystrom_by_the_paper(
    query, key, value, num_landmarks, pinv_iters=6, pinv="iterative", num_own=0
):
    """Equations 5–17 in float64 for one example without padding: arrays [L H D], segments by rank."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    if min(len(query), len(key)) <= num_landmarks:
        return softmax_by_the_paper(query, key, value)
    output = np.empty((len(query), *value.shape[1:]))
    for head in range(query.shape[1]):
        q, k, v = query[:, head], key[:, head], value[:, head]
        scale = q.shape[-1] ** -0.5

        def means(x):
            rest, count = num_landmarks - num_own, len(x) - num_own
            cuts = [num_own - (-s * count // rest) for s in range(rest + 1)]
            return np.stack([*x[:num_own], *(x[a:b].mean(0) for a, b in itertools.pairwise(cuts))])

        q_landmarks, k_landmarks = means(q), means(k)
        kernel_1 = _softmax(q @ k_landmarks.T * scale)
        kernel_2 = _softmax(q_landmarks @ k_landmarks.T * scale)
        kernel_3 = _softmax(q_landmarks @ k.T * scale)
        identity = np.eye(num_landmarks)
        inverse = kernel_2.T / (kernel_2.sum(0).max() * kernel_2.sum(1).max())
        for _ in range(pinv_iters):
            az = kernel_2 @ inverse
            inverse = (
                inverse @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
            )
        if pinv == "ridge":
            inverse = ridge_inverse(kernel_2, pinv_iters)
        output[:, head] = kernel_1 @ inverse @ kernel_3 @ v
    return output


def ridge_inverse(kernel, num_iters):
    """(AᵀA + λ c I)⁻¹ Aᵀ in float64."""
    kernel = np.asarray(kernel, np.float64)
    norms = np.abs(kernel).sum(-1).max(-1) * np.abs(kernel).sum(-2).max(-1)
    damping = 3.25**-num_iters * norms[..., None, None] * np.eye(kernel.shape[-1])
    return np.linalg.solve(kernel.mT @ kernel + damping, kernel.mT)


def softmax_by_the_paper(query, key, value):
    """Equation 3 in float64 for one example without padding: arrays [L H D]."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    logits = np.einsum("lhd,thd->hlt", query, key) * query.shape[-1] ** -0.5
    return np.einsum("hlt,thd->lhd", _softmax(logits), value)


def _softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def dropped_shapes(module, variables, *inputs):
    """The shapes of the arrays to which a call of `module` applies dropout, in order."""
    shapes = []

    def spy(call, args, kwargs, context):
        if isinstance(context.module, Dropout) and context.module.rate:
            assert not kwargs["deterministic"]
            shapes.append(args[0].shape)
        return call(*args, **kwargs)

    with nn.intercept_methods(spy):
        rngs = {"dropout": jax.random.key(0)}
        run = functools.partial(module.apply, deterministic=False, rngs=rngs)
        jax.eval_shape(run, variables, *inputs)
    return shapes
