"""The one loop of every trainer: resume, step, log, evaluate, save; read it top to bottom.

What differs between trainers comes in as values: how parameters are made, the loss with its
metric sums, the examples, and the metric by which the best step is chosen.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from nystromformer_jax.training import metrics
from nystromformer_jax.training.checkpoint import Checkpointer, Record
from nystromformer_jax.training.config import FitConfig
from nystromformer_jax.training.hosts import is_first
from nystromformer_jax.training.integrity import set_aside_damaged, warn_of_damage
from nystromformer_jax.training.job import Job
from nystromformer_jax.training.mesh import host_share, place, replicated, state_sharding
from nystromformer_jax.training.metrics import Sums
from nystromformer_jax.training.optimizer import make_schedule
from nystromformer_jax.training.pipeline import Examples, evaluation_batches, training_batches
from nystromformer_jax.training.run_log import RunLog
from nystromformer_jax.training.speed import Progress, Stopwatch, figures, peak_bytes
from nystromformer_jax.training.stop import Interrupted, Stopping, StopSignals
from nystromformer_jax.training.train_step import (
    EvalStep,
    LossFn,
    evaluate,
)
from nystromformer_jax.training.workdir import Workdir
from nystromformer_jax.training.writing import writing_to

__all__ = ["LossNotFinite", "Outcome", "fit"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a finished training leaves to report."""

    best_step: int  # its checkpoint is under the run's folder
    best_metrics: dict[str, float]  # of the validation at that step
    train_seconds: float  # all of it, evaluation and saving included, over all processes
    speed: dict[str, float]  # step_seconds, examples_per_second, input_share; empty if one step

    @property
    def cost(self) -> dict[str, float | None]:
        """What `result.json` says of it: seconds, speed where it is known, the process's memory."""
        names = ("step_seconds", "examples_per_second", "input_share")
        return {
            "train_seconds": self.train_seconds,
            **{name: self.speed.get(name) for name in names},
            "peak_bytes": peak_bytes(),
        }


class LossNotFinite(RuntimeError):
    """The loss or a gradient became NaN or infinite; no state from then on was saved."""


def fit(
    run: Workdir,
    config: FitConfig,
    *,
    mesh: Mesh,
    make_params: Callable[[], Any],
    loss_fn: LossFn,
    eval_step: EvalStep,
    training: Examples,
    validation: Examples,
    select: str = "accuracy",
    summarize: Callable[[list[Any]], dict[str, float]] = metrics.total_means,
    start_params: Any = None,
) -> Outcome:
    """Trains in `run`'s folder from its latest whole checkpoint, or the start, to the last step.

    Args:
        run: The folder, locked.
        config: The loop's sections.
        mesh: From `make_mesh`.
        make_params: Makes the initial parameters; pure, it is compiled.
        loss_fn: `(params, batch, dropout_rng) -> (loss_sum, sums)`, see `LossFn`.
        eval_step: From `make_eval_step`; passed in so that the test set shares its compilation.
        training: The examples to learn from.
        validation: The examples to choose the best step by.
        select: The validation metric to choose by: the lowest if its name ends in "loss", else the
            highest; the earliest of equals.
        summarize: Makes metrics of what `eval_step` gives; see `evaluate`.
        start_params: What a new run starts from, shaped as `make_params` makes it; None: what that makes.

    Raises:
        Interrupted: SIGTERM or Ctrl-C; everything is saved.
        LossNotFinite: with the steps between which it happened.
        CheckpointDamaged: there are checkpoints, and none of them is whole.
        CannotWrite: a full disk, or a read-only folder.
        ValueError: batch sizes that the mesh cannot share.
    """
    config.check_batches(mesh)
    total_steps, batch_size = config.train.total_steps, config.train.batch_size
    host, hosts = host_share(mesh)
    stop = StopSignals()
    step = 0
    with ExitStack() as stack:
        stack.enter_context(writing_to(run.path))
        stack.enter_context(stop)

        # ---- 1. The update, and the shapes of all that is saved ---------------------------------
        example = training.make_batch(np.zeros(1, np.int64))
        row = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in example.items()}
        job = Job(config=config, mesh=mesh, make_params=make_params, loss_fn=loss_fn, row=row)
        schedule = make_schedule(config.optimizer, total_steps)
        train_step = job.step()
        start = partial(
            Job.start, job
        )  # one function for shapes and values, so that it is traced once
        state_shape, sums_shape = jax.eval_shape(start)
        lies = state_sharding(mesh, state_shape, shard=config.mesh.shard_params)
        no_totals = jax.jit(lambda: metrics.zeros_like(sums_shape), out_shardings=replicated(mesh))

        # ---- 2. Where we are: the latest whole checkpoint, or the start -------------------------
        set_aside_damaged(run.checkpoints)
        checkpointer = stack.enter_context(Checkpointer(run.checkpoints))
        saved_steps = checkpointer.steps()
        if saved_steps:
            step = saved_steps[-1]
            state, totals, record = checkpointer.restore(step, state_shape, sums_shape, mesh, lies)
            warn_of_damage(run.checkpoints, record.best_step if record.best_step != step else 0)
        else:
            if start_params is None:
                state, totals = jax.jit(start, out_shardings=(lies, replicated(mesh)))()
            else:
                given = jax.device_put(start_params, lies.params)
                make_from = jax.jit(job.first_state, donate_argnums=0, out_shardings=lies)
                state = make_from(given)
                del given, start_params
                totals = no_totals()
            record = Record()
        log = stack.enter_context(
            RunLog(
                run.path,
                keep_bytes=record.metrics_bytes,
                events=config.log.events,
                silent=not is_first(),
            )
        )
        progress = stack.enter_context(closing(Progress(step, total_steps, silent=not is_first())))
        began = f"Going on from step {step} of {total_steps}" if step else f"{total_steps} steps"
        progress.say(f"{began}, {batch_size} examples each; the first one compiles.")
        batches = stack.enter_context(
            closing(
                training_batches(
                    training,
                    batch_size=batch_size,
                    seed=config.train.seed,
                    start_step=step,
                    host=host,
                    hosts=hosts,
                )
            )
        )
        stopwatch = Stopwatch(record, batch_size)
        first_step, logged_step = step, step - step % config.log.every_steps
        loss = None

        def is_due(every_steps: int) -> bool:
            return step > 0 and (step % every_steps == 0 or step == total_steps)

        while True:
            stop.agree(step)
            # ---- 3. Evaluate; after a resume first, if the signal came in the middle of one -----
            if is_due(config.eval.every_steps) and record.evaluated_step != step:
                _require_finite(totals, logged_step, step, checkpointer)
                valid_batches = evaluation_batches(
                    validation,
                    batch_size=config.eval_batch_size,
                    limit=config.eval.max_examples,
                    host=host,
                    hosts=hosts,
                )
                try:
                    with stopwatch.pause(), closing(valid_batches):
                        values = evaluate(
                            eval_step, state.params, stop.watch(valid_batches), mesh, summarize
                        )
                except Stopping:
                    pass
                else:
                    line = {f"valid/{name}": value for name, value in values.items()}
                    log.metrics(step, line)
                    progress.show(line)
                    record.evaluated_step = step
                    if _is_better(values, record.best_metrics, select):
                        record.best_step, record.best_metrics = step, values

            # ---- 4. Save, never a state that is not finite ---------------------------------------
            wanted = is_due(config.checkpoint.every_steps) or is_due(config.eval.every_steps)
            if (wanted or stop.received is not None) and step > first_step:
                with stopwatch.pause():
                    _require_finite(totals, logged_step, step, checkpointer)
                    record.metrics_bytes = log.sync()
                    stopwatch.count()
                    checkpointer.save(step, state, totals, record)
            if stop.received is not None or step == total_steps:
                break

            # ---- 5. One step ---------------------------------------------------------------------
            with stopwatch.input():
                batch = place(next(batches), mesh)
            previous_loss = loss
            state, totals, loss = train_step(state, totals, batch)
            # At most two steps in flight: on a CPU more can starve a collective of threads.
            jax.block_until_ready(previous_loss)
            step += 1
            stopwatch.step()
            progress.step()
            if step == first_step + 1:
                jax.block_until_ready(loss)
                stopwatch.restart()

            # ---- 6. Log: the one place where the loop waits for the device -----------------------
            if is_due(config.log.every_steps):
                _require_finite(totals, logged_step, step, checkpointer)
                line = metrics.means(totals, "train/")
                line["learning_rate"] = float(schedule(step - 1))
                log.metrics(step, line)
                totals, logged_step = no_totals(), step
                speed = stopwatch.lap()
                if speed:
                    log.speed(step, speed)
                progress.show(line, speed)
        stopwatch.count()

    # ---- 7. The end: the save in the background is whole, the signal handlers are the old ones ---
    if stop.received is not None:
        raise Interrupted(stop.received, step, total_steps)
    timed = (record.timed_steps, record.timed_seconds, record.input_seconds)
    return Outcome(
        best_step=record.best_step,
        best_metrics=record.best_metrics,
        train_seconds=record.train_seconds,
        speed=figures(*timed, batch_size) if record.timed_steps else {},
    )


def _is_better(values: Mapping[str, float], best: Mapping[str, float], select: str) -> bool:
    """Strictly better, so that the earliest of equals stays; NaN is worse than any number.

    The first ones, with no `best` yet, are better than nothing.
    """
    if select not in values:
        raise ValueError(f"select={select!r} is no validation metric: {', '.join(sorted(values))}.")
    if not best:
        return True
    sign = -1 if select.endswith("loss") else 1
    new, old = (
        -math.inf if math.isnan(scores[select]) else sign * scores[select]
        for scores in (values, best)
    )
    return new > old


def _require_finite(totals: Sums, before: int, step: int, checkpointer: Checkpointer) -> None:
    """Raises if a loss or a gradient after step `before`, up to `step`, was not finite."""
    bad = sorted(
        name for name, (total, _) in jax.device_get(totals).items() if not np.isfinite(total)
    )
    if not bad:
        return
    checkpointer.wait()
    saved = checkpointer.steps()
    where = f"the latest checkpoint is of step {saved[-1]}" if saved else "nothing was saved yet"
    raise LossNotFinite(
        f"{', '.join(bad)} became NaN or infinite between steps {before + 1} and {step};"
        f" {where}. Lower optimizer.learning_rate, lengthen its warm-up or set"
        " optimizer.clip_norm=1, in a new --workdir; log.every_steps=1 finds the step."
    )
