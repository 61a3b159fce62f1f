"""AdamW and its schedules."""

import dataclasses
from typing import Literal

import jax.numpy as jnp
import optax

from nystromformer_jax.typing import Array

__all__ = ["OptimizerConfig", "make_beta1_schedule", "make_optimizer", "make_schedule"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (decoupled weight decay) after an optional clip of the global gradient norm."""

    learning_rate: float  # the peak
    warmup_steps: int
    schedule: Literal["one_cycle", "linear", "cosine", "rsqrt", "constant"] = "one_cycle"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip_norm: float = 0.0  # 0: no clipping
    cycle_beta1: bool = False  # 0.95 → 0.85 → 0.95 against the rate of one_cycle, `beta1` unused

    def __post_init__(self) -> None:
        if self.cycle_beta1 and self.schedule != "one_cycle":
            raise ValueError(
                "optimizer.cycle_beta1: goes with optimizer.schedule='one_cycle',"
                f" got {self.schedule!r}."
            )
        if not self.learning_rate > 0:
            raise ValueError(
                f"optimizer.learning_rate: needs a positive number, got {self.learning_rate}."
            )
        for name in ("warmup_steps", "eps", "weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"optimizer.{name}: needs 0 or more, got {getattr(self, name)}.")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"optimizer.{name}: needs a number in [0, 1), got {getattr(self, name)}."
                )


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """The learning rate of the update that follows `step` earlier ones, 0 ≤ step < total_steps.

    With W = warmup_steps, T = total_steps:

    * `one_cycle`: peak/25 at 0, straight to peak at W - 1, straight to peak/25/10⁴ at T - 1.
    * `linear`, `cosine`: 0 at 0, straight to peak at W, then down to 0 at T.
    * `rsqrt`: 0 at 0, straight to peak at W, then peak · √(W / step); the official benchmark's.
    * `constant`: 0 at 0, straight to peak at W, and stays.

    A run no longer than its warm-up sees the beginning of the warm-up, at the same rates as a
    long run: it never reaches the peak, and never divides by zero.

    Source: PyTorch's `OneCycleLR(anneal_strategy="linear", pct_start=W/T)` with its defaults
        div_factor 25 and final_div_factor 1e4, as in the authors' LRA code.
    Differs from it: `beta1` stays where it is, unless `cycle_beta1` is set.
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    one_cycle = config.schedule == "one_cycle"
    start, peak_step = (peak / 25, max(warmup - 1, 0)) if one_cycle else (0.0, warmup)
    end, last_step = (peak / 25 / 1e4, total_steps - 1) if one_cycle else (0.0, total_steps)

    def schedule(step: Array | int) -> Array:
        now = jnp.asarray(step, jnp.float32)
        up = _share(now, 0, peak_step)
        down = _share(now, peak_step, last_step)
        if config.schedule == "cosine":
            down = (1 - jnp.cos(jnp.pi * down)) / 2
        if config.schedule == "constant":
            down = jnp.zeros_like(down)
        if config.schedule == "rsqrt":
            down = 1 - jnp.sqrt(max(warmup, 1) / jnp.maximum(now, max(warmup, 1)))
        # (1 - share) * a + share * b, not a + share * (b - a): the end point is then exact.
        rising, falling = (1 - up) * start + up * peak, (1 - down) * peak + down * end
        return jnp.where(now < peak_step, rising, falling)

    return schedule


def make_beta1_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """β₁ of each update under `cycle_beta1`: 0.95 at 0, 0.85 where the rate peaks, 0.95 at the end.

    Source: PyTorch's `OneCycleLR` with its default `cycle_momentum=True`, which replaces AdamW's β₁.
    """
    peak_step = max(config.warmup_steps - 1, 0)

    def schedule(step: Array | int) -> Array:
        now = jnp.asarray(step, jnp.float32)
        falling, rising = _share(now, 0, peak_step), _share(now, peak_step, total_steps - 1)
        return jnp.where(now < peak_step, 0.95 - 0.1 * falling, 0.85 + 0.1 * rising)

    return schedule


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Clips, then AdamW under the schedule."""
    rest = {"b2": config.beta2, "eps": config.eps, "weight_decay": config.weight_decay}
    rate = make_schedule(config, total_steps)
    if config.cycle_beta1:
        beta1 = make_beta1_schedule(config, total_steps)
        adamw = optax.inject_hyperparams(optax.adamw)(rate, b1=beta1, **rest)
    else:
        adamw = optax.adamw(rate, b1=config.beta1, **rest)
    if config.clip_norm:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)
    return adamw


def _share(now: Array, first: int, last: int) -> Array:
    """How far `now` is from `first` to `last`, within [0, 1]."""
    return jnp.clip((now - first) / max(last - first, 1), 0, 1)
