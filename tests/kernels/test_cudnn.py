"""When cuDNN is used, its result and its precision; XLA computes what cuDNN would."""

import re
import types
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from nystromformer_jax import nystrom_attention
from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.functions import CUDNN, LOCAL, nystrom
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.kernels import choice, cudnn
from tests.attention.contract import assert_equals_plain_jnp, cases_of
from tests.helpers import masks_of_all_kinds, random_inputs

LENGTH, HEADS, DIM, M = 62, 2, 8, 6
MASK = masks_of_all_kinds(LENGTH, M, 4)


@pytest.fixture(autouse=True)
def without_cudnn(monkeypatch):
    """XLA computes what cuDNN would."""
    monkeypatch.setattr(cudnn, "BACKEND", "xla")
    choice._warn_once.cache_clear()
    jax.clear_caches()
    yield
    jax.clear_caches()


@cases_of("cudnn", "two masks")
def test_equals_plain_jnp(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "cudnn", case)


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_as_precise_as_plain_jnp(rngs, dtype):
    """Also on a random walk, whose landmark kernel is ill-conditioned, and the inverse large."""
    tokens = [jnp.cumsum(x, axis=1) / 8 for x in random_inputs(rngs, 4, LENGTH, HEADS, DIM)]
    options = NystromOptions(num_landmarks=M)

    def output(dtype, operations):
        inputs = Inputs.create(*(x.astype(dtype) for x in tokens), MASK, None, None)
        return nystrom(inputs, options, operations).astype(jnp.float32)

    exact = output(jnp.float32, LOCAL)
    real = MASK[..., None, None]
    errors = [jnp.linalg.norm((output(dtype, own) - exact) * real) for own in (CUDNN, LOCAL)]
    assert errors[0] < 2 * errors[1]


def on_gpu(kind=AxisType.Auto, size=1):
    device = AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    mesh = AbstractMesh((size,), ("data",), (kind,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def arguments(length=LENGTH, dim=DIM, dtype=jnp.bfloat16):
    return [jax.ShapeDtypeStruct((4, length, HEADS, dim), dtype)] * 3


@pytest.mark.parametrize(
    ("tokens", "options", "word"),
    [
        ({"dtype": jnp.float32}, {}, "not float32"),
        ({"dim": 12}, {}, "not 12"),
        ({"dim": 136}, {}, "not 136"),
        ({}, {"normalize_rows": True}, "normalize_rows"),
        ({"length": 61}, {"mask": jnp.ones((4, 61), bool)}, "even length"),
        ({"length": 61}, {"query_mask": jnp.ones((4, 61), bool)}, "even length"),
        ({}, {"mask": MASK, "num_landmarks": 5}, "even number of landmarks"),
    ],
)
def test_falls_back_to_xla_with_one_warning(tokens, options, word):
    options = {"num_landmarks": M, **options}

    def trace():
        with on_gpu():
            call = lambda *x: nystrom_attention(*x, implementation="cudnn", **options)
            jax.eval_shape(call, *arguments(**tokens))

    with pytest.warns(UserWarning, match=f"without cuDNN: .*{word}"):
        trace()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace()


@pytest.mark.parametrize(
    ("dtype", "implementation"), [(jnp.bfloat16, "cudnn"), (jnp.float32, "xla")]
)
def test_auto_on_a_gpu_uses_cudnn_for_half_precision_and_does_not_warn(dtype, implementation):
    inputs = Inputs.create(*(jnp.ones((4, LENGTH, HEADS, DIM), dtype),) * 3, None, None, None)
    with on_gpu(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choice.choose("auto", inputs, NystromOptions(num_landmarks=M)) == implementation


@pytest.mark.parametrize(
    ("kind", "size", "supported"),
    [(AxisType.Auto, 2, True), (AxisType.Explicit, 1, True), (AxisType.Explicit, 2, False)],
)
def test_only_explicit_axes_of_several_devices_are_unsupported(kind, size, supported):
    inputs = Inputs.create(
        *(jnp.ones((4, LENGTH, HEADS, DIM), jnp.bfloat16),) * 3, None, None, None
    )
    with on_gpu(kind, size):
        reason = cudnn.unsupported(inputs, NystromOptions(num_landmarks=M))
    assert bool(reason) != supported


@pytest.mark.parametrize(
    ("capability", "word"),
    [("9.0", "^$"), ("8.0", "^$"), ("7.5", "capability 8 or later"), ("gfx942", "an NVIDIA GPU")],
)
def test_needs_a_recent_nvidia_gpu(monkeypatch, capability, word):
    monkeypatch.setattr(cudnn, "BACKEND", "cudnn")
    assert "not cpu" in cudnn.unavailable()
    monkeypatch.setattr(cudnn, "_is_installed", lambda: True)
    device = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(cudnn.jax, "devices", lambda: [device])
    with on_gpu():
        assert re.search(word, cudnn.unavailable())
