"""Small configs of the benchmark, and random parameters."""

import importlib

import jax
import numpy as np

from lra import train

NYSTROM = "nystrom,num_landmarks=4,conv_kernel_size=3"
SMALL = {
    "model": {"num_layers": 1, "embed_dim": 8, "head_dim": 4, "mlp_dim": 8},
    "optimizer": {"warmup_steps": 2},
    "train": {"total_steps": 3, "batch_size": 8, "accumulation": 1},
    "eval": {"every_steps": 3},
    "log": {"every_steps": 1, "events": False},
    "checkpoint": {"every_steps": 3},
}


def small_config(task="listops", argument=NYSTROM, **changes):
    """A config of `configs/` with one small layer, for three steps; `changes` are {"section__key": value}."""
    config = importlib.import_module(f"configs.{task}").get_config(argument).to_dict()
    for section, values in SMALL.items():
        config[section] |= values
    for name, value in changes.items():
        section, _, key = name.partition("__")
        config[section][key] = value
    return config


def random_params(run, seed=0, scale=0.5):
    """Random parameters of a run, from NumPy: initialization is not compiled."""
    random = np.random.default_rng(seed)
    draw = lambda leaf: random.normal(0, scale, leaf.shape).astype(leaf.dtype)
    return jax.tree.map(draw, jax.eval_shape(train.make_params(run)))
