"""With the options of the peers our outputs and gradients equal theirs."""

import jax
import jax.numpy as jnp
import pytest

from tests.helpers import REFERENCE, assert_close, mask_of_lengths

modules = pytest.importorskip(
    "tests.peers.modules", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
EMBED, LANDMARKS = modules.EMBED, modules.LANDMARKS

LENGTH = 6 * LANDMARKS


def compare(theirs, ours, params, x, mask, cotangent, where=None):
    """Compares outputs and input gradients; returns the parameter gradients of both."""
    torch_x = modules.tensors(x)
    expected = theirs(torch_x)
    expected.backward(modules.tensors(cotangent).detach())

    @jax.jit
    def run(params, x):
        def total(params, x):
            output = ours.apply({"params": params}, x, mask, deterministic=True)
            return (output * cotangent).sum(), output

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(params, x)

    (_, actual), (weights, gradient) = run(params, x)
    assert_close(actual, modules.array(expected), REFERENCE, where=where)
    assert_close(gradient, modules.array(torch_x.grad), REFERENCE)
    return weights


@pytest.mark.slow_except("True-False", "True-True")  # with padding, of landmarks and exact
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_hugging_face(rngs, exact, masked):
    """Also with padding, which enters the landmarks and the convolution; only kernel_3 masks it."""
    module = modules.huggingface(LENGTH, exact=exact)
    x = jax.random.normal(next(rngs), (3, LENGTH, EMBED))
    cotangent = jax.random.normal(next(rngs), x.shape)
    mask = mask_of_lengths([LENGTH, 20, 33], LENGTH) if masked else None
    additive = None if mask is None else modules.additive(mask)
    ours, params = modules.ours_like_huggingface(module, exact=exact)
    # In exact attention the rows of masked queries differ, so only real ones are compared.
    where = mask if exact else None
    if where is not None:
        cotangent = cotangent * where[..., None]
    theirs = lambda x: module(x, additive)[0]
    weights = compare(theirs, ours, params, x, mask, cotangent, where)
    for name in ("query", "key", "value"):
        expected = modules.array(getattr(module, name).weight.grad).T
        assert_close(weights[name]["kernel"], expected, REFERENCE)
    expected = modules.array(module.conv.weight.grad)[:, 0, :, 0]
    assert_close(weights["core"]["conv_kernel"], expected, REFERENCE)


def test_equals_lucidrains(rngs):
    """Without a mask and with a length that M divides; test_table covers the differences."""
    module = modules.lucidrains()
    x = jax.random.normal(next(rngs), (3, LENGTH, EMBED))
    cotangent = jax.random.normal(next(rngs), x.shape)
    ours, params = modules.ours_like_lucidrains(module)
    weights = compare(module, ours, params, x, None, cotangent)
    projections = modules.array(module.to_qkv.weight.grad).T.reshape(EMBED, 3, EMBED)
    for i, name in enumerate(("query", "key", "value")):
        assert_close(weights[name]["kernel"], projections[:, i], REFERENCE)
    expected = modules.array(module.res_conv.weight.grad)[:, 0, :, 0]
    assert_close(weights["core"]["conv_kernel"], expected, REFERENCE)
    assert jnp.isfinite(weights["out"]["kernel"]).all()
