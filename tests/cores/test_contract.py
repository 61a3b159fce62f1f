"""The contract of every attention. Cores with an exception are listed with the reason.

`--core=module:Class[,option=value …]` runs it on a class of another package instead. The layers in NNX equal
those in linen with every core, see tests/layers/test_nnx.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.common import core_arguments
from nystromformer_jax.cores import CORES, make_core
from nystromformer_jax.support.plugins import is_plugin
from tests.helpers import HALF, REFERENCE, assert_close, mask_of_lengths, normal, random_inputs

# The smallest sizes at which each core approximates rather than being exact.
OPTIONS = {
    "chunked": {"chunk_len": 16, "conv_kernel_size": 5},
    "linear": {},
    "linformer": {"projection_size": 7, "max_len": 67},
    "longformer": {"window": 5, "num_global": 2},
    "none": {"conv_kernel_size": 5},
    "nystrom": {"num_landmarks": 7, "conv_kernel_size": 5},
    "performer": {"num_features": 7},
    "reformer": {"num_hashes": 2, "chunk_len": 7, "num_buckets": 4},
    "softmax": {"conv_kernel_size": 5},
}
BATCH, LENGTH, HEADS, DIM = 4, 43, 2, 5
LENGTHS = [43, 29, 5, 0]
MASK = mask_of_lengths(LENGTHS, LENGTH)

# Exceptions, each with its reason.
SELF_ATTENTION_ONLY = {
    "chunked",  # the chunks of queries and keys are the same tokens
    "longformer",  # its window is around the query's position
    "reformer",  # its keys are its queries
}
COUNTS_POSITIONS = {
    "chunked",  # its chunks begin at multiples of their length
    "linformer",  # its projection has a column per position, so padding in front changes it
}


def pytest_generate_tests(metafunc):
    if "core_name" in metafunc.fixturenames:
        outside = metafunc.config.getoption("core")
        metafunc.parametrize("core_name", [outside] if outside else CORES)


def arguments_of(name):
    """The arguments of `make_core`."""
    return core_arguments(name) if is_plugin(name) else {"name": name, **OPTIONS[name]}


def make(name, rngs, inputs, mask):
    """Returns the core with random parameters as a function of its inputs, not compiled."""
    core = make_core(**arguments_of(name))()
    init = jax.jit(functools.partial(core.init, deterministic=True))
    variables = init(next(rngs), *inputs, mask)
    return functools.partial(core.apply, variables, deterministic=True)


@functools.cache
def compiled(name):
    """The core as a compiled function of its inputs; tests share the parameters and the programs."""
    rngs = (jax.random.fold_in(jax.random.key(1), i) for i in range(4))
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    return jax.jit(make(name, rngs, inputs, None))


def np_pad(x, widths, value):
    """Pads the batch's arrays in NumPy: no program is compiled per shape."""
    rest = ((0, 0),) * (x.ndim - len(widths))
    return np.pad(x, (*widths, *rest), constant_values=value)


def test_output_has_the_shape_and_dtype_of_the_query(core_name, rngs):
    for dtype in (jnp.float32, jnp.bfloat16):
        inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=dtype)
        output = jax.eval_shape(compiled(core_name), *inputs)
        assert output.shape == inputs[0].shape
        assert output.dtype == dtype


@pytest.mark.slow_except("softmax", "nystrom")
def test_jit_and_numpy_arrays_change_nothing(core_name, rngs, no_annotations):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    core = compiled(core_name)
    float64 = [np.asarray(x, np.float64) for x in inputs]  # float32 without x64, and no warning
    assert_close(core.__wrapped__(*float64, np.asarray(MASK)), core(*inputs, MASK), REFERENCE)


@pytest.mark.slow_except("nystrom", "linear")
def test_bfloat16_is_near_float32(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=jnp.bfloat16)
    core = compiled(core_name)
    expected = core(*(x.astype(jnp.float32) for x in inputs), MASK)
    assert_close(core(*inputs, MASK), expected, HALF, where=MASK)


# A multiple of seven landmarks, and not.
@pytest.mark.parametrize(
    ("dtype", "length"),
    [pytest.param(jnp.float32, 42, marks=pytest.mark.slow(minutes=0.1)), (jnp.bfloat16, 43)],
)
def test_dtypes_are_never_promoted_implicitly(core_name, dtype, length, rngs):
    if is_plugin(core_name):
        pytest.skip("a rule of this repository")
    inputs = random_inputs(rngs, 2, length, HEADS, DIM, dtype=dtype)
    core = make_core(**arguments_of(core_name))()
    init = functools.partial(core.init, deterministic=True)
    # With x64, integers and random numbers have 64 bits unless they are given a dtype.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        variables = jax.eval_shape(init, next(rngs), *inputs)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))
        for mask in (None, mask_of_lengths([length, 29], length)):

            def total(variables, *inputs, mask=mask):
                output = core.apply(variables, *inputs, mask, deterministic=True)
                return output.astype(jnp.float32).sum()

            jax.eval_shape(jax.grad(total, argnums=(1, 2, 3)), variables, *inputs)


@pytest.mark.slow_except("chunked", "linear", "nystrom", "performer", "reformer")
def test_an_example_is_independent_of_padding_and_of_its_batch(core_name, rngs):
    """Output and gradients, whatever padding contains; without real tokens they are zeros."""
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    cotangent = normal(next(rngs), inputs[0].shape) * MASK[..., None, None]
    core = compiled(core_name)

    @jax.jit
    def run(inputs, mask, cotangent):
        output, pull_back = jax.vjp(lambda *x: core(*x, mask), *inputs)
        return output, *pull_back(cotangent)

    front = 0 if core_name in COUNTS_POSITIONS else 3
    widths = ((0, 0), (front, 8))
    mask = np_pad(MASK, widths, False)
    padded = [np.where(mask[..., None, None], np_pad(x, widths, 0), np.nan) for x in inputs]
    together = jax.device_get(run(padded, mask, np_pad(cotangent, widths, 0)))
    assert all(np.isfinite(leaf).all() for leaf in together)
    if not is_plugin(core_name):  # a core of another package may return something else
        assert all((leaf[LENGTHS.index(0)] == 0).all() for leaf in together)
    inputs, real, cotangent = jax.device_get((inputs, MASK, cotangent))
    for b in np.flatnonzero(LENGTHS):
        one = slice(b, b + 1)
        alone = run([x[one] for x in inputs], real[one], cotangent[one])
        actual = [leaf[one, front:-8] for leaf in together]
        assert_close(actual, list(alone), REFERENCE, where=real[one])


@pytest.mark.slow_except("performer", "reformer")  # they draw random numbers
def test_same_input_same_bits(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    cores = compiled(core_name), compiled.__wrapped__(core_name)  # traced separately
    one, other = (core(*inputs, MASK) for core in cores)
    assert (one == other).all()


def test_queries_and_keys_may_differ_in_length(core_name, rngs):
    inputs = random_inputs(rngs, 3, LENGTH, HEADS, DIM, key_length=59)
    mask = mask_of_lengths([59, 31, 11], 59)
    query_mask = mask_of_lengths([43, 17, 29], LENGTH)
    if core_name in SELF_ATTENTION_ONLY:
        with pytest.raises(ValueError, match="self-attention"):
            make(core_name, rngs, inputs, None)
        return
    arguments = arguments_of(core_name)
    without = {"conv_kernel_size": 0} if "conv_kernel_size" in arguments else {}
    core = make_core(**(arguments | without))()
    call = jax.jit(functools.partial(core.apply, deterministic=True))
    try:
        variables = jax.jit(functools.partial(core.init, deterministic=True))(next(rngs), *inputs)
    except ValueError as error:
        if not is_plugin(core_name):
            raise
        pytest.skip(f"rejected: {error}")
    output = call(variables, *inputs, mask, query_mask)
    assert output.shape == inputs[0].shape
    longer = [np_pad(x, ((0, 0), (0, 4)), np.nan) for x in inputs]
    masks = [np_pad(m, ((0, 0), (0, 4)), False) for m in (mask, query_mask)]
    padded = np.asarray(call(variables, *longer, *masks))
    assert_close(padded[:, :-4], output, REFERENCE, where=query_mask)


def test_factories_compare_by_value(core_name):
    one, other = (make_core(**arguments_of(core_name)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != make_core("linear" if core_name != "linear" else "none")
