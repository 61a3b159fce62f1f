"""The two compiled functions of a run: one update, and the sums of one evaluation batch."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import chex
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nystromformer_jax.training import metrics
from nystromformer_jax.training.mesh import batch_sharding, place, replicated
from nystromformer_jax.training.metrics import Sums
from nystromformer_jax.training.pipeline import Batch
from nystromformer_jax.typing import Array

__all__ = ["LossFn", "TrainState", "evaluate", "make_eval_step", "make_train_step"]

# (params, batch, dropout_rng) -> (the batch's summed loss, sums); sums["loss"] holds the denominator.
# A dropout_rng of None means: evaluate, drop nothing.
LossFn = Callable[[Any, dict[str, Any], Array | None], tuple[Array, Sums]]
# (params, batch) -> sums, or whatever a trainer's own `summarize` takes; whole on every device.
EvalStep = Callable[[Any, dict[str, Any]], Any]


@flax.struct.dataclass
class TrainState:
    """Everything an update reads and writes, or its shapes. `step` counts finished updates."""

    step: Any
    params: Any
    opt_state: Any


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    seed: int,
    accumulation: int = 1,
) -> Callable[[TrainState, Sums, dict[str, Any]], tuple[TrainState, Sums, Array]]:
    """Compiles `(state, totals, batch) -> (state, totals + this batch's sums, mean loss)`.

    state and totals are donated. The gradient is that of the summed loss over the denominator of
    the whole batch, so `accumulation` parts give the update of the undivided batch. The sums gain
    `grad_norm`, the global norm before clipping.
    """

    def train_step(
        state: TrainState, totals: Sums, batch: dict[str, Any]
    ) -> tuple[TrainState, Sums, Array]:
        dropout_rng = jax.random.fold_in(jax.random.key(seed), state.step)
        if accumulation == 1:
            gradient_sum, sums = _gradient(loss_fn, state.params, batch, dropout_rng)
        else:
            parts = _split(batch, accumulation, mesh)
            gradient_sum, sums = _accumulate(loss_fn, state.params, parts, dropout_rng)
        loss_sum, count = sums["loss"]
        gradient = jax.tree.map(lambda leaf: leaf / count, gradient_sum)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        sums = {**sums, "grad_norm": (optax.tree.norm(gradient), jnp.float32(1))}
        new_state = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
        return new_state, metrics.add(totals, sums), loss_sum / count

    whole = replicated(mesh)
    return jax.jit(
        train_step,
        donate_argnums=(0, 1),
        in_shardings=(whole, whole, batch_sharding(mesh)),
        out_shardings=(whole, whole, whole),
    )


def make_eval_step(loss_fn: LossFn, mesh: Mesh) -> EvalStep:
    """Compiles `(params, batch) -> sums` without dropout."""

    def eval_step(params: Any, batch: dict[str, Any]) -> Sums:
        return loss_fn(params, batch, None)[1]

    whole = replicated(mesh)
    return jax.jit(eval_step, in_shardings=(whole, batch_sharding(mesh)), out_shardings=whole)


def evaluate(
    eval_step: EvalStep,
    params: Any,
    batches: Iterable[Batch],
    mesh: Mesh,
    summarize: Callable[[list[Any]], Any] = metrics.total_means,
) -> Any:
    """Scores `batches`; what `eval_step` gives stays on the device until the end.

    Args:
        eval_step: From `make_eval_step`, or one of a trainer's own.
        params: The parameters.
        batches: From `evaluation_batches`.
        mesh: From `make_mesh`.
        summarize: Makes the metrics of all that `eval_step` gave, batch by batch; by default these
            are sums, which are added up exactly.
    """
    kept: list[Any] = []
    for batch in batches:
        output = eval_step(params, place(batch, mesh))
        if kept:  # at most two batches in flight: on a CPU more can starve a collective of threads
            jax.block_until_ready(kept[-1])
        kept.append(output)
    return summarize(jax.device_get(kept))


def _gradient(
    loss_fn: LossFn, params: Any, batch: dict[str, Any], dropout_rng: Array
) -> tuple[Any, Sums]:
    """The gradient of the summed loss, and the sums."""
    gradient, sums = jax.grad(loss_fn, has_aux=True)(params, batch, dropout_rng)
    for pair in sums.values():
        chex.assert_shape(pair, ())
    return gradient, sums


def _accumulate(
    loss_fn: LossFn, params: Any, parts: dict[str, Any], dropout_rng: Array
) -> tuple[Any, Sums]:
    """Adds `_gradient` over the leading axis of `parts`, one part in memory at a time."""

    def add_part(total: tuple[Any, Sums], numbered: tuple[Array, Any]) -> tuple[Any, None]:
        number, part = numbered
        part_rng = jax.random.fold_in(dropout_rng, number)
        return jax.tree.map(jnp.add, total, _gradient(loss_fn, params, part, part_rng)), None

    first = jax.tree.map(lambda rows: rows[0], parts)
    shapes = jax.eval_shape(functools.partial(_gradient, loss_fn), params, first, dropout_rng)
    zeros = metrics.zeros_like(shapes)
    numbers = jnp.arange(len(next(iter(parts.values()))))
    return jax.lax.scan(add_part, zeros, (numbers, parts))[0]


def _split(batch: dict[str, Any], parts: int, mesh: Mesh) -> dict[str, Any]:
    """[B …] to [parts, B / parts …], each device's rows staying on their device."""
    shards = mesh.shape["data"]
    sharding = NamedSharding(mesh, PartitionSpec(None, "data"))

    def split(rows: Array) -> Array:
        by_device = rows.reshape(shards, parts, -1, *rows.shape[1:])
        by_part = by_device.swapaxes(0, 1).reshape(parts, -1, *rows.shape[1:])
        return jax.lax.with_sharding_constraint(by_part, sharding)

    return jax.tree.map(split, batch)
