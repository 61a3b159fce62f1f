"""AdamW and Muon optimizers with learning-rate schedules."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from nystromformer_jax.training.config import OptimizerConfig
from nystromformer_jax.typing import Array


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Returns the learning rate as a function of `step`, the number of finished updates.

    With W = warmup_steps, T = total_steps and 0 ≤ step < T:

    * `one_cycle`: linear from peak/25 at 0 to peak at W - 1, then linear to peak/25/10⁴ at T - 1.
    * `linear`, `cosine`: linear from 0 at 0 to peak at W, then down to 0 at T.
    * `rsqrt`: linear from 0 at 0 to peak at W, then peak · √(W / step), as in the official benchmark.
    * `constant`: linear from 0 at 0 to peak at W, then constant.

    If the run is shorter than the warm-up, the schedule ends during the warm-up.

    Source: PyTorch's `OneCycleLR(anneal_strategy="linear", pct_start=W/T)` with its defaults
        div_factor 25 and final_div_factor 1e4, as in the authors' LRA code.
    Differs: `beta1` is constant unless `cycle_beta1` is set.
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
        # (1 - share) * a + share * b is exact at the end point; a + share * (b - a) is not.
        rising, falling = (1 - up) * start + up * peak, (1 - down) * peak + down * end
        return jnp.where(now < peak_step, rising, falling)

    return schedule


def make_beta1_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Returns the β₁ schedule of `cycle_beta1`: 0.95 at 0, 0.85 at the peak rate, 0.95 at the end.

    Source: PyTorch's `OneCycleLR` with its default `cycle_momentum=True`, which replaces AdamW's β₁.
    """
    peak_step = max(config.warmup_steps - 1, 0)

    def schedule(step: Array | int) -> Array:
        now = jnp.asarray(step, jnp.float32)
        falling, rising = _share(now, 0, peak_step), _share(now, peak_step, total_steps - 1)
        return jnp.where(now < peak_step, 0.95 - 0.1 * falling, 0.85 + 0.1 * rising)

    return schedule


def make_optimizer(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    """Returns the optimizer with gradient clipping and schedules."""
    rest = {"b2": config.beta2, "eps": config.eps, "weight_decay": config.weight_decay}
    rate = make_schedule(config, total_steps)
    if config.method == "muon":
        muon = optax.contrib.muon(
            rate,
            eps=config.eps,
            weight_decay=config.weight_decay,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            adam_weight_decay=config.weight_decay,
            muon_weight_dimension_numbers=_muon_axes,
            consistent_rms=0.2,
        )
        update = _over_stacks(muon)
    elif config.cycle_beta1:
        beta1 = make_beta1_schedule(config, total_steps)
        update = optax.inject_hyperparams(optax.adamw)(rate, b1=beta1, **rest)
    else:
        update = optax.adamw(rate, b1=config.beta1, **rest)
    if config.clip_norm:
        return optax.chain(optax.clip_by_global_norm(config.clip_norm), update)
    return update


def _over_stacks(update: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `update` to all dense kernels of one size as one array, [N, in, out].

    Muon computes 15 matrix products per array, and a GPU launches at least one kernel for each.
    """

    def init(params: Any) -> Any:
        return update.init(_stack(params))

    def apply(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        stacked = None if params is None else _stack(params)
        updates, state = update.update(_stack(gradients), state, stacked)
        return _unstack(updates, gradients), state

    return optax.GradientTransformation(init, apply)


def _stack(tree: Any) -> dict[str, dict[str, Array]]:
    """Returns the kernels stacked by size, and the other leaves by path."""
    kernels: dict[str, list[Array]] = {}
    rest = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if (size := _kernel_size(path, leaf)) is None:
            rest[jax.tree_util.keystr(path)] = leaf
        else:
            kernels.setdefault(size, []).append(leaf.reshape(-1, leaf.shape[-1]))
    return {"kernels": {size: jnp.stack(found) for size, found in kernels.items()}, "rest": rest}


def _unstack(stacked: Mapping[str, Mapping[str, Array]], like: Any) -> Any:
    """Returns the leaves of `_stack` in the tree and shapes of `like`."""
    kernels = {size: iter(stack) for size, stack in stacked["kernels"].items()}

    def leaf_of(path: Any, leaf: Array) -> Array:
        if (size := _kernel_size(path, leaf)) is None:
            return stacked["rest"][jax.tree_util.keystr(path)]
        return next(kernels[size]).reshape(leaf.shape)

    return jax.tree_util.tree_map_with_path(leaf_of, like)


def _kernel_size(path: Any, leaf: Array) -> str | None:
    """Returns "inputs x outputs" of a dense kernel `[…, in, out]`; None: AdamW updates the leaf."""
    if getattr(path[-1], "key", None) != "kernel" or leaf.ndim < 2:
        return None
    return f"{math.prod(leaf.shape[:-1])}x{leaf.shape[-1]}"


def _muon_axes(stacked: Any) -> Any:
    """Returns Muon's dimension numbers for the result of `_stack`; None: AdamW updates a leaf."""
    axes = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    return {
        "kernels": dict.fromkeys(stacked["kernels"], axes),
        "rest": dict.fromkeys(stacked["rest"]),
    }


def _share(now: Array, first: int, last: int) -> Array:
    """Returns the position of `now` between `first` and `last`, clipped to [0, 1]."""
    return jnp.clip((now - first) / max(last - first, 1), 0, 1)
