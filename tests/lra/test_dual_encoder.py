import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra.models import DualEncoder, ModelConfig, SequenceEncoder
from nystromformer_jax import make_core
from nystromformer_jax.training import MeshConfig, make_mesh, shard_batch
from nystromformer_jax.training.mesh import replicated
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, random_variables

SIZES = ModelConfig(vocab_size=11, max_len=64, embed_dim=12, head_dim=5, mlp_dim=7)
CONCATENATION = dataclasses.replace(SIZES, pair_features="concatenation", pooling="first")
CORES = {
    "nystrom": make_core("nystrom", num_landmarks=5, conv_kernel_size=3),
    "softmax": make_core("softmax"),
}
every_core = pytest.mark.parametrize("core", CORES)


@functools.cache
def compiled(kind, core, sizes=SIZES, **options):
    module = kind(sizes, CORES[core], **options)
    return jax.jit(functools.partial(module.apply, deterministic=True))


def model(core, sizes=SIZES):
    return compiled(DualEncoder, core, sizes, num_classes=3)


def pairs(rngs, batch, length):
    """inputs1, mask1, inputs2 and mask2; every text is of another length."""
    texts = []
    for start in (0, batch):
        lengths = [length - i for i in range(start, start + batch)]
        inputs = jax.random.randint(next(rngs), (batch, length), 1, SIZES.vocab_size)
        texts += [inputs, mask_of_lengths(lengths, length)]
    return tuple(texts)


def random_params(core, rng, texts, sizes=SIZES):
    """Random weights so large that texts have clearly different logits."""
    return random_variables(rng, DualEncoder(sizes, CORES[core], 3), *texts)


def dense(params, name, features):
    return features @ params[name]["kernel"] + params[name]["bias"][None]


@pytest.mark.slow_except("softmax-sizes0")
@pytest.mark.parametrize("sizes", [SIZES, CONCATENATION])
@every_core
def test_logits_are_the_head_of_two_texts_and_a_pair_ignores_its_batch_mates(rngs, core, sizes):
    texts = pairs(rngs, 5, 23)
    variables, run = random_params(core, next(rngs), texts, sizes), model(core, sizes)
    params = variables["params"]
    encode = compiled(SequenceEncoder, core, sizes)
    x, y = (
        encode({"params": params["sequence_encoder"]}, *text) for text in (texts[:2], texts[2:])
    )
    assert float(jnp.abs(x - y).max()) > 0.1
    if sizes is SIZES:
        features = jnp.concatenate([x, y, x * y, x - y], axis=-1)
    else:
        features = jax.nn.relu(dense(params, "head_pair", jnp.concatenate([x, y], axis=-1)))
        assert params["head_hidden"]["kernel"].shape == (7, 3)
    hidden = jax.nn.relu(dense(params, "head_hidden", features))
    logits = run(variables, *texts)
    assert_close(logits, dense(params, "head_output", hidden), REFERENCE)
    alone = [run(variables, *(text[i : i + 1] for text in texts)) for i in range(5)]
    assert_close(logits, jnp.concatenate(alone), REFERENCE)


@pytest.mark.slow(minutes=0.3)
@every_core
def test_gradients_are_finite_and_flow_through_both_texts(rngs, core):
    """The tokens 1 to 5 are only in the first texts, 6 to 10 only in the second."""
    length = 23
    inputs1, inputs2 = (jnp.arange(2 * length).reshape(2, length) % 5 + first for first in (1, 6))
    masks = mask_of_lengths([length, 9], length), mask_of_lengths([0, length], length)  # one empty
    texts = inputs1, masks[0], inputs2, masks[1]
    params, run = random_params(core, next(rngs), texts), model(core)

    def loss(params):
        return (run(params, *texts) * jnp.arange(3.0)[None]).sum()

    gradients = jax.jit(jax.grad(loss))(params)
    for leaf in jax.tree.leaves(gradients):
        assert np.isfinite(leaf).all()
    embedding = gradients["params"]["sequence_encoder"]["token_embedding"]["embedding"]
    assert (jnp.abs(embedding).max(axis=1) > 1e-6).tolist() == [False] + [True] * 10


def on_mesh(run, params, texts, devices):
    """The compiled forward pass of a batch split over devices, and its arguments."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    batch = dict(zip(DualEncoder.batch_keys, map(np.asarray, texts), strict=True))
    arguments = jax.device_put(params, replicated(mesh)), *shard_batch(batch, mesh).values()
    return jax.jit(run).lower(*arguments).compile(), arguments


@pytest.mark.slow_except("softmax")
@every_core
def test_eight_devices_equal_one_and_do_not_exchange_activations(rngs, core):
    """Forward they exchange one bit per layer, whether any text is short."""
    texts = pairs(rngs, 16, 37)
    params, run = random_params(core, next(rngs), texts), model(core)
    forward, arguments = on_mesh(run, params, texts, 8)
    logits = forward(*arguments)
    assert len(logits.sharding.device_set) == 8
    assert_close(logits, run(params, *texts), REFERENCE)
    moved = "all-gather|all-to-all|collective-permute|reduce-scatter"
    assert not re.search(moved, forward.as_text())
    reduced = re.findall(r"= (.*) all-reduce\(", forward.as_text())
    assert set(re.findall(r"\w+\[[\d,]*\]", " ".join(reduced))) <= {"pred[]"}


@pytest.mark.slow(minutes=0.1)
@every_core
def test_eight_devices_exchange_gradients_only(rngs, core):
    texts = pairs(rngs, 16, 37)
    params, run = random_params(core, next(rngs), texts), model(core)
    loss = lambda params, *texts: (run(params, *texts) ** 2).sum()
    backward, _ = on_mesh(jax.grad(loss), params, texts, 8)
    moved = "all-gather|all-to-all|collective-permute|reduce-scatter"
    assert not re.search(moved, backward.as_text())
    assert "all-reduce" in backward.as_text()
