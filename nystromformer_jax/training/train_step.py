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
from nystromformer_jax.training.mesh import (
    batch_sharding,
    on_mesh,
    place,
    replicated,
    state_sharding,
)
from nystromformer_jax.training.metrics import Sums
from nystromformer_jax.training.pipeline import Batch
from nystromformer_jax.typing import Array

__all__ = [
    "LossFn",
    "TrainState",
    "apply_model",
    "evaluate",
    "make_eval_step",
    "make_train_step",
    "step_shapes",
    "totals_shape",
]

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


def apply_model(model: Any, params: Any, dropout_rng: Array | None, *inputs: Any) -> Any:
    """What a linen model makes of its inputs, in a `LossFn`."""
    rngs = None if dropout_rng is None else {"dropout": dropout_rng}
    return model.apply({"params": params}, *inputs, deterministic=dropout_rng is None, rngs=rngs)


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    seed: int,
    accumulation: int = 1,
    shard_params: bool = False,
) -> Callable[[TrainState, Sums, dict[str, Any]], tuple[TrainState, Sums, Array]]:
    """Compiles `(state, totals, batch) -> (state, totals + this batch's sums, mean loss)`.

    state and totals are donated. The gradient is that of the summed loss over the denominator of
    the whole batch, so `accumulation` parts give the update of the undivided batch. The sums gain
    `grad_norm`, the global norm before clipping.

    With `shard_params` the state lies as `state_sharding` says: parameters are gathered for the loss,
    each device gets its own part of the gradient, and updates that alone.
    """
    whole = replicated(mesh)

    def lay(tree: Any, *, shard: bool) -> Any:
        return jax.lax.with_sharding_constraint(tree, state_sharding(mesh, tree, shard=shard))

    def train_step(
        state: TrainState, totals: Sums, batch: dict[str, Any]
    ) -> tuple[TrainState, Sums, Array]:
        dropout_rng = jax.random.fold_in(jax.random.key(seed), state.step)
        params = lay(state.params, shard=False)
        if accumulation == 1:
            gradient_sum, sums = _gradient(loss_fn, params, batch, dropout_rng)
        else:
            parts = _split(batch, accumulation, mesh)
            gradient_sum, sums = _accumulate(loss_fn, params, parts, dropout_rng)
        gradient_sum = lay(gradient_sum, shard=shard_params)
        loss_sum, count = sums["loss"]
        gradient = jax.tree.map(lambda leaf: leaf / count, gradient_sum)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        sums = {**sums, "grad_norm": (optax.tree.norm(gradient), jnp.float32(1))}
        new_state = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
        new_totals = jax.lax.with_sharding_constraint(metrics.add(totals, sums), whole)
        return lay(new_state, shard=shard_params), new_totals, loss_sum / count

    return jax.jit(on_mesh(train_step, mesh), donate_argnums=(0, 1))


def totals_shape(loss_fn: LossFn, params: Any, batch: Any, mesh: Mesh) -> Sums:
    """The shape of what a train step adds up, found without running anything.

    Raises:
        ValueError: a loss that does not say what it divides by.
    """
    sums: Sums = jax.eval_shape(on_mesh(loss_fn, mesh), params, batch, jax.random.key(0))[1]
    if "loss" not in sums:
        raise ValueError(f"loss_fn's sums need a 'loss', got {', '.join(sorted(sums)) or 'none'}.")
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return {**sums, "grad_norm": (scalar, scalar)}


def step_shapes(
    mesh: Mesh, state: Any, totals: Any, batch: Any, *, shard_params: bool = False
) -> tuple[Any, Any, Any]:
    """The arguments of a train step as shapes that know their place, to compile it ahead of time.

    Args:
        mesh: From `make_mesh`, of devices that need not be there.
        state: A TrainState, or its `jax.eval_shape`; so the others.
        totals: The sums.
        batch: Of all hosts together.
        shard_params: As in `make_train_step`.
    """

    def placed(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return (
        jax.tree.map(placed, state, state_sharding(mesh, state, shard=shard_params)),
        jax.tree.map(lambda leaf: placed(leaf, replicated(mesh)), totals),
        jax.tree.map(lambda leaf: placed(leaf, batch_sharding(mesh, leaf.shape)), batch),
    )


def make_eval_step(loss_fn: LossFn, mesh: Mesh) -> EvalStep:
    """Compiles `(params, batch) -> sums` without dropout."""

    def eval_step(params: Any, batch: dict[str, Any]) -> Sums:
        return loss_fn(params, batch, None)[1]

    return jax.jit(on_mesh(eval_step, mesh), out_shardings=replicated(mesh))


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

    def split(rows: Array) -> Array:
        by_device = rows.reshape(shards, parts, -1, *rows.shape[1:])
        by_part = by_device.swapaxes(0, 1).reshape(parts, -1, *rows.shape[1:])
        own = batch_sharding(mesh, by_part.shape[1:]).spec
        sharding = NamedSharding(mesh, PartitionSpec(None, *own))
        return jax.lax.with_sharding_constraint(by_part, sharding)

    return jax.tree.map(split, batch)
