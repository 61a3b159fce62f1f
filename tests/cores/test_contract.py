"""The contract of every attention. Cores with an exception are listed with the reason.

`--core=module:Class[,option=value …]` runs it on a class of another package instead.
"""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from configs.common import core_arguments
from nystromformer_jax.attention.convolution import depthwise_convolution
from nystromformer_jax.cores import CORES, make_core
from nystromformer_jax.support.plugins import is_plugin
from tests.helpers import (
    HALF,
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    mask_of_lengths,
    normal,
    random_inputs,
)

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
BATCH, LENGTH, HEADS, DIM = 3, 43, 2, 5

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

cores_with_convolution = pytest.mark.parametrize(
    "name", [name for name in CORES if "conv_kernel_size" in OPTIONS[name]]
)


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


def test_every_core_has_options():
    assert OPTIONS.keys() == CORES.keys()


def test_output_has_the_shape_and_dtype_of_the_query(core_name, rngs):
    for dtype in (jnp.float32, jnp.bfloat16):
        inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=dtype)
        output = jax.eval_shape(compiled(core_name), *inputs)
        assert output.shape == inputs[0].shape
        assert output.dtype == dtype


@pytest.mark.slow_except("softmax")
def test_accepts_numpy_arrays(core_name, rngs, no_annotations):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    core = make(core_name, rngs, inputs, None)
    float64 = [np.asarray(x, np.float64) for x in inputs]  # float32 without x64, and no warning
    assert_close(core(*float64, None), core(*inputs, None), SAME_ARITHMETIC)


@pytest.mark.slow_except("nystrom", "linear")
def test_bfloat16_is_near_float32(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=jnp.bfloat16)
    mask = mask_of_lengths([43, 29, 17], LENGTH)
    core = compiled(core_name)
    expected = core(*(x.astype(jnp.float32) for x in inputs), mask)
    assert_close(core(*inputs, mask), expected, HALF, where=mask)


# A multiple of seven landmarks, and not.
@pytest.mark.parametrize(
    ("dtype", "length"),
    [
        pytest.param(jnp.float32, 43, marks=pytest.mark.slow(minutes=0.1)),
        pytest.param(jnp.bfloat16, 42, marks=pytest.mark.slow(minutes=0.1)),
        (jnp.bfloat16, 43),
    ],
)
def test_dtypes_are_never_promoted_implicitly(core_name, dtype, length, rngs):
    if is_plugin(core_name):
        pytest.skip("a rule of this repository")
    inputs = random_inputs(rngs, 2, length, HEADS, DIM, dtype=dtype)
    mask = mask_of_lengths([length, 29], length)
    core = make_core(**arguments_of(core_name))()
    init = functools.partial(core.init, deterministic=True)
    # With x64, integers and random numbers have 64 bits unless they are given a dtype.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        variables = jax.eval_shape(init, next(rngs), *inputs, mask)
        for given in (None, mask):

            def total(variables, *inputs, given=given):
                output = core.apply(variables, *inputs, given, deterministic=True)
                return output.astype(jnp.float32).sum()

            jax.eval_shape(jax.grad(total, argnums=(1, 2, 3)), variables, *inputs)


def test_parameters_are_float32_with_x64(core_name, rngs):
    if is_plugin(core_name):
        pytest.skip("a rule of this repository")
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    core = make_core(**arguments_of(core_name))()
    with jax.enable_x64(True):
        variables = jax.eval_shape(
            functools.partial(core.init, deterministic=True), next(rngs), *inputs
        )
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


@pytest.mark.parametrize("name", ["performer", "reformer"])
@pytest.mark.parametrize(
    "setting", [jax.default_prng_impl("rbg"), jax.enable_x64(True)], ids=["rbg", "x64"]
)
def test_random_features_are_the_same_under_any_setting(name, setting, rngs):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    core = make_core(name, **OPTIONS[name])()
    expected = core.apply({}, *inputs, deterministic=True)
    with setting:
        actual = core.apply({}, *inputs, deterministic=True)
    assert_close(actual, expected, SAME_ARITHMETIC)


@pytest.mark.parametrize("name", ["performer", "none", "softmax"])
def test_the_second_call_outside_jit_compiles_nothing(name, rngs, caplog, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)  # then the convolution's gradient is a loop
    options = {"performer": {"num_features": 7}}.get(name, {"conv_kernel_size": 3})
    core, inputs = make_core(name, **options)(), random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    variables = core.init(next(rngs), *inputs, deterministic=True)

    def loss(variables, *inputs):
        return core.apply(variables, *inputs, deterministic=True).sum()

    for _ in range(2):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            jax.grad(loss)(variables, *inputs)
    assert "Compiling" not in caplog.text


def test_padding_at_the_ends_changes_nothing(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    core = compiled(core_name)
    front = 0 if core_name in COUNTS_POSITIONS else 3
    widths = ((0, 0), (front, 8))
    padded = [np_pad(x, widths, np.nan) for x in inputs]
    actual = np.asarray(core(*padded, np_pad(mask, widths, False)))
    assert np.isfinite(actual).all()
    assert_close(actual[:, front:-8], core(*inputs, mask), REFERENCE, where=mask)


@pytest.mark.slow_except("nystrom", "reformer")
def test_an_example_is_independent_of_its_batch(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    core = compiled(core_name)
    together = np.asarray(core(*inputs, mask))
    inputs, mask = jax.device_get((inputs, mask))
    for b in range(BATCH):
        alone = core(*(x[b : b + 1] for x in inputs), mask[b : b + 1])
        assert_close(together[b : b + 1], alone, SAME_ARITHMETIC, where=mask[b : b + 1])


def test_output_without_real_tokens_is_zero(core_name, rngs):
    if is_plugin(core_name):
        pytest.skip("a core of another package may return something else")
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    output = compiled(core_name)(*inputs, mask_of_lengths([43, 0, 5], LENGTH))
    assert (output[1] == 0).all()
    assert (output[0] != 0).any()


@pytest.mark.slow_except("chunked", "nystrom", "reformer", "performer")
def test_gradients_are_finite_if_an_example_has_no_real_tokens(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 0, 5], LENGTH)
    core = compiled(core_name)

    @jax.jit
    def run(*inputs):
        output, pull_back = jax.vjp(lambda *x: core(*x, mask), *inputs)
        return output, pull_back(jnp.ones_like(output))

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run(*inputs)))


def test_same_input_same_bits(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    cores = compiled(core_name), compiled.__wrapped__(core_name)  # traced separately
    one, other = (core(*inputs, mask) for core in cores)
    assert (one == other).all()


@pytest.mark.slow(minutes=0.1)
def test_jit_changes_nothing(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    core = compiled(core_name).__wrapped__

    def total(*inputs):
        return (core(*inputs, mask) ** 2 * mask[..., None, None]).sum()

    gradient = jax.grad(total, argnums=(0, 1, 2))
    assert_close(jax.jit(core)(*inputs, mask), core(*inputs, mask), REFERENCE)
    assert_close(jax.jit(gradient)(*inputs), gradient(*inputs), REFERENCE)


def test_queries_and_keys_may_differ_in_length(core_name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, key_length=59)
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


@cores_with_convolution
def test_convolution_rejects_different_lengths(name, rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, key_length=59)
    with pytest.raises(ValueError, match="same length" if name == "chunked" else "equal lengths"):
        make(name, rngs, inputs, None)


def test_softmax_drops_attention_weights_only_if_configured(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    core = make_core("softmax", dropout_rate=0.5)()
    still = core.apply({}, *inputs, deterministic=True)
    dropped = jax.jit(
        lambda rng: core.apply({}, *inputs, deterministic=False, rngs={"dropout": rng})
    )
    one, other = (dropped(next(rngs)) for _ in range(2))
    assert (one != other).any()
    many = [one, other, *(dropped(next(rngs)) for _ in range(98))]
    assert float(np.abs(np.mean(many, axis=0) - still).mean()) < 0.1  # unbiased
    unchanged = make_core("softmax")().apply({}, *inputs, deterministic=False)  # needs no RNG
    assert (unchanged == still).all()


def test_errors_about_names_and_options_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean nystrom"):
        make_core("nystrm")
    with pytest.raises(ValueError, match="did you mean num_landmarks"):
        make_core("nystrom", landmarks=64)
    with pytest.raises(ValueError, match="softmax attention has no option 'num_landmarks'"):
        make_core("softmax", num_landmarks=64)
    with pytest.raises(
        ValueError, match=r"num_landmarks must be hashable.*got \[64\]\. In place of a list"
    ):
        make_core("nystrom", num_landmarks=[64])


def test_rejects_causal_attention():
    for option in ("causal", "is_causal"):
        with pytest.raises(ValueError, match=r"only padding masks.*jax\.nn\.dot_product_attention"):
            make_core("nystrom", **{option: True})


@pytest.mark.parametrize("name", [None, 3])
def test_rejects_a_name_that_is_not_a_string(name, no_annotations):
    with pytest.raises(ValueError, match=f"Unknown attention {name}"):
        make_core(name)


def test_factories_compare_by_value(core_name):
    one, other = (make_core(**arguments_of(core_name)) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != make_core("linear" if core_name != "linear" else "none")


def test_sizes_may_be_numpy_integers(rngs, no_annotations):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    of = lambda kind: make_core(
        "nystrom", num_landmarks=kind(7), pinv_iters=kind(3), conv_kernel_size=kind(5)
    )()
    init = jax.jit(functools.partial(of(int).init, deterministic=True))
    variables = init(jax.random.key(0), *inputs)
    expected, actual = (
        jax.jit(functools.partial(of(kind).apply, deterministic=True))(variables, *inputs)
        for kind in (int, np.int64)
    )
    assert_close(actual, expected, SAME_ARITHMETIC)


@cores_with_convolution
@pytest.mark.parametrize("width", [4, -1])
def test_rejects_a_kernel_of_even_width(name, width, rngs):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    core = make_core(name, conv_kernel_size=width)()
    with pytest.raises(ValueError, match="must be odd"):
        core.init(next(rngs), *inputs, deterministic=True)


@cores_with_convolution
@pytest.mark.parametrize("width", [0, 5])
def test_rejects_unknown_conv_groups(name, width, rngs, no_annotations):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    core = make_core(name, conv_kernel_size=width, conv_groups="heads")()
    with pytest.raises(ValueError, match="conv_groups must be one of 'head', 'channel', got 'he"):
        core.init(next(rngs), *inputs, deterministic=True)


@cores_with_convolution
@pytest.mark.parametrize(("groups", "shape"), [("head", (31, 35)), ("channel", (31, 7, 35))])
def test_initial_convolution_kernel_is_uniform(name, groups, shape, rngs):
    inputs = random_inputs(rngs, 1, 3, 31, 7)
    core = make_core(name, conv_kernel_size=35, conv_groups=groups)()
    init = jax.jit(functools.partial(core.init, deterministic=True))
    kernel = np.asarray(init(next(rngs), *inputs)["params"]["conv_kernel"])
    assert kernel.shape == shape
    assert 0.95 < float(np.abs(kernel).max() * 35**0.5) <= 1
    assert 0.9 < float(kernel.std() * (3 * 35) ** 0.5) < 1.1


@cores_with_convolution
def test_convolution_per_channel_is_added_to_the_attention(name, rngs):
    query, key, value = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    options = OPTIONS[name] | {"conv_groups": "channel"}
    core, without = (make_core(name, **options | {"conv_kernel_size": w})() for w in (5, 0))
    kernel = normal(next(rngs), (HEADS, DIM, 5))
    variables = {"params": {"conv_kernel": kernel}}

    @jax.jit
    def run(*inputs):
        actual = core.apply(variables, *inputs, mask, deterministic=True)
        attended = without.apply({}, *inputs, mask, deterministic=True)
        value = jnp.where(mask[..., None, None], inputs[-1], 0)
        return actual, attended + depthwise_convolution(value, kernel)

    assert_close(*run(query, key, value), REFERENCE, where=mask)


def test_attention_none_is_the_convolution_of_the_value(rngs):
    query, key, value = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 5], LENGTH)
    kernel = normal(next(rngs), (HEADS, 5))
    core = make_core("none", conv_kernel_size=5)()
    call = functools.partial(core.apply, {"params": {"conv_kernel": kernel}}, deterministic=True)
    output = call(query, key, value, mask)
    real = jnp.where(mask[..., None, None], value, 0)
    assert (output == depthwise_convolution(real, kernel)).all()
    assert (output == call(key, query, value, mask)).all()
    nothing = make_core("none", conv_kernel_size=0)()
    assert (nothing.apply({}, query, key, value, mask, deterministic=True) == 0).all()


def test_nystrom_sows_the_pseudoinverse_residual(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([43, 29, 17], LENGTH)
    core = make_core("nystrom", num_landmarks=7)()
    init = jax.jit(functools.partial(core.init, deterministic=True))
    assert init(next(rngs), *inputs, mask) == {}
    apply = functools.partial(core.apply, {}, deterministic=True)
    output, state = jax.jit(functools.partial(apply, mutable=["diagnostics"]))(*inputs, mask)
    (residual,) = state["diagnostics"]["pinv_residual"]
    assert residual.shape == (BATCH, HEADS)
    assert ((residual > 1e-7) & (residual < 0.2)).all()
    assert_close(output, jax.jit(apply)(*inputs, mask), SAME_ARITHMETIC)


@pytest.mark.parametrize("masked", [False, True])
def test_residual_of_a_split_length_equals_that_of_one_device(rngs, masked):
    query, key, value = random_inputs(rngs, BATCH, 64, HEADS, DIM)
    mask = mask_of_lengths([64, 50, 17], 64) if masked else None
    core = make_core("nystrom", num_landmarks=7)()
    apply = functools.partial(core.apply, {}, deterministic=True, mutable=["diagnostics"])
    _, expected = jax.jit(apply)(query, key, value, mask)
    mesh = jax.make_mesh((4,), ("sequence",), (AxisType.Explicit,), devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        spec = NamedSharding(mesh, P(None, "sequence"))
        split = jax.device_put((query, key, value), spec)
        _, state = jax.jit(apply)(*split, None if mask is None else jax.device_put(mask, spec))
    assert_close(state, expected, REFERENCE)


def test_residual_falls_with_the_iterations_of_the_core(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)

    def residual(pinv_iters):
        core = make_core("nystrom", num_landmarks=7, pinv_iters=pinv_iters)()
        run = functools.partial(core.apply, {}, deterministic=True, mutable=["diagnostics"])
        return jax.jit(run)(*inputs)[1]["diagnostics"]["pinv_residual"][0]

    assert (residual(2) > 2 * residual(6)).all()


@pytest.mark.slow_except("hf-True")
@pytest.mark.parametrize(("layout", "sees"), [("real", False), ("mlpen", False), ("hf", True)])
def test_residual_uses_the_landmark_layout(rngs, layout, sees):
    """Hugging Face's landmarks also average the values of padding."""
    query, key, value = random_inputs(rngs, BATCH, 42, HEADS, DIM)
    mask = mask_of_lengths([42, 29, 17], 42)
    core = make_core("nystrom", num_landmarks=7, landmark_layout=layout)()

    @jax.jit
    def residual(filler):
        inputs = [jnp.where(mask[..., None, None], x, filler) for x in (query, key, value)]
        _, state = core.apply({}, *inputs, mask, deterministic=True, mutable=["diagnostics"])
        return state["diagnostics"]["pinv_residual"][0]

    same = np.isclose(residual(0.0), residual(2.0), rtol=1e-5).all(axis=1)
    assert same.tolist() == [True, not sees, not sees]


@pytest.mark.slow_except("nystrom-normalize_rows-False", "longformer--False")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("name", "option"),
    [("chunked", ""), ("longformer", ""), ("nystrom", ""), ("nystrom", "normalize_rows")],
)
def test_a_batch_on_an_explicit_mesh_axis(rngs, name, option, masked):
    mask = mask_of_lengths([23, 9], 23) if masked else None
    inputs = random_inputs(rngs, 2, 23, HEADS, DIM)
    core = make_core(name, **OPTIONS[name], **dict.fromkeys([option] if option else [], True))(
        parent=None
    )
    variables = core.init(next(rngs), *inputs, deterministic=True)

    def squares(*inputs):
        return (core.apply(variables, *inputs, deterministic=True) ** 2).sum()

    gradient = jax.jit(jax.grad(squares))
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Explicit,))
    with jax.set_mesh(mesh):
        split = gradient(*jax.device_put((*inputs, mask), NamedSharding(mesh, P("data"))))
    assert_close(np.asarray(split), gradient(*inputs, mask), REFERENCE)
