"""A run's folder as training leaves it, with two checkpoints and nothing trained."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np

from lra import data, train
from nystromformer_jax.training import TrainState, Workdir
from nystromformer_jax.training.checkpoint import Checkpointer, Record

BEST, LATEST = 2, 5  # steps


def small_config(argument="nystrom,num_landmarks=7,conv_kernel_size=3", **changes):
    """ListOps on 12 trees cut to 53 tokens and padded to 59; `changes` are {"section__key": value}."""
    config = importlib.import_module("configs.listops").get_config(argument)
    config.data.update(examples=12, max_len=53, padded_len=59, workers=1)
    config.model.update(max_len=59, num_layers=1, embed_dim=12, head_dim=5, mlp_dim=8)
    config.train.update(total_steps=8, batch_size=8)
    config.optimizer.update(warmup_steps=2)
    plain = config.to_dict()
    for key, value in changes.items():
        section, _, name = key.partition("__")
        plain[section][name] = value
    return plain


def params_at(run, step):
    """Random parameters that differ by step, from NumPy: initialization is not compiled."""
    random = np.random.default_rng(step)

    def draw(leaf):
        return jnp.asarray(random.normal(scale=0.5, size=leaf.shape).astype(leaf.dtype))

    return jax.tree.map(draw, jax.eval_shape(train.make_params(run)))


def write_run(folder, config, *, finished=True, bind_data=False):
    """Writes checkpoints of the best step and a later one, and a result if `finished`."""
    run = train.prepare(config)
    with Workdir(folder, config, paths=train.PATHS) as workdir:
        if bind_data:
            workdir.require_data(data.load(run.data).sha256)
        with Checkpointer(workdir.checkpoints) as checkpointer:
            for step in (BEST, LATEST):
                state = TrainState(jnp.int32(step), params_at(run, step), jnp.zeros(1))
                totals = {"loss": (jnp.zeros(()), jnp.zeros(()))}
                checkpointer.save(step, state, totals, Record(best_step=BEST))
        if finished:
            workdir.write_result({"best_step": BEST})
    return folder
