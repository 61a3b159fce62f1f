"""The sections of a config that the loop reads; the others are the trainers' own."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from nystromformer_jax.training.checkpoint import CheckpointConfig
from nystromformer_jax.training.mesh import MeshConfig
from nystromformer_jax.training.optimizer import OptimizerConfig

__all__ = ["EvalConfig", "FitConfig", "LogConfig", "TrainConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The budget. `seed` reaches data order and dropout; parameters are the caller's to make."""

    total_steps: int
    batch_size: int  # examples of one update, over all devices, hosts and accumulated parts
    seed: int = 0
    accumulation: int = 1  # parts that a batch is computed in, one after the other
    remat: bool = False  # whether a layer's insides are computed again for the gradient, not kept
    budget_steps: int = 0  # steps of a whole run, where they are not the task's; 0: the task's

    def __post_init__(self) -> None:
        _at_least(
            "train", self, total_steps=1, batch_size=1, seed=0, accumulation=1, budget_steps=0
        )
        if self.seed >= 2**32:  # jax.random.key would cut it, to the seed of another run
            raise ValueError(f"train.seed: needs a number below 2**32, got {self.seed}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """When and on what to evaluate; the last step always is."""

    every_steps: int = 500
    max_examples: int = 0  # 0: all
    batch_size: int = 0  # 0: train.batch_size

    def __post_init__(self) -> None:
        _at_least("eval", self, every_steps=1, max_examples=0, batch_size=0)

    def scored(self, count: int) -> int:
        """How many of `count` examples are scored."""
        return min(count, self.max_examples) if self.max_examples else count


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
    """What is written down; the last step always is."""

    every_steps: int = 50
    events: bool = True  # TensorBoard events beside metrics.jsonl

    def __post_init__(self) -> None:
        _at_least("log", self, every_steps=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """The sections that the loop reads."""

    train: TrainConfig
    optimizer: OptimizerConfig
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)

    @classmethod
    def of(cls, sections: Mapping[str, Any]) -> "FitConfig":
        """Takes its sections out of all of a trainer's."""
        return cls(**{field.name: sections[field.name] for field in dataclasses.fields(cls)})

    @property
    def eval_batch_size(self) -> int:
        """Rows of an evaluation batch."""
        return self.eval.batch_size or self.train.batch_size

    def check_batches(self, mesh: Mesh) -> None:
        """Raises ValueError unless every device of `mesh` gets the same number of rows."""
        train, shards = self.train, mesh.shape["data"]
        if train.batch_size % (shards * train.accumulation):
            raise ValueError(
                f"train.batch_size={train.batch_size} cannot be divided by mesh.data={shards}"
                f" * train.accumulation={train.accumulation}: pass a multiple of"
                f" {shards * train.accumulation}."
            )
        if self.eval_batch_size % shards:
            raise ValueError(
                f"eval.batch_size={self.eval_batch_size} cannot be divided by mesh.data={shards}:"
                f" pass a multiple of {shards}."
            )


def _at_least(section: str, config: Any, **bounds: int) -> None:
    for name, bound in bounds.items():
        if getattr(config, name) < bound:
            raise ValueError(
                f"{section}.{name}: needs {bound} or more, got {getattr(config, name)}."
            )
