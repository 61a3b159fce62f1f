"""Every task from its files or generator to the result of a short training."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra import data, train
from nystromformer_jax import training
from nystromformer_jax.training import Workdir
from tests.lra.data import fakes
from tests.lra.small import NYSTROM, random_params, small_config


def small(task, argument=NYSTROM, **values):
    """A small config; `values` belong to its `data` section."""
    return small_config(task, argument, **{f"data__{key}": value for key, value in values.items()})


def run(config, folder):
    prepared = train.prepare(config, jax.devices()[:1])
    with Workdir(folder, config) as workdir:
        return train.train(prepared, data.load(prepared.data), workdir)


@pytest.mark.slow_except("softmax")
@pytest.mark.parametrize("argument", [NYSTROM, "softmax"])
def test_trains_on_pairs_and_evaluates_all(tmp_path, argument, caplog):
    fakes.write_folder(tmp_path / "tsv_data", fakes.files("retrieval"))
    config = small("retrieval", argument, dir=str(tmp_path), max_len=60, padded_len=64)
    with caplog.at_level(logging.WARNING):
        result = run(config, tmp_path / "run")
    assert "97 / 13 / 11 examples here" in caplog.text  # an incomplete release
    assert (result["task"], result["test_examples"], result["partial"]) == ("retrieval", 11, True)
    assert 0 <= result["test_accuracy"] <= 1


@pytest.mark.slow(minutes=0.1)
def test_trains_and_evaluates_labeled_tokens(tmp_path):
    config = small("mqar", "softmax,pairs=4,length=128", examples=24)
    result = run(config, tmp_path / "run")
    assert (result["task"], result["test_examples"]) == ("mqar-128-4", 24)
    assert (96 * result["test_accuracy"]) % 1 == pytest.approx(0, abs=1e-4)  # of 4 answers each
    assert result["baselines"].keys() == {"constant answer", "most frequent value"}


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize(
    ("name", "argument"),
    [
        *((name, NYSTROM) for name in ("listops", "text", "image", "pathfinder", "pathx")),
        ("retrieval", NYSTROM),
        ("retrieval", "softmax"),
        ("retrieval", "reformer,chunk_len=8"),
        ("retrieval", "linformer,projection_size=8"),
        ("retrieval", "performer,num_features=8"),
        ("retrieval", "longformer,window=9"),
        ("retrieval", "linear"),
        ("retrieval", "none,conv_kernel_size=3,conv_groups=channel"),
        ("retrieval", "softmax,quirks=google"),
    ],
)
def test_every_task_and_every_attention_train_all_parameters(name, argument):
    config = small(name, argument, max_len=37, padded_len=0)
    config["model"]["max_len"] = 37
    run = train.prepare(config)
    random = np.random.default_rng(0)
    batch = {"labels": random.integers(0, run.model.num_classes, 8, np.int32)}
    for key in run.model.batch_keys:
        lengths = random.integers(19, 38, 8)
        tokens = random.integers(1, data.describe(run.data.task).vocab_size, (8, 37), np.int32)
        batch[key] = np.arange(37) < lengths[:, None] if key.startswith("mask") else tokens
    batch["weights"] = np.ones(8, np.float32)
    mesh = training.make_mesh(training.MeshConfig(), jax.devices()[:1])
    optimizer = training.make_optimizer(run.fit.optimizer, total_steps=5)
    step = training.make_train_step(train.make_loss(run.model), optimizer, mesh, seed=0)

    before = random_params(run, scale=0.1)
    params = jax.tree.map(jnp.array, before)
    state = training.TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
    totals = {name: (jnp.float32(0), jnp.float32(0)) for name in ("loss", "accuracy", "grad_norm")}
    for _ in range(5):
        state, totals, loss = step(state, totals, batch)
    assert np.isfinite(loss)
    assert state.step == 5
    moved = jax.tree.map(lambda one, other: np.any(one != other), before, state.params)
    dead = [jax.tree_util.keystr(path) for path, did in jax.tree.leaves_with_path(moved) if not did]
    # The bias of the keys does not change softmax attention, so it may have no gradient.
    assert [path for path in dead if "['key']['bias']" not in path] == []
