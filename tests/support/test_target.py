"""The operations for GPUs, run on a CPU, against those for other devices."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from jax.test_util import check_grads

from nystromformer_jax.attention import pinv, stages
from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.functions import LOCAL, nystrom
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.support.target import on_gpu
from tests.helpers import HALF_GRADIENT, REFERENCE, assert_close, normal


@pytest.mark.parametrize("platform", ["gpu", "cuda", "cpu", "tpu"])
def test_target_is_the_device_of_the_ambient_mesh(platform):
    device = AbstractDevice(device_kind="any", num_cores=None, platform=platform)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=device)):
        assert on_gpu() == (platform in ("gpu", "cuda"))


def attend(query, key, value, conv_kernel, *, mask):
    inputs = Inputs.create(query, key, value, mask, None, conv_kernel)
    options = NystromOptions(
        num_landmarks=3,
        pinv_iters=6,
        pinv_start="exact",
        landmark_layout="real",
        normalize_rows=mask is not None,
    )
    return nystrom(inputs, options, LOCAL)


def case(rngs, dtype):
    arrays = [normal(next(rngs), (2, 61, 2, 17), dtype) for _ in range(3)]
    arrays.append(normal(next(rngs), (2, 3), dtype))
    mask = jnp.arange(61)[None] < jnp.array([61, 2])[:, None]  # the second example is exact
    return arrays, mask


def value_and_gradients(arrays, mask):
    @jax.jit  # a new function, so that the program of another target is not reused
    def run(*arrays):
        output, pull_back = jax.vjp(lambda *x: attend(*x, mask=mask), *arrays)
        return output, pull_back(jnp.cos(output))

    return run(*arrays)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.slow_except("float32-True", "bfloat16-False")
def test_values_and_gradients_are_those_of_other_devices(rngs, monkeypatch, dtype, masked):
    arrays, mask = case(rngs, dtype)
    mask = mask if masked else None
    expected = value_and_gradients([x.astype(jnp.float32) for x in arrays], mask)
    for module in (stages, pinv):
        monkeypatch.setattr(module, "on_gpu", lambda: True)
    tolerance = REFERENCE if dtype == "float32" else HALF_GRADIENT
    assert_close(value_and_gradients(arrays, mask), expected, tolerance)


@pytest.mark.slow(minutes=0.3)
def test_second_derivatives_are_correct(rngs, monkeypatch):
    for module in (stages, pinv):
        monkeypatch.setattr(module, "on_gpu", lambda: True)
    with jax.enable_x64(True):
        tokens = [jax.random.normal(next(rngs), (1, 7, 1, 3), "float64") for _ in range(3)]
        check_grads(
            partial(attend, conv_kernel=None, mask=None), tokens, order=2, modes=["rev"], rtol=1e-3
        )
