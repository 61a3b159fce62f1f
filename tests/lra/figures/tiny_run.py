"""A run's folder as training leaves it, with two checkpoints and nothing trained."""

import jax
import jax.numpy as jnp

from lra import data, train
from nystromformer_jax.training import TrainState, Workdir
from nystromformer_jax.training.checkpoint import Checkpointer, Record
from tests.lra import small

BEST, LATEST = 2, 5  # steps


def small_config(argument="nystrom,num_landmarks=7,conv_kernel_size=3", **changes):
    """ListOps on 12 trees cut to 53 tokens and padded to 59."""
    sizes = {"data__examples": 12, "data__max_len": 53, "data__padded_len": 59, "data__workers": 1}
    sizes |= {"model__max_len": 59, "model__embed_dim": 12, "model__head_dim": 5}
    return small.small_config("listops", argument, **sizes | {"train__total_steps": 8} | changes)


def params_at(run, step):
    """Random parameters that differ by step."""
    return jax.tree.map(jnp.asarray, small.random_params(run, step))


def write_run(folder, config, *, finished=True, bind_data=False):
    """Writes checkpoints of the best step and a later one, and a result if `finished`."""
    run = train.prepare(config)
    with Workdir(folder, config) as workdir:
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
