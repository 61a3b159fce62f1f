"""A network learns the labels of generated images and generalizes to new images."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lra.data.pathfinder_generator import generate

pytestmark = pytest.mark.slow(minutes=1)


class ConvNet(nn.Module):
    """Six residual convolutions at half of the resolution, then the maximum and the mean."""

    features: int = 32

    @nn.compact
    def __call__(self, images):
        x = (images[..., None].astype(jnp.float32) - 20) / 50
        x = nn.relu(nn.Conv(16, (3, 3))(x))
        x = nn.Conv(self.features, (4, 4), strides=2)(x)
        for _ in range(6):
            x = x + nn.Conv(self.features, (3, 3))(nn.relu(nn.GroupNorm(8)(x)))
        x = nn.relu(nn.GroupNorm(8)(x))
        x = jnp.concatenate([x.max((1, 2)), x.mean((1, 2))], axis=-1)
        return nn.Dense(2)(nn.relu(nn.Dense(64)(x)))


@pytest.fixture(autouse=True)
def optimised():
    """Enables compiler optimizations, because training takes minutes."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def trained(drawn, num_epochs, batch_size=32, learning_rate=2e-3):
    """Returns the parameters after `epochs` passes over the images, shuffled for each."""
    num_steps = num_epochs * (len(drawn.labels) // batch_size)
    schedule = optax.warmup_cosine_decay_schedule(0, learning_rate, num_steps // 20, num_steps)
    optimizer = optax.chain(optax.clip_by_global_norm(1), optax.adamw(schedule))
    params = ConvNet().init(jax.random.key(0), drawn.images[:1])
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, images, labels):
        def loss(params):
            logits = ConvNet().apply(params, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    order = np.random.default_rng(0)
    for _ in range(num_epochs):
        rows = order.permutation(len(drawn.labels))
        for start in range(0, len(rows) - batch_size + 1, batch_size):
            batch = rows[start : start + batch_size]
            params, state = step(params, state, drawn.images[batch], drawn.labels[batch])
    return params


def accuracy(params, drawn):
    predict = jax.jit(lambda images: ConvNet().apply(params, images).argmax(-1))
    pieces = np.split(drawn.images, range(256, len(drawn.labels), 256))
    return (np.concatenate([predict(piece) for piece in pieces]) == drawn.labels).mean()


def test_a_network_learns_from_easy_images():
    """One pass over 80,000 easy images; the accuracy hardly changes in the first 30,000."""
    drawn = generate(32, "easy", seed=0, start=0, stop=80_000)
    unseen = generate(32, "easy", seed=1, start=0, stop=2_000)
    reached = accuracy(trained(drawn, num_epochs=1), unseen)
    assert reached > 0.6, reached
