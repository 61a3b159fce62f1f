"""A run's training step before there are data: what is compiled, for which shapes, on which devices."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from nystromformer_jax.training import metrics
from nystromformer_jax.training.config import FitConfig
from nystromformer_jax.training.optimizer import make_optimizer
from nystromformer_jax.training.train_step import (
    LossFn,
    TrainState,
    make_train_step,
    step_shapes,
    totals_shape,
)

__all__ = ["Job"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What `fit` trains.

    Attributes:
        config: The loop's sections.
        mesh: Of devices that need not be there.
        make_params: Makes the initial parameters; pure.
        loss_fn: See `LossFn`.
        row: One example of a batch, as shapes without their leading axis.
    """

    config: FitConfig
    mesh: Mesh
    make_params: Callable[[], Any]
    loss_fn: LossFn
    row: Mapping[str, jax.ShapeDtypeStruct]

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer of `config`."""
        return make_optimizer(self.config.optimizer, self.config.train.total_steps)

    def step(self) -> Any:
        """The training step, to be compiled; see `make_train_step`."""
        return make_train_step(
            self.loss_fn,
            self.optimizer,
            self.mesh,
            seed=self.config.train.seed,
            accumulation=self.config.train.accumulation,
            shard_params=self.config.mesh.shard_params,
        )

    def start(self) -> tuple[TrainState, metrics.Sums]:
        """The first state, and sums of nothing."""
        params = self.make_params()
        totals = totals_shape(self.loss_fn, params, self.batch(), self.mesh)
        return self.first_state(params), metrics.zeros_like(totals)

    def first_state(self, params: Any) -> TrainState:
        """The state before the first update."""
        return TrainState(jnp.zeros((), jnp.int32), params, self.optimizer.init(params))

    def batch(self, batch_size: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of a batch of all hosts together, of the config's size or another."""
        rows = batch_size or self.config.train.batch_size
        weight = jax.ShapeDtypeStruct((), jnp.float32)
        return {
            name: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype)
            for name, leaf in {**self.row, "weights": weight}.items()
        }

    def shapes(self, batch_size: int = 0) -> tuple[Any, Any, Any]:
        """The arguments of `step`, as shapes that know their place."""
        state, totals = jax.eval_shape(self.start)
        shard_params = self.config.mesh.shard_params
        batch = self.batch(batch_size)
        return step_shapes(self.mesh, state, totals, batch, shard_params=shard_params)
