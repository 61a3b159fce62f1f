"""The operations for GPUs, run on a CPU, against those for other devices."""

import functools

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from jax.test_util import check_grads

from nystromformer_jax import nystrom_attention
from nystromformer_jax.attention import pinv, stages
from nystromformer_jax.support.target import on_gpu
from tests.attention.contract import assert_equals_plain_jnp, cases_of


@pytest.mark.parametrize("platform", ["gpu", "cuda", "cpu", "tpu"])
def test_target_is_the_device_of_the_ambient_mesh(platform):
    device = AbstractDevice(device_kind="any", num_cores=None, platform=platform)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=device)):
        assert on_gpu() == (platform in ("gpu", "cuda"))


@cases_of("gpu", "normalized rows")
def test_values_and_gradients_are_those_of_other_devices(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "gpu", case)


@pytest.mark.slow(minutes=0.3)
def test_second_derivatives_are_correct(rngs, monkeypatch, no_annotations):
    for module in (stages, pinv):
        monkeypatch.setattr(module, "on_gpu", lambda: True)
    with jax.enable_x64(True):
        tokens = [jax.random.normal(next(rngs), (1, 7, 1, 3), "float64") for _ in range(3)]
        attend = functools.partial(nystrom_attention, num_landmarks=3)
        check_grads(attend, tokens, order=2, modes=["rev"], rtol=1e-3)
