"""Specification of a training run: model, loss, optimizer, mesh and batch shapes, without the data."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding

from nystromformer_jax.training.config import FitConfig
from nystromformer_jax.training.mesh import batch_sharding, replicated, state_sharding
from nystromformer_jax.training.optimizer import make_optimizer
from nystromformer_jax.training.train_step import (
    EvalStep,
    LossFn,
    Sums,
    TrainState,
    make_eval_step,
    make_train_step,
    metric_sums_shape,
    total_means,
    zeros_like,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """A training run without its data.

    Attributes:
      config: Config sections that the training loop reads.
      mesh: Mesh from `make_mesh`. For a plan the devices need not exist.
      make_params: Returns the initial parameters. It must be pure, because it is compiled.
      loss_fn: `(params, batch, dropout_rng) -> (loss_sum, sums)`, see `LossFn`.
      row: Shapes and dtypes of one example, without the batch axis.
      full_length: Length of "inputs" for which `train.accumulation` is the number of parts, see
        `make_train_step`; 0: for all batches.
      eval_step: Compiled `(params, batch) -> output` for `summarize`; None: the sums of `loss_fn`.
      summarize: Returns the validation metrics, given the list of the outputs of all batches.
      select: Validation metric that selects the best step: the minimum if the name ends in "loss", else
        the maximum.
      tie_break: Validation metric whose minimum decides a tie, such as "loss"; empty: the earlier step wins.
    """

    config: FitConfig
    mesh: Mesh
    make_params: Callable[[], Any]
    loss_fn: LossFn
    row: Mapping[str, jax.ShapeDtypeStruct]
    full_length: int = 0
    eval_step: EvalStep | None = None
    summarize: Callable[[list[Any]], dict[str, float]] = total_means
    select: str = "accuracy"
    tie_break: str = ""

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of `config`."""
        return make_optimizer(self.config.optimizer, self.config.train.total_steps)

    @functools.cached_property
    def compiled_eval_step(self) -> EvalStep:
        """Compiled evaluation step, cached for validation and test set."""
        return self.eval_step or make_eval_step(self.loss_fn, self.mesh)

    def make_train_step(self) -> Any:
        """Returns the jitted training step; see `make_train_step`."""
        return make_train_step(
            self.loss_fn,
            self.optimizer,
            self.mesh,
            seed=self.config.train.seed,
            accumulation=self.config.train.accumulation,
            full_length=self.full_length,
            shard_params=self.config.mesh.shard_params,
        )

    def init_state(self) -> tuple[TrainState, Sums]:
        """Returns the initial state and metric sums of zero, to be compiled: `jax.jit(spec.init_state)()`."""
        params = self.make_params()
        sums = metric_sums_shape(self.loss_fn, params, self.batch_shapes(), self.mesh)
        return self.init_state_from(params), zeros_like(sums)

    def init_state_from(self, params: Any) -> TrainState:
        """Returns the initial training state for `params`."""
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params))

    def batch_shapes(self, batch_size: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a global batch; `batch_size` 0: from the config."""
        rows = batch_size or self.config.train.batch_size
        weight = jax.ShapeDtypeStruct((), jnp.float32)
        return {
            name: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype)
            for name, leaf in {**self.row, "weights": weight}.items()
        }

    def argument_shapes(self, batch_size: int = 0) -> tuple[Any, Any, Any]:
        """Returns shapes and shardings of the training step's arguments, for ahead-of-time compilation."""
        mesh = self.mesh
        state, metric_sums = jax.eval_shape(self.init_state)
        shardings = state_sharding(mesh, state, shard=self.config.mesh.shard_params)
        batch = self.batch_shapes(batch_size)
        batch_shardings = {name: batch_sharding(mesh, leaf.shape) for name, leaf in batch.items()}
        return (
            with_sharding(state, shardings),
            with_sharding(metric_sums, replicated(mesh)),
            with_sharding(batch, batch_shardings),
        )


def with_sharding(tree: Any, shardings: Any) -> Any:
    """Returns the shapes of `tree` with `shardings`: one per leaf, or one for all leaves."""
    if isinstance(shardings, NamedSharding):
        shardings = jax.tree.map(lambda _: shardings, tree)

    def shape(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(shape, tree, shardings)
