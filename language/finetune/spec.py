"""The `TrainSpec` of fine-tuning: loss, outputs and their metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from language.finetune.run import FineTuning, make_params
from language.heads import Head
from language.tasks.examples import Split
from language.tasks.task import Outputs, Task
from nystromformer_jax import training
from nystromformer_jax.typing import Array


def make_spec(run: FineTuning, examples: int, valid: Split | None = None) -> training.TrainSpec:
    """Returns the `TrainSpec` of a run with `examples` training examples.

    Training needs the validation split `valid`; a plan or an export does not.
    """
    tokens = jax.ShapeDtypeStruct((run.data.max_len,), jnp.int32)

    def summarize(batches: list[Any]) -> dict[str, float]:
        assert valid is not None
        outputs = collate(batches)
        task = tuned(run, valid, outputs)
        scores, _ = task.score(valid, task.predict(valid, outputs))
        return {**scores, "loss": mean_loss(batches)}

    return training.TrainSpec(
        config=run.fit_config(examples),
        mesh=run.mesh,
        make_params=make_params(run),
        loss_fn=make_loss(run.model, run.head),
        row={
            "inputs": tokens,
            "mask": jax.ShapeDtypeStruct(tokens.shape, bool),
            "types": tokens,
            "labels": run.head.label(run.data.max_len, run.task.num_labels),
            "rows": jax.ShapeDtypeStruct((), jnp.int32),
        },
        eval_step=make_outputs_step(run.model, run.head, run.mesh),
        summarize=summarize,
        select=run.task.select_by,
    )


def make_loss(model: Any, head: Head) -> Any:
    """Returns the `LossFn`: the mean of the head's losses over all labels of a batch."""

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        losses = head.losses(
            _apply(model, params, batch, dropout_rng), batch["labels"], batch["mask"]
        )
        weights = batch["weights"]
        loss, _ = training.weighted(losses.loss, weights)
        count, _ = training.weighted(losses.num_labels, weights)
        sums = {"loss": (loss, count)}
        if losses.num_correct is not None:
            sums["accuracy"] = (training.weighted(losses.num_correct, weights)[0], count)
        return loss, sums

    return loss_fn


def make_outputs_step(model: Any, head: Head, mesh: Mesh) -> training.EvalStep:
    """Returns a compiled step `(params, batch) -> outputs`, for `collate`."""

    def outputs_step(params: Any, batch: dict[str, Any]) -> dict[str, Any]:
        logits = _apply(model, params, batch, None)
        losses = head.losses(logits, batch["labels"], batch["mask"])
        return {
            "outputs": head.outputs(logits),
            "loss": losses.loss,
            "count": losses.num_labels,
            "rows": batch["rows"],
            "weights": batch["weights"],
        }

    return jax.jit(training.on_mesh(outputs_step, mesh), out_shardings=training.replicated(mesh))


def collate(batches: Sequence[Mapping[str, Any]]) -> Outputs:
    """Returns the outputs of all real rows in the order of the split; those of shorter batches are padded.

    A batch has "outputs", "rows" (their indices in the split) and "weights" (0 at rows that fill it up).
    """
    weights, rows = (
        np.concatenate([batch[name] for batch in batches]) for name in ("weights", "rows")
    )
    real = np.flatnonzero(weights > 0)
    order = real[np.argsort(rows[real], kind="stable")]
    outputs = {}
    for name in batches[0]["outputs"]:
        parts = [np.asarray(batch["outputs"][name]) for batch in batches]
        width = max(part.shape[1] for part in parts)
        padded = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        outputs[name] = np.concatenate(padded)[order]
    return outputs


def mean_loss(batches: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean loss over the labels of all real rows."""
    weights, losses, counts = (
        np.concatenate([batch[name] for batch in batches]) for name in ("weights", "loss", "count")
    )
    real = weights > 0
    return float(losses[real].sum(dtype=np.float64) / counts[real].sum(dtype=np.float64))


def _apply(model: Any, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None) -> Any:
    inputs = (batch["inputs"], batch["mask"], batch["types"])
    return training.apply_model(model, params, dropout_rng, *inputs)


def tuned(run: FineTuning, valid: Split, outputs: Outputs) -> Task:
    """Returns the task, with a tuned threshold if the config asks for it."""
    return run.task.tuned(valid, outputs) if run.sections["eval"].tune_threshold else run.task
