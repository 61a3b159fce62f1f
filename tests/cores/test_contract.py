"""What every attention signs. A core that cannot keep a clause says so here, with a reason."""

import functools

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax.cores import CORES, make_core
from tests.helpers import (
    GRADIENT,
    HALF,
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    mask_of_lengths,
    random_inputs,
)

# The smallest sizes at which each core approximates rather than being exact.
OPTIONS = {
    "linear": {},
    "linformer": {"projection_size": 7, "max_len": 67},
    "longformer": {"window": 5, "num_global": 2},
    "nystrom": {"num_landmarks": 7, "conv_kernel_size": 5},
    "performer": {"num_features": 7},
    "reformer": {"num_hashes": 2, "chunk_len": 7, "num_buckets": 4},
    "softmax": {"conv_kernel_size": 5},
}
BATCH, LENGTH, HEADS, DIM = 3, 43, 2, 5

# Exceptions, each with its reason.
SELF_ATTENTION_ONLY = {
    "longformer",  # its window lies around the query's own position
    "reformer",  # its keys are its queries
}
COUNTS_POSITIONS = {
    "linformer",  # its projection has a column for each position: padding in front moves tokens
}

every_core = pytest.mark.parametrize("name", CORES)
cores_with_convolution = pytest.mark.parametrize(
    "name", [name for name in CORES if "conv_kernel_size" in OPTIONS[name]]
)


def make(name, rngs, inputs, mask, **options):
    """The core as a function of its inputs, with parameters of its own."""
    core = make_core(name, **OPTIONS[name], **options)()
    init = jax.jit(functools.partial(core.init, deterministic=True))
    variables = init(next(rngs), *inputs, mask)
    return functools.partial(core.apply, variables, deterministic=True)


def test_every_core_has_options_here():
    assert OPTIONS.keys() == CORES.keys()


@every_core
def test_shape_and_dtype_are_the_querys(name, rngs):
    for dtype in (jnp.float32, jnp.bfloat16):
        inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=dtype)
        output = make(name, rngs, inputs, None)(*inputs)
        assert output.shape == inputs[0].shape
        assert output.dtype == dtype


@every_core
def test_bfloat16_is_near_float32(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=jnp.bfloat16)
    mask = mask_of_lengths([43, 29, 17], LENGTH)
    core = make(name, rngs, inputs, mask)
    expected = core(*(x.astype(jnp.float32) for x in inputs), mask)
    assert_close(core(*inputs, mask), expected, HALF, where=mask)


@every_core
def test_padding_at_the_ends_changes_nothing(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    core = make(name, rngs, inputs, mask)
    front = 0 if name in COUNTS_POSITIONS else 3
    widths = ((0, 0), (front, 8))
    padded = [jnp.pad(x, (*widths, (0, 0), (0, 0)), constant_values=jnp.nan) for x in inputs]
    actual = core(*padded, jnp.pad(mask, widths))
    assert jnp.isfinite(actual).all()
    assert_close(actual[:, front:-8], core(*inputs, mask), REFERENCE, where=mask)


@every_core
def test_an_example_ignores_its_batch_mates(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    core = make(name, rngs, inputs, mask)
    together = core(*inputs, mask)
    for b in range(BATCH):
        alone = core(*(x[b : b + 1] for x in inputs), mask[b : b + 1])
        assert_close(together[b : b + 1], alone, SAME_ARITHMETIC, where=mask[b : b + 1])


@every_core
def test_gradients_under_a_full_mask_are_finite(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 0, 5], LENGTH)
    core = make(name, rngs, inputs, mask)
    output, pull_back = jax.vjp(lambda *x: core(*x, mask), *inputs)
    assert jnp.isfinite(output).all()
    assert all(jnp.isfinite(gradient).all() for gradient in pull_back(jnp.ones_like(output)))


@every_core
def test_same_input_same_bits(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    core = make(name, rngs, inputs, None)
    assert (core(*inputs) == core(*inputs)).all()


@every_core
def test_jit_changes_nothing(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    core = make(name, rngs, inputs, mask)

    def total(*inputs):
        return (core(*inputs, mask) ** 2 * mask[..., None, None]).sum()

    gradient = jax.grad(total, argnums=(0, 1, 2))
    assert_close(jax.jit(core)(*inputs, mask), core(*inputs, mask), REFERENCE)
    assert_close(jax.jit(gradient)(*inputs), gradient(*inputs), GRADIENT)


@every_core
def test_queries_and_keys_of_different_lengths(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, key_length=59)
    mask = mask_of_lengths([59, 31, 11], 59)
    query_mask = mask_of_lengths([43, 17, 29], LENGTH)
    if name in SELF_ATTENTION_ONLY:
        with pytest.raises(ValueError, match="self-attention"):
            make(name, rngs, inputs, None)
        return
    without = {"conv_kernel_size": 0} if "conv_kernel_size" in OPTIONS[name] else {}
    core = make_core(name, **(OPTIONS[name] | without))()
    call = functools.partial(core.apply, deterministic=True)
    variables = core.init(next(rngs), *inputs, deterministic=True)
    output = call(variables, *inputs, mask, query_mask)
    assert output.shape == inputs[0].shape
    longer = [jnp.pad(x, ((0, 0), (0, 4), (0, 0), (0, 0)), constant_values=jnp.nan) for x in inputs]
    masks = [jnp.pad(m, ((0, 0), (0, 4))) for m in (mask, query_mask)]
    assert_close(call(variables, *longer, *masks)[:, :-4], output, REFERENCE, where=query_mask)


@cores_with_convolution
def test_the_convolution_needs_equal_lengths(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, key_length=59)
    with pytest.raises(ValueError, match="equal lengths"):
        make(name, rngs, inputs, None)


def test_softmax_drops_attention_weights_only_when_asked(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    core = make_core("softmax", dropout_rate=0.5)()
    still = core.apply({}, *inputs, deterministic=True)
    one, other = (
        core.apply({}, *inputs, deterministic=False, rngs={"dropout": next(rngs)}) for _ in range(2)
    )
    assert (one != other).any()
    many = [
        core.apply({}, *inputs, deterministic=False, rngs={"dropout": next(rngs)})
        for _ in range(100)
    ]
    assert float(jnp.abs(sum(many) / 100 - still).mean()) < 0.1  # unbiased


def test_unknown_names_and_options_name_the_nearest():
    with pytest.raises(ValueError, match="did you mean nystrom"):
        make_core("nystrm")
    with pytest.raises(ValueError, match="did you mean num_landmarks"):
        make_core("nystrom", landmarks=64)
    with pytest.raises(ValueError, match="softmax attention has no option 'num_landmarks'"):
        make_core("softmax", num_landmarks=64)


@cores_with_convolution
@pytest.mark.parametrize("width", [4, -1])
def test_a_kernel_without_a_centre_is_refused(name, width, rngs):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    core = make_core(name, conv_kernel_size=width)()
    with pytest.raises(ValueError, match="must be odd"):
        core.init(next(rngs), *inputs, deterministic=True)


def test_nystrom_sows_the_residual_of_its_pseudoinverse_when_asked(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 17], LENGTH)
    core = make_core("nystrom", num_landmarks=7)()
    assert core.init(next(rngs), *inputs, mask, deterministic=True) == {}
    output, state = core.apply({}, *inputs, mask, deterministic=True, mutable=["diagnostics"])
    (residual,) = state["diagnostics"]["pinv_residual"]
    assert residual.shape == (BATCH, HEADS)
    assert ((residual > 1e-7) & (residual < 0.2)).all()
    assert_close(output, core.apply({}, *inputs, mask, deterministic=True), SAME_ARITHMETIC)


@pytest.mark.parametrize(("layout", "sees"), [("real", False), ("mlpen", False), ("hf", True)])
def test_the_residual_is_of_the_landmarks_that_the_layout_makes(rngs, layout, sees):
    """Hugging Face's average in what padding holds."""
    query, key, value = random_inputs(rngs, BATCH, 42, HEADS, DIM)
    mask = mask_of_lengths([42, 29, 17], 42)
    core = make_core("nystrom", num_landmarks=7, landmark_layout=layout)()

    def residual(filler):
        inputs = [jnp.where(mask[..., None, None], x, filler) for x in (query, key, value)]
        _, state = core.apply({}, *inputs, mask, deterministic=True, mutable=["diagnostics"])
        return state["diagnostics"]["pinv_residual"][0]

    same = jnp.isclose(residual(0), residual(2), rtol=1e-5).all(axis=1)
    assert same.tolist() == [True, not sees, not sees]
