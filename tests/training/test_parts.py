"""Short batches have fewer accumulation parts."""

import jax
import jax.numpy as jnp
import optax

from nystromformer_jax.training import MeshConfig, make_mesh
from nystromformer_jax.training.train_step import TrainState, make_train_step
from tests.helpers import SAME_ARITHMETIC, assert_close


def test_short_batches_have_fewer_parts_and_the_same_update():
    sizes = []

    def loss_fn(params, batch, dropout_rng):
        sizes.append(batch["inputs"].shape)
        loss = jnp.square(batch["inputs"] @ params[: batch["inputs"].shape[1]]).sum()
        return loss, {"loss": (loss, batch["weights"].sum())}

    mesh, optimizer = make_mesh(MeshConfig(), jax.devices()[:1]), optax.sgd(0.1)
    params = jnp.arange(1.0, 33.0)
    found = {}
    for length, full_length in ((32, 32), (16, 32), (3, 32), (16, 0)):
        sizes.clear()
        step = make_train_step(
            loss_fn, optimizer, mesh, seed=0, accumulation=4, full_length=full_length
        )
        batch = {"inputs": jnp.ones((8, length)) / 32, "weights": jnp.ones(8)}
        state = TrainState(jnp.int32(0), params.copy(), optimizer.init(params))
        sums = {name: (jnp.zeros(()), jnp.zeros(())) for name in ("loss", "grad_norm")}
        found[length, full_length] = step(state, sums, batch)[0].params
        rows = {32: 2, 16: 4, 3: 8}[length] if full_length else 2
        assert {shape[0] for shape in sizes} == {rows}
    assert_close(found[16, 32], found[16, 0], SAME_ARITHMETIC)
