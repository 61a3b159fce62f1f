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
CORES = {
    "nystrom": make_core("nystrom", num_landmarks=5, conv_kernel_size=3),
    "softmax": make_core("softmax"),
}
every_core = pytest.mark.parametrize("core", CORES)

FORWARD = {
    name: jax.jit(
        functools.partial(DualEncoder(SIZES, core, num_classes=3).apply, deterministic=True)
    )
    for name, core in CORES.items()
}
ENCODE = {
    name: jax.jit(functools.partial(SequenceEncoder(SIZES, core).apply, deterministic=True))
    for name, core in CORES.items()
}


def pairs(rngs, batch, length):
    """inputs1, mask1, inputs2 and mask2; every text is of another length."""
    texts = []
    for start in (0, batch):
        lengths = [length - i for i in range(start, start + batch)]
        inputs = jax.random.randint(next(rngs), (batch, length), 1, SIZES.vocab_size)
        texts += [inputs, mask_of_lengths(lengths, length)]
    return tuple(texts)


def random_params(core, rng, texts):
    """Random weights so large that texts have clearly different logits."""
    return random_variables(rng, DualEncoder(SIZES, CORES[core], 3), *texts)


def head(params, features):
    """Returns the logits of features, computed without flax."""
    params = params["params"]
    hidden = features @ params["head_hidden"]["kernel"] + params["head_hidden"]["bias"][None]
    hidden = jnp.maximum(hidden, 0)
    return hidden @ params["head_output"]["kernel"] + params["head_output"]["bias"][None]


def encode(core, params, inputs, mask):
    return ENCODE[core]({"params": params["params"]["sequence_encoder"]}, inputs, mask)


@pytest.mark.slow_except("softmax")
@every_core
def test_logits_equal_the_head_of_two_encoder_outputs(rngs, core):
    texts = pairs(rngs, 5, 23)
    params, run = random_params(core, next(rngs), texts), FORWARD[core]
    x, y = encode(core, params, *texts[:2]), encode(core, params, *texts[2:])
    expected = head(params, jnp.concatenate([x, y, x * y, x - y], axis=-1))
    assert_close(run(params, *texts), expected, REFERENCE)
    assert float(jnp.abs(x - y).max()) > 0.1


@pytest.mark.slow_except("softmax")
@every_core
def test_a_batch_of_five_pairs_equals_five_batches_of_one(rngs, core):
    texts = pairs(rngs, 5, 23)
    params, run = random_params(core, next(rngs), texts), FORWARD[core]
    alone = [run(params, *(text[i : i + 1] for text in texts)) for i in range(5)]
    assert_close(run(params, *texts), jnp.concatenate(alone), REFERENCE)


@pytest.mark.slow(minutes=0.3)
@every_core
def test_gradients_are_finite_and_flow_through_both_texts(rngs, core):
    """The tokens 1 to 5 are only in the first texts, 6 to 10 only in the second."""
    length = 23
    inputs1, inputs2 = (jnp.arange(2 * length).reshape(2, length) % 5 + first for first in (1, 6))
    masks = mask_of_lengths([length, 9], length), mask_of_lengths([0, length], length)  # one empty
    texts = inputs1, masks[0], inputs2, masks[1]
    params, run = random_params(core, next(rngs), texts), FORWARD[core]

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
    placed = shard_batch(
        dict(zip(DualEncoder.batch_keys, map(np.asarray, texts), strict=True)), mesh
    )
    arguments = jax.device_put(params, replicated(mesh)), *placed.values()
    return jax.jit(run).lower(*arguments).compile(), arguments


@pytest.mark.slow_except("softmax")
@every_core
def test_eight_devices_equal_one(rngs, core):
    texts = pairs(rngs, 16, 37)
    params, run = random_params(core, next(rngs), texts), FORWARD[core]
    logits = {}
    for devices in (1, 8):
        forward, arguments = on_mesh(run, params, texts, devices)
        logits[devices] = forward(*arguments)
    assert len(logits[8].sharding.device_set) == 8
    assert_close(logits[8], logits[1], REFERENCE)


@pytest.mark.slow(minutes=0.1)
@every_core
def test_devices_do_not_exchange_activations(rngs, core):
    """Forward they exchange one bit per layer, whether any text is short; backward they sum gradients."""
    texts = pairs(rngs, 16, 37)
    params, run = random_params(core, next(rngs), texts), FORWARD[core]
    forward, _ = on_mesh(run, params, texts, 8)
    moved = "all-gather|all-to-all|collective-permute|reduce-scatter"
    assert not re.search(moved, forward.as_text())
    reduced = re.findall(r"= (.*) all-reduce\(", forward.as_text())
    assert set(re.findall(r"\w+\[[\d,]*\]", " ".join(reduced))) <= {"pred[]"}

    def loss(params, *texts):
        return (run(params, *texts) ** 2).sum()

    backward, _ = on_mesh(jax.grad(loss), params, texts, 8)
    assert not re.search(moved, backward.as_text())
    assert "all-reduce" in backward.as_text()


@pytest.mark.slow(minutes=0.4)
def test_concatenation_has_another_layer(rngs):
    sizes = dataclasses.replace(SIZES, pair_features="concatenation", pooling="first")
    model = DualEncoder(sizes, CORES["softmax"], num_classes=3)
    texts = pairs(rngs, 2, 17)
    variables = model.init(next(rngs), *texts, deterministic=True)
    params = variables["params"]
    assert {name: params[name]["kernel"].shape for name in params if name.startswith("head")} == {
        "head_pair": (24, 7),
        "head_hidden": (7, 3),
        "head_output": (3, 3),
    }
    encoder = SequenceEncoder(sizes, CORES["softmax"])
    inputs1, mask1, inputs2, mask2 = texts
    x, y = (
        encoder.apply({"params": params["sequence_encoder"]}, inputs, mask, deterministic=True)
        for inputs, mask in ((inputs1, mask1), (inputs2, mask2))
    )
    features = jnp.concatenate([x, y], axis=-1) @ params["head_pair"]["kernel"]
    features = jnp.maximum(features + params["head_pair"]["bias"][None], 0)
    actual = model.apply(variables, *texts, deterministic=True)
    assert_close(actual, head(variables, features), REFERENCE)
