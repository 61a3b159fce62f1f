"""The diagnostics of Nyström attention as a core."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from nystromformer_jax.cores import make_core
from tests.helpers import REFERENCE, SAME_ARITHMETIC, assert_close, mask_of_lengths, random_inputs

BATCH, LENGTH, HEADS, DIM = 3, 43, 2, 5


def test_sows_the_pseudoinverse_residual(rngs):
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


def test_residual_of_a_split_length_equals_that_of_one_device(rngs):
    query, key, value = random_inputs(rngs, BATCH, 64, HEADS, DIM)
    mask = mask_of_lengths([64, 50, 17], 64)
    core = make_core("nystrom", num_landmarks=7)()
    apply = functools.partial(core.apply, {}, deterministic=True, mutable=["diagnostics"])
    _, expected = jax.jit(apply)(query, key, value, mask)
    mesh = jax.make_mesh((4,), ("sequence",), (AxisType.Explicit,), devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        spec = NamedSharding(mesh, P(None, "sequence"))
        _, state = jax.jit(apply)(*jax.device_put((query, key, value, mask), spec))
    assert_close(state, expected, REFERENCE)


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


def test_sizes_may_be_numpy_integers(rngs, no_annotations):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    sizes = {"num_landmarks": np.int64(7), "pinv_iters": np.int64(3)}
    core = make_core("nystrom", **sizes, conv_kernel_size=np.int64(5))()
    init = functools.partial(core.init_with_output, deterministic=True)
    assert jax.eval_shape(init, jax.random.key(0), *inputs)[0].shape == inputs[0].shape
