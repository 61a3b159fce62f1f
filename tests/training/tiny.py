"""A dense layer on synthetic data: the smallest run that has everything. Also a script: see main."""

import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.training import (
    CheckpointConfig,
    EvalConfig,
    Examples,
    FitConfig,
    HostsConfig,
    Interrupted,
    LogConfig,
    MeshConfig,
    OptimizerConfig,
    ProcessLost,
    TrainConfig,
    TrainSpec,
    Workdir,
    detect_lost_process,
    fit,
    initialize,
    load_params,
    make_mesh,
    weighted,
)

FEATURES, CLASSES = 5, 3


def examples(count, seed=0, seconds=0.0, on_batch=lambda indices: None):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(count, FEATURES)).astype(np.float32)
    rule = np.random.default_rng(99).normal(size=(FEATURES, CLASSES))
    labels = (inputs @ rule).argmax(-1).astype(np.int32)

    def make_batch(indices):
        on_batch(indices)
        time.sleep(seconds)
        return {"inputs": inputs[indices], "labels": labels[indices]}

    return Examples(count, make_batch)


def one_device():
    return make_mesh(MeshConfig(), jax.devices()[:1])


def make_params():
    return {"kernel": 0.1 * jax.random.normal(jax.random.key(1), (FEATURES, CLASSES))}


def loss_fn(params, batch, dropout_rng):
    inputs = batch["inputs"]
    if dropout_rng is not None:
        inputs = inputs * jax.random.bernoulli(dropout_rng, 0.9, inputs.shape)
    log_probabilities = jax.nn.log_softmax(inputs @ params["kernel"])
    losses = -jnp.take_along_axis(log_probabilities, batch["labels"][:, None], axis=1)[:, 0]
    hits = log_probabilities.argmax(-1) == batch["labels"]
    loss = weighted(losses, batch["weights"])
    return loss[0], {"loss": loss, "accuracy": weighted(hits, batch["weights"])}


def config(total_steps=30, batch_size=8, **sections):
    return FitConfig(
        train=TrainConfig(total_steps=total_steps, batch_size=batch_size, seed=3),
        optimizer=OptimizerConfig(learning_rate=0.05, warmup_steps=4, clip_norm=1.0),
        eval=sections.get("eval", EvalConfig(every_steps=10)),
        checkpoint=sections.get("checkpoint", CheckpointConfig(every_steps=10)),
        log=sections.get("log", LogConfig(every_steps=5, events=sections.get("events", False))),
    )


SAVES_OFTEN = config(checkpoint=CheckpointConfig(every_steps=5))


def make_spec(training, settings=None, *, loss=loss_fn, mesh=None, **options):
    """Returns the `TrainSpec` of a run on the examples `training`."""
    example = training.fetch(np.zeros(1, np.int64))
    return TrainSpec(
        config=settings or config(),
        mesh=mesh or one_device(),
        make_params=make_params,
        loss_fn=loss,
        row={name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in example.items()},
        **options,
    )


def train(
    folder,
    settings=None,
    *,
    seconds=0.0,
    training=None,
    validation=None,
    start_params=None,
    **options,
):
    """One call of the command: opens the folder, trains, returns fit's result."""
    training = training or examples(101, seconds=seconds)
    spec = make_spec(training, settings, **options)
    with Workdir(Path(folder), {"train": {"seed": 3}}) as workdir:
        return fit(
            workdir,
            spec,
            training=training,
            validation=validation or examples(37, seed=1),
            start_params=start_params,
        )


def last_params(workdir, step):
    folder = Path(workdir) / "checkpoints"
    return np.asarray(load_params(folder, step, make_params, one_device())["kernel"])


def lines_of(workdir, name="metrics.jsonl"):
    return [json.loads(line) for line in (workdir / name).read_text().splitlines()]


def assert_same_run(one, other, step=30):
    """Requires the same bits in the lines of metrics and in the parameters of a step."""
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    np.testing.assert_array_equal(last_params(one, step), last_params(other, step))


# tiny.py WORKDIR SECONDS_PER_STEP [--coordinator=… and the other flags of one process of several]
if __name__ == "__main__":
    folder, seconds, *flags = sys.argv[1:]
    values = dict(flag.removeprefix("--").split("=") for flag in flags)
    numbers = {name: int(value) for name, value in values.items() if name != "coordinator"}
    initialize(HostsConfig(coordinator=values.get("coordinator", ""), **numbers))
    devices = jax.devices() if flags else jax.devices()[:1]
    try:
        with detect_lost_process():
            mesh = make_mesh(MeshConfig(), devices)
            train(folder, config(events=True), seconds=float(seconds), mesh=mesh)
    except Interrupted as interrupted:
        print(interrupted)
        sys.exit(interrupted.exit_code)
    except ProcessLost as lost:
        print(lost, flush=True)
        os._exit(1)
