"""Training step, evaluation step, and metrics as pairs of sum and count."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import chex
import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nystromformer_jax.training.config import num_parts
from nystromformer_jax.training.mesh import (
    batch_sharding,
    on_mesh,
    replicated,
    shard_batch,
    state_sharding,
)
from nystromformer_jax.training.pipeline import Batch
from nystromformer_jax.typing import Array, Bool, Float, Int

# {"loss": (sum, count), …}: two float32 scalars per metric, to average over batches of different sizes.
Sums = dict[str, tuple[Any, Any]]
# (params, batch, dropout_rng) -> (loss summed over the batch, sums); sums["loss"] has the denominator.
# If dropout_rng is None, dropout is disabled (evaluation).
LossFn = Callable[[Any, dict[str, Any], Array | None], tuple[Array, Sums]]
# (params, batch) -> sums, or any input of `summarize`; replicated on every device.
EvalStep = Callable[[Any, dict[str, Any]], Any]


@flax.struct.dataclass
class TrainState:
    """Training state as arrays or shapes. `step` counts finished updates."""

    step: Any
    params: Any
    opt_state: Any


def weighted(
    values: Float[Array, " B"] | Int[Array, " B"] | Bool[Array, " B"], weights: Float[Array, " B"]
) -> tuple[Any, Any]:
    """Returns a metric of a batch: the sum of `values` over rows of weight 1, and the count of these rows."""
    total = jnp.where(weights > 0, values.astype(jnp.float32), 0).sum()  # where: 0 * NaN is NaN
    return total, weights.sum()


def zeros_like(sums: Any) -> Any:
    """Returns zeros shaped like `sums` (arrays or their `eval_shape`)."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)


def means(sums: Mapping[str, tuple[Any, Any]], prefix: str = "") -> dict[str, float]:
    """Returns each metric as sum / count; NaN if the count is zero. Waits for the device."""
    fetched = jax.device_get(dict(sums))
    return {
        prefix + name: float(total) / float(count) if count else math.nan
        for name, (total, count) in fetched.items()
    }


def total_means(batches: Sequence[Sums]) -> dict[str, float]:
    """Returns `means` over several batches; sums are added as Python floats."""
    return means(jax.tree.map(lambda *leaves: sum(map(float, leaves)), *batches))


def apply_model(model: Any, params: Any, dropout_rng: Array | None, *inputs: Any) -> Any:
    """Returns the output of a linen model, for use in a `LossFn`."""
    rngs = None if dropout_rng is None else {"dropout": dropout_rng}
    return model.apply({"params": params}, *inputs, deterministic=dropout_rng is None, rngs=rngs)


def make_train_step(
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    seed: int,
    accumulation: int = 1,
    full_length: int = 0,
    shard_params: bool = False,
) -> Callable[[TrainState, Sums, dict[str, Any]], tuple[TrainState, Sums, Array]]:
    """Returns a jitted step `(state, metric_sums, batch) -> (state, metric_sums, mean loss)`.

    `state` and `metric_sums` are donated. The metrics of the batch are added to `metric_sums`, with
    `grad_norm`, the global gradient norm before clipping. The summed loss is divided by the denominator of
    the full batch, so gradient accumulation gives the same update as one undivided batch.

    `num_parts` returns the number of parts, with a `full_length` that of batches whose "inputs" have this
    length. Shorter batches then have fewer and larger parts. These need no more memory, and they save time,
    because every part adds its gradient to a sum.

    With `shard_params` the state is sharded by `state_sharding`: parameters are gathered for the loss, and
    the gradient and the update are sharded.
    """

    def constrain(tree: Any, *, shard: bool) -> Any:
        return jax.lax.with_sharding_constraint(tree, state_sharding(mesh, tree, shard=shard))

    def train_step(
        state: TrainState, metric_sums: Sums, batch: dict[str, Any]
    ) -> tuple[TrainState, Sums, Array]:
        dropout_rng = jax.random.fold_in(jax.random.key(seed), state.step)
        params = constrain(state.params, shard=False)
        batch_size = len(next(iter(batch.values())))
        parts = num_parts(accumulation, batch_size, mesh.shape["data"])
        if full_length:
            least = parts * batch["inputs"].shape[1] / full_length
            parts = next(p for p in range(1, parts + 1) if parts % p == 0 and p >= least)
        if parts == 1:
            gradient_sum, sums = _gradient(loss_fn, params, batch, dropout_rng)
        else:
            split = _split(batch, parts, mesh)
            gradient_sum, sums = _accumulate(loss_fn, params, split, dropout_rng)
        gradient_sum = constrain(gradient_sum, shard=shard_params)
        loss_sum, count = sums["loss"]
        gradient = jax.tree.map(lambda leaf: leaf / count, gradient_sum)
        with jax.numpy_dtype_promotion("standard"):  # which optax needs
            updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        sums = {**sums, "grad_norm": (optax.tree.norm(gradient), jnp.float32(1))}
        new_state = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
        new_sums = jax.tree.map(jnp.add, metric_sums, sums)
        new_sums = jax.lax.with_sharding_constraint(new_sums, replicated(mesh))
        return constrain(new_state, shard=shard_params), new_sums, loss_sum / count

    return jax.jit(on_mesh(train_step, mesh), donate_argnums=(0, 1))


def metric_sums_shape(loss_fn: LossFn, params: Any, batch: Any, mesh: Mesh) -> Sums:
    """Returns the shapes of the metric sums of a training step, without computing them.

    Raises:
      ValueError: The sums of `loss_fn` have no key "loss".
    """
    sums: Sums = jax.eval_shape(on_mesh(loss_fn, mesh), params, batch, jax.random.key(0))[1]
    if "loss" not in sums:
        raise ValueError(f"loss_fn's sums need a 'loss', got {', '.join(sorted(sums)) or 'none'}.")
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    return {**sums, "grad_norm": (scalar, scalar)}


def make_eval_step(loss_fn: LossFn, mesh: Mesh) -> EvalStep:
    """Returns a jitted step `(params, batch) -> sums` without dropout."""

    def eval_step(params: Any, batch: dict[str, Any]) -> Sums:
        return loss_fn(params, batch, None)[1]

    return jax.jit(on_mesh(eval_step, mesh), out_shardings=replicated(mesh))


def evaluate(
    eval_step: EvalStep,
    params: Any,
    batches: Iterable[Batch],
    mesh: Mesh,
    summarize: Callable[[list[Any]], Any] = total_means,
) -> Any:
    """Evaluates `batches` and returns the metrics; outputs stay on the device until the end.

    `summarize` computes the metrics from the list of `eval_step` outputs, one per batch. By default the
    outputs are sums and the metrics are means.
    """
    outputs: list[Any] = []
    for batch in batches:
        output = eval_step(params, shard_batch(batch, mesh))
        if outputs:  # at most two in flight: with more, CPU collectives can run out of threads
            jax.block_until_ready(outputs[-1])
        outputs.append(output)
    return summarize(jax.device_get(outputs))


def _gradient(
    loss_fn: LossFn, params: Any, batch: dict[str, Any], dropout_rng: Array
) -> tuple[Any, Sums]:
    """Returns the gradient of the summed loss, and the metric sums."""
    gradient, sums = jax.grad(loss_fn, has_aux=True)(params, batch, dropout_rng)
    for pair in sums.values():
        chex.assert_shape(pair, ())
    return gradient, sums


def _accumulate(
    loss_fn: LossFn, params: Any, parts: dict[str, Any], dropout_rng: Array
) -> tuple[Any, Sums]:
    """Sums `_gradient` over the leading axis of `parts` in a sequential scan."""

    def add_part(total: tuple[Any, Sums], numbered: tuple[Array, Any]) -> tuple[Any, None]:
        number, part = numbered
        part_rng = jax.random.fold_in(dropout_rng, number)
        return jax.tree.map(jnp.add, total, _gradient(loss_fn, params, part, part_rng)), None

    first = jax.tree.map(lambda rows: rows[0], parts)
    shapes = jax.eval_shape(functools.partial(_gradient, loss_fn), params, first, dropout_rng)
    numbers = jnp.arange(len(next(iter(parts.values()))))
    return jax.lax.scan(add_part, zeros_like(shapes), (numbers, parts))[0]


def _split(batch: dict[str, Any], parts: int, mesh: Mesh) -> dict[str, Any]:
    """Reshapes [B …] to [parts, B / parts …]; part p has the rows p, p + parts, p + 2 parts ….

    So each device's rows stay on their device, and a part has the same rows on any number of devices.
    """

    def split(rows: Array) -> Array:
        by_part = rows.reshape(-1, parts, *rows.shape[1:]).swapaxes(0, 1)
        own = batch_sharding(mesh, by_part.shape[1:]).spec
        sharding = NamedSharding(mesh, PartitionSpec(None, *own))
        return jax.lax.with_sharding_constraint(by_part, sharding)

    return jax.tree.map(split, batch)
