"""Config sections of fine-tuning, with the budget in epochs and the warm-up as a share of the steps."""

import dataclasses
import math

from language.initial import InitConfig
from nystromformer_jax import training


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneTrainConfig:
    """The section "train": a `TrainConfig` with the budget in epochs, rounded up to full steps."""

    epochs: float  # a run with less than one epoch is partial
    batch_size: int
    total_steps: int = 0  # if not 0, replaces `epochs`; a run with fewer steps is partial
    seed: int = 0
    accumulation: int = 0
    remat: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.epochs <= 2**32:
            raise ValueError(
                f"train.epochs: needs a positive number of at most 2**32, got {self.epochs}."
            )
        if self.total_steps < 0:
            raise ValueError(f"train.total_steps: needs 0 or more, got {self.total_steps}.")
        self.in_steps(1)  # to validate the other fields

    def in_steps(self, examples: int) -> training.TrainConfig:
        """Returns the `TrainConfig` with the budget in steps for `examples` training examples."""
        values = dataclasses.asdict(self)
        passes = values.pop("epochs") * examples / max(self.batch_size, 1)
        values["total_steps"] = self.total_steps or math.ceil(passes)
        return training.TrainConfig(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneOptimizerConfig:
    """The section "optimizer": AdamW, warm-up over a fraction of the steps, linear decay to zero."""

    learning_rate: float
    warmup_share: float
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_share <= 0.5:
            raise ValueError(
                f"optimizer.warmup_share: needs a number from 0 to 0.5, got {self.warmup_share}."
            )
        self.in_steps(1)  # to validate the other fields

    def in_steps(self, total_steps: int) -> training.OptimizerConfig:
        """Returns the `OptimizerConfig` with the warm-up in steps."""
        values = dataclasses.asdict(self)
        warmup_steps = round(values.pop("warmup_share") * total_steps)
        return training.OptimizerConfig(schedule="linear", warmup_steps=warmup_steps, **values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneEvalConfig:
    """The section "eval": an `EvalConfig` that evaluates once per epoch by default.

    With `tune_threshold`, the threshold for the second of two classes, or for each of several labels, is
    the one with the highest F1 on the validation set, even if another metric selects the checkpoint.
    """

    every_steps: int = 0  # 0: once per epoch
    max_examples: int = 0
    batch_size: int = 0
    tune_threshold: bool = False

    def __post_init__(self) -> None:
        if self.every_steps < 0:
            raise ValueError(f"eval.every_steps: needs 0 or more, got {self.every_steps}.")
        self.in_steps(1)

    def in_steps(self, epoch_steps: int) -> training.EvalConfig:
        """Returns the `EvalConfig`; by default `every_steps` is `epoch_steps`."""
        values = dataclasses.asdict(self)
        del values["tune_threshold"]
        values["every_steps"] = self.every_steps or epoch_steps
        return training.EvalConfig(**values)


SECTIONS = training.SECTIONS | {
    "init": InitConfig,
    "optimizer": FinetuneOptimizerConfig,
    "train": FinetuneTrainConfig,
    "eval": FinetuneEvalConfig,
}
