"""Parameters and random numbers that several cores share."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.attention.convolution import depthwise_convolution
from nystromformer_jax.cores import CORES, make_core
from tests.cores.test_contract import OPTIONS
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    mask_of_lengths,
    normal,
    random_inputs,
)

BATCH, LENGTH, HEADS, DIM = 3, 43, 2, 5


@pytest.mark.parametrize(("groups", "shape"), [("head", (31, 35)), ("channel", (31, 7, 35))])
def test_initial_convolution_kernel_is_uniform(groups, shape, rngs):
    inputs = random_inputs(rngs, 1, 3, 31, 7)
    core = make_core("none", conv_kernel_size=35, conv_groups=groups)()
    init = jax.jit(functools.partial(core.init, deterministic=True))
    kernel = np.asarray(init(next(rngs), *inputs)["params"]["conv_kernel"])
    assert kernel.shape == shape
    assert 0.95 < float(np.abs(kernel).max() * 35**0.5) <= 1
    assert 0.9 < float(kernel.std() * (3 * 35) ** 0.5) < 1.1


@pytest.mark.parametrize("name", [name for name in CORES if "conv_kernel_size" in OPTIONS[name]])
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


def test_the_baseline_without_attention_reads_only_values_by_its_convolution(rngs):
    query, key, value = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    variables = {"params": {"conv_kernel": jnp.ones((HEADS, 5))}}
    call = make_core("none", conv_kernel_size=5)().apply
    output = call(variables, query, key, value, deterministic=True)
    assert (output == call(variables, key, query, value, deterministic=True)).all()
    assert (make_core("none")().apply({}, query, key, value, deterministic=True) == 0).all()


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


@pytest.mark.parametrize("name", ["performer", "reformer"])
def test_random_features_depend_on_the_seed_the_layer_and_with_redraw_the_call(name, rngs):
    """The seed and the layer's name in every call, and with `redraw` on the stream in training."""
    inputs, one, other = random_inputs(rngs, 1, LENGTH, HEADS, DIM), next(rngs), next(rngs)

    def attend(rng=None, **attributes):
        core = make_core(name, **OPTIONS[name], **attributes)()
        run = jax.jit(functools.partial(core.apply, deterministic=rng is None))
        return run({}, *inputs, rngs={} if rng is None else {"dropout": rng})

    fixed = attend(redraw=False)
    assert (attend(redraw=True) == fixed).all()
    assert (attend(one, redraw=False) == fixed).all()
    for changed in (attend(one, redraw=True), attend(seed=1), attend(layer_name="second")):
        assert (changed != fixed).any()
    assert (attend(one, redraw=True) != attend(other, redraw=True)).any()


@pytest.mark.parametrize("name", ["performer", "none"])
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
