"""Times a config's training step (real batch, masks, dropout), compared with Hugging Face's modules."""

from typing import Any

import jax
import numpy as np

from benchmarks.timing import in_blocks
from lra import data, train
from nystromformer_jax import training


def run(config: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Returns the times of both implementations on the same batch."""
    from benchmarks import peers  # needs torch, unlike `our_step`

    run = train.prepare(config)
    task = data.load(run.data)
    batch = task.splits["train"].batch(np.arange(run.fit.train.batch_size), run.data.padding)
    attention = config["attention"]
    theirs = peers.Classifier(
        run.model.config,
        run.model.num_classes,
        attention["num_landmarks"],
        attention["conv_kernel_size"],
    )
    cases = {
        "ours": our_step(run, batch),
        "Hugging Face": peers.training_step(theirs, batch),
    }
    times = in_blocks(cases, rounds=rounds, budget_seconds=300.0)
    row = {
        "task": config["data"]["task"],
        "batch_size": run.fit.train.batch_size,
        "length": run.data.max_len,
        "step": times,
    }
    ours = times["ours"]["median"]
    ratio = times["Hugging Face"]["median"] / ours
    print(f"training step, {row['task']}: {ours:.3f} s (Hugging Face {ratio:.2f}×)", flush=True)
    return row


def our_step(run: train.Run, batch: dict[str, np.ndarray]) -> Any:
    """Returns a function without arguments that makes one update on a fixed batch."""
    spec = train.make_spec(run)
    step = spec.make_train_step()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, spec.argument_shapes()[:2])
    # Without the shardings, the second call of the step would compile again.
    state, totals = jax.jit(spec.init_state, out_shardings=shardings)()
    placed = training.shard_batch(
        {**batch, "weights": np.ones(len(batch["labels"]), np.float32)}, run.mesh
    )

    def one() -> jax.Array:
        nonlocal state, totals
        state, totals, loss = step(state, totals, placed)
        return loss

    return one
