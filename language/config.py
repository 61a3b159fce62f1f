"""Sections of the configs of language models, except "data". Does not import jax.

Fine-tuning has the budget in epochs and the warm-up as a share of the steps.
"""

import dataclasses
import math
from pathlib import Path
from typing import Literal

from dataprep.cache import user_path
from nystromformer_jax.training.config import SECTIONS, EvalConfig, OptimizerConfig, TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitConfig:
    """The section "init": the source of the initial parameters."""

    checkpoint: str = ""  # a folder for `nystromformer_jax.pretrained.from_pretrained`
    from_scratch: bool = False  # use only sizes and tokenizer of the checkpoint
    quirks: Literal["none", "hf"] = "none"  # "hf" treats padding as in Hugging Face's code

    def __post_init__(self) -> None:
        if self.from_scratch and not self.checkpoint:
            raise ValueError(
                "init.from_scratch: needs init.checkpoint for its sizes; set that, or leave"
                " init.from_scratch at False."
            )
        if self.quirks != "none" and not self.checkpoint:
            raise ValueError(
                f"init.quirks={self.quirks}: needs init.checkpoint, because it changes how a checkpoint is"
                " read; set that, or leave init.quirks at none."
            )

    @property
    def folder(self) -> Path:
        """Folder of the checkpoint."""
        return user_path(self.checkpoint)

    @property
    def reads_weights(self) -> bool:
        """True if the run starts from the weights of the checkpoint."""
        return bool(self.checkpoint) and not self.from_scratch


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The section "objective" of a config.

    Args:
      mask_rate: Fraction of the tokens of an example that are predicted.
      mask_share: Fraction of predicted tokens that are replaced by the mask token.
      random_share: Fraction of predicted tokens that are replaced by a random token; the rest are unchanged.
      whole_words: If True, either all tokens of a word are predicted or none. In a word of more than
        `language.masking.LONGEST_WORD` tokens, each token is chosen on its own.
      order_weight: Weight of the order loss relative to the token loss. With 0 no sentences are swapped
        and the order head is not trained, as in the authors' main code.
    """

    mask_rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = True
    order_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate < 1:
            raise ValueError(
                f"objective.mask_rate: needs a number between 0 and 1, got {self.mask_rate}."
            )
        shares = (self.mask_share, self.random_share)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(
                "objective.mask_share, objective.random_share: need numbers of 0 or more whose sum is at"
                f" most 1, got {shares[0]} and {shares[1]}."
            )
        if not self.order_weight >= 0:
            raise ValueError(f"objective.order_weight: needs 0 or more, got {self.order_weight}.")

    def predictions(self, max_len: int) -> int:
        """Returns K, the maximum number of predicted tokens in an example of `max_len` tokens."""
        return max(1, round(self.mask_rate * max_len))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneTrainConfig:
    """The section "train": a `TrainConfig` with the budget in epochs, rounded up to full steps."""

    epochs: float  # a run with less than one epoch is partial
    batch_size: int  # examples per update on all devices
    total_steps: int = 0  # if not 0, replaces `epochs`; a run with fewer steps is partial
    seed: int = 0  # seed of new parameters, order of the data and dropout
    accumulation: int = 0  # parts of a batch; 0: chosen by the program
    remat: bool = False  # recompute activations in the backward pass
    # Weights of the classes in the training loss: "balanced" (inversely proportional to their number of
    # examples), or positive numbers separated by commas, in the order of the labels. Empty: all are 1.
    class_weights: str = ""

    def __post_init__(self) -> None:
        if self.class_weights not in ("", "balanced") and not _are_positive(self.class_weights):
            raise ValueError(
                "train.class_weights: needs balanced, or positive numbers separated by commas, got"
                f" {self.class_weights!r}."
            )
        if not 0 < self.epochs <= 2**32:
            raise ValueError(
                f"train.epochs: needs a positive number of at most 2**32, got {self.epochs}."
            )
        if self.total_steps < 0:
            raise ValueError(f"train.total_steps: needs 0 or more, got {self.total_steps}.")
        self.in_steps(1)  # to validate the other fields

    def in_steps(self, examples: int) -> TrainConfig:
        """Returns the `TrainConfig` with the budget in steps for `examples` training examples."""
        values = dataclasses.asdict(self)
        del values["class_weights"]
        passes = values.pop("epochs") * examples / max(self.batch_size, 1)
        values["total_steps"] = self.total_steps or math.ceil(passes)
        return TrainConfig(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneOptimizerConfig:
    """The section "optimizer": AdamW, warm-up over a fraction of the steps, linear decay to zero."""

    learning_rate: float  # peak of the schedule
    warmup_share: float  # share of the steps in which the rate rises linearly to the peak
    weight_decay: float = 0.01  # decoupled, of all parameters; times the learning rate
    beta1: float = 0.9  # β₁ of AdamW
    beta2: float = 0.999  # β₂ of AdamW
    eps: float = 1e-6  # ε of AdamW
    clip_norm: float = 0.0  # largest global norm of the gradient; 0: no clipping

    def __post_init__(self) -> None:
        if not 0 <= self.warmup_share <= 0.5:
            raise ValueError(
                f"optimizer.warmup_share: needs a number from 0 to 0.5, got {self.warmup_share}."
            )
        self.in_steps(1)  # to validate the other fields

    def in_steps(self, total_steps: int) -> OptimizerConfig:
        """Returns the `OptimizerConfig` with the warm-up in steps."""
        values = dataclasses.asdict(self)
        warmup_steps = round(values.pop("warmup_share") * total_steps)
        return OptimizerConfig(schedule="linear", warmup_steps=warmup_steps, **values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneEvalConfig:
    """The section "eval": an `EvalConfig` that evaluates once per epoch by default."""

    every_steps: int = 0  # steps between evaluations; 0: once per epoch
    max_examples: int = 0  # examples per evaluated split; 0: all
    batch_size: int = 0  # examples per evaluation batch; 0: four accumulation parts
    patience: int = 0  # evaluations in a row without a better one that end training; 0: never

    def __post_init__(self) -> None:
        if self.every_steps < 0:
            raise ValueError(f"eval.every_steps: needs 0 or more, got {self.every_steps}.")
        self.in_steps(1)

    def in_steps(self, epoch_steps: int) -> EvalConfig:
        """Returns the `EvalConfig`; by default `every_steps` is `epoch_steps`."""
        values = dataclasses.asdict(self)
        return EvalConfig(**{**values, "every_steps": self.every_steps or epoch_steps})


def _are_positive(text: str) -> bool:
    """Returns True if a text has finite positive numbers, separated by commas."""
    try:
        return all(0 < float(number) < math.inf for number in text.split(","))
    except ValueError:
        return False


FINETUNING = SECTIONS | {
    "init": InitConfig,
    "optimizer": FinetuneOptimizerConfig,
    "train": FinetuneTrainConfig,
    "eval": FinetuneEvalConfig,
}
