"""The training loop: resume, step, log, evaluate, save."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import jax
import numpy as np

from nystromformer_jax.training.checkpoint import Checkpointer, Record, load_params
from nystromformer_jax.training.environment import peak_bytes
from nystromformer_jax.training.errors import Interrupted, LossNotFinite, writing_to
from nystromformer_jax.training.hosts import StopEvaluation, StopSignals, is_primary
from nystromformer_jax.training.integrity import quarantine_corrupt, saved_steps, warn_if_damaged
from nystromformer_jax.training.mesh import data_shard, replicated, shard_batch, state_sharding
from nystromformer_jax.training.optimizer import make_schedule
from nystromformer_jax.training.pipeline import Examples, evaluation_batches, training_batches
from nystromformer_jax.training.plan import warn_if_too_large
from nystromformer_jax.training.run_log import RunLog
from nystromformer_jax.training.spec import TrainSpec
from nystromformer_jax.training.speed import Progress, Stopwatch, speed_of
from nystromformer_jax.training.train_step import evaluate, means, zeros_like
from nystromformer_jax.training.workdir import Workdir


@dataclasses.dataclass(frozen=True)
class FitResult:
    """Result of a completed training run."""

    best_step: int  # the step with the best validation metric
    best_metrics: dict[str, float]  # validation metrics at the best step
    best_examples: int  # number of validation examples of `best_metrics`
    last_step: int  # less than the total number of steps if `eval.patience` ended the training
    train_seconds: float  # with evaluation and saving, summed over resumes
    speed: dict[str, float]  # see `speed_of`; empty after a single step

    @property
    def cost(self) -> dict[str, float | None]:
        """Returns time and memory as entries of `result.json`; unknown speeds are None."""
        names = ("step_seconds", "examples_per_second", "input_share")
        return {
            "train_seconds": self.train_seconds,
            **{name: self.speed.get(name) for name in names},
            "peak_bytes": peak_bytes(),
        }


def fit(
    workdir: Workdir,
    spec: TrainSpec,
    *,
    training: Examples,
    validation: Examples,
    start_params: Any = None,
) -> FitResult:
    """Trains to the last step; resumes from the latest intact checkpoint in `workdir`.

    The best step is selected on the `validation` examples. A new run starts from `start_params`, or from
    `spec.make_params()` if `start_params` is None.

    Raises:
      Interrupted: SIGTERM or Ctrl-C was received and the state is saved.
      LossNotFinite: The loss or a gradient became NaN or infinite.
      CheckpointDamaged: All checkpoints are damaged.
      CannotWrite: The disk is full or the folder is read-only.
      ValueError: The mesh does not divide the batch sizes.
    """
    if workdir.divergence is not None:
        raise LossNotFinite(workdir.divergence["reason"])
    config, mesh = spec.config, spec.mesh
    config.check_batches(mesh)
    total_steps, batch_size = config.train.total_steps, config.train.batch_size
    stop = StopSignals()
    step = 0
    with ExitStack() as stack:
        stack.enter_context(writing_to(workdir.path))
        stack.enter_context(stop)

        # ---- 1. Build the training step and the shapes of the saved state -----------------------
        schedule = make_schedule(config.optimizer, total_steps)
        train_step = spec.make_train_step()
        start = spec.init_state  # one function object for shapes and values: traced only once
        state_shape, sums_shape = jax.eval_shape(start)
        shardings = state_sharding(mesh, state_shape, shard=config.mesh.shard_params)
        zero_sums = jax.jit(lambda: zeros_like(sums_shape), out_shardings=replicated(mesh))

        # ---- 2. Restore the latest intact checkpoint, or initialize -----------------------------
        quarantine_corrupt(workdir.checkpoints)
        checkpointer = stack.enter_context(Checkpointer(workdir.checkpoints))
        if saved := saved_steps(workdir.checkpoints):
            step = saved[-1]
            state, metric_sums, record = checkpointer.restore(
                step, state_shape, sums_shape, mesh, shardings
            )
            if record.best_step not in (0, step):
                warn_if_damaged(workdir.checkpoints, record.best_step)
        else:
            if start_params is None:
                state, metric_sums = jax.jit(start, out_shardings=(shardings, replicated(mesh)))()
            else:
                # Copied, because the compiled program reuses the memory of its argument.
                copies = jax.tree.map(lambda x: x.copy(), start_params)
                given = jax.device_put(copies, shardings.params)
                make_state = jax.jit(
                    spec.init_state_from, donate_argnums=0, out_shardings=shardings
                )
                state = make_state(given)
                del given, copies, start_params
                metric_sums = zero_sums()
            record = Record()

        # ---- 3. Open the logs and the input -----------------------------------------------------
        silent = not is_primary()
        log = RunLog(
            workdir.path,
            keep_bytes=record.metrics_bytes,
            events=config.log.events,
            wandb=config.log.wandb,
            silent=silent,
        )
        stack.enter_context(log)
        progress = stack.enter_context(closing(Progress(step, total_steps, silent=silent)))
        began = f"Resuming from step {step} of {total_steps}" if step else f"{total_steps} steps"
        progress.say(f"{began}, {batch_size} examples each; the first one compiles.")
        shard, num_shards = data_shard(mesh)
        batches = stack.enter_context(
            closing(
                training_batches(
                    training,
                    batch_size=batch_size,
                    seed=config.train.seed,
                    start_step=step,
                    shard=shard,
                    num_shards=num_shards,
                )
            )
        )
        stopwatch = Stopwatch(record, batch_size)
        first_step = saved_step = step
        logged_step = step - step % config.log.every_steps
        loss = None

        def is_due(every_steps: int) -> bool:
            return step > 0 and (step % every_steps == 0 or step == total_steps)

        def require_finite() -> None:
            sums = jax.device_get(metric_sums)
            if names := sorted(name for name, (x, _) in sums.items() if not np.isfinite(x)):
                checkpointer.wait()
                reason = _divergence(names, logged_step, step, saved_steps(workdir.checkpoints))
                workdir.write_divergence(step, reason)
                raise LossNotFinite(reason)

        while True:
            stop.sync()
            # ---- 4. Evaluate, also after a resume if the evaluation was interrupted -------------
            if is_due(config.eval.every_steps) and record.evaluated_step != step:
                require_finite()
                try:
                    with stopwatch.pause():
                        values = _evaluate(spec, state.params, validation, stop, spec.summarize)
                except StopEvaluation:
                    pass
                else:
                    line = {f"valid/{name}": value for name, value in values.items()}
                    log.metrics(step, line)
                    record.evaluated_step = step
                    examples = config.eval.num_evaluated(validation.count)
                    _update_best(record, step, values, examples, spec)
                    progress.show(line, best_step=record.best_step)

            # ---- 5. Save the state if it is finite ----------------------------------------------
            wanted = is_due(config.checkpoint.every_steps) or is_due(config.eval.every_steps)
            if (wanted or stop.received is not None) and step > first_step:
                require_finite()  # waits for the device, so that the pause contains no training
                with stopwatch.pause():
                    record.metrics_bytes = log.sync()
                    stopwatch.add_elapsed()
                    checkpointer.save(step, state, metric_sums, record)
                saved_step = step
            # If a signal arrived after the condition above, one more step runs before the save.
            has_ended = step == total_steps
            if 0 < config.eval.patience <= record.stale_evaluations and not has_ended:
                progress.say(
                    f"Training ends early (eval.patience): {record.stale_evaluations} evaluations in a row"
                    f" were not better than that of step {record.best_step}."
                )
                has_ended = True
            if has_ended or (stop.received is not None and saved_step == step):
                break

            # ---- 6. Run one training step -------------------------------------------------------
            with stopwatch.input():
                batch = shard_batch(next(batches), mesh)
            previous_loss = loss
            state, metric_sums, loss = train_step(state, metric_sums, batch)
            # At most two steps in flight: with more, collectives on CPU can run out of threads.
            jax.block_until_ready(previous_loss)
            step += 1
            stopwatch.step()
            progress.step()
            if step == first_step + 1:
                jax.block_until_ready(loss)
                stopwatch.restart()

            # ---- 7. Log (waits for the device) --------------------------------------------------
            if is_due(config.log.every_steps):
                require_finite()
                line = means(metric_sums, "train/")
                line["learning_rate"] = float(schedule(step - 1))
                log.metrics(step, line)
                metric_sums, logged_step = zero_sums(), step
                speed = stopwatch.lap()
                if speed:
                    log.speed(step, speed)
                progress.show(line, speed)
        stopwatch.add_elapsed()

    # ---- 8. Return the result; saves are complete and signal handlers are restored --------------
    if stop.received is not None:
        raise Interrupted(stop.received, step, total_steps)
    timed = (record.timed_steps, record.timed_seconds, record.input_seconds)
    return FitResult(
        best_step=record.best_step,
        best_metrics=record.best_metrics,
        best_examples=record.best_examples or config.eval.num_evaluated(validation.count),
        last_step=step,
        train_seconds=record.train_seconds,
        speed=speed_of(*timed, batch_size) if record.timed_steps else {},
    )


def train_to_result(
    workdir: Workdir,
    spec: TrainSpec,
    *,
    training: Examples,
    validation: Examples,
    data_sha256: str,
    check_data: Callable[[], object],
    report: Callable[[FitResult, Any], dict[str, Any]],
    make_start_params: Callable[[], Any] = lambda: None,
) -> dict[str, Any]:
    """Trains with `fit`, writes `result.json` and returns it; skips training if the run is finished.

    `report(fit_result, params)` returns additional entries, given the parameters of the best step.
    `check_data` is passed to `Workdir.require_unchanged`. A new run starts from `make_start_params()`,
    or from `spec.make_params()` if `make_start_params()` is None.
    """
    workdir.require_data(data_sha256)
    if workdir.result is not None:
        return workdir.result
    warn_if_too_large(spec)
    fit_result = fit(
        workdir,
        spec,
        training=training,
        validation=validation,
        start_params=None if workdir.has_checkpoints else make_start_params(),
    )
    params = load_params(workdir.checkpoints, fit_result.best_step, spec.make_params, spec.mesh)
    workdir.require_unchanged(check_data)  # before the test set is read
    total_steps = spec.config.train.total_steps
    result = {
        **report(fit_result, params),
        "seed": spec.config.train.seed,
        "best_step": fit_result.best_step,
        "total_steps": total_steps,
        **({"last_step": fit_result.last_step} if fit_result.last_step < total_steps else {}),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        **fit_result.cost,
        **workdir.environment,
        "config_sha256": workdir.config_sha256,
        "data_sha256": data_sha256,
    }
    workdir.require_unchanged(check_data)  # and after it was read
    workdir.write_result(result)
    return result


def load_best_params(workdir: Workdir, spec: TrainSpec) -> Any:
    """Returns the parameters of the best step; raises the errors of `Workdir.require_result`."""
    best_step = workdir.require_result()["best_step"]
    return load_params(workdir.checkpoints, best_step, spec.make_params, spec.mesh)


def evaluate_split(
    spec: TrainSpec,
    params: Any,
    examples: Examples,
    summarize: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """Returns the metrics of a split, evaluated on at most `eval.max_examples` examples.

    `summarize` overrides `spec.summarize`. In a single-process run SIGTERM and Ctrl-C raise `Interrupted`.
    """
    with StopSignals(saves=False) as stop:
        try:
            return _evaluate(spec, params, examples, stop, summarize or spec.summarize)
        except StopEvaluation:
            raise Interrupted(stop.received or 0) from None


def _evaluate(
    spec: TrainSpec,
    params: Any,
    examples: Examples,
    stop: StopSignals,
    summarize: Callable[[list[Any]], Any],
) -> Any:
    shard, num_shards = data_shard(spec.mesh)
    batches = evaluation_batches(
        examples,
        batch_size=spec.config.eval_batch_size(spec.mesh.shape["data"]),
        limit=spec.config.eval.max_examples,
        shard=shard,
        num_shards=num_shards,
    )
    with closing(batches):
        return evaluate(spec.compiled_eval_step, params, stop.watch(batches), spec.mesh, summarize)


def _update_best(
    record: Record, step: int, values: dict[str, float], examples: int, spec: TrainSpec
) -> None:
    """Records `values` if they are the best so far.

    Metrics of another number of `examples` do not count: `eval.max_examples` may change on a resume.
    """
    is_comparable = record.best_examples in (0, examples)
    record.stale_evaluations += 1
    if _is_better(values, record.best_metrics if is_comparable else {}, spec):
        record.stale_evaluations = 0
        record.best_step, record.best_metrics, record.best_examples = step, values, examples


def _is_better(values: Mapping[str, float], best: Mapping[str, float], spec: TrainSpec) -> bool:
    """Returns True if `values` are strictly better than `best`, or `best` is empty.

    NaN is worse than any number.
    """
    if spec.select not in values:
        known = ", ".join(sorted(values))
        raise ValueError(f"select={spec.select!r} is not a validation metric: {known}.")

    def rank(scores: Mapping[str, float]) -> list[float]:
        sign = -1 if spec.select.endswith("loss") else 1
        ranks = [sign * scores[spec.select]]
        if spec.tie_break:
            ranks.append(-scores.get(spec.tie_break, math.nan))
        return [-math.inf if math.isnan(x) else x for x in ranks]

    return not best or rank(values) > rank(best)


def _divergence(names: Sequence[str], before: int, step: int, saved: Sequence[int]) -> str:
    """Returns an error message: `names` became NaN or infinite between steps `before` and `step`."""
    where = "nothing was saved yet"
    if saved:
        where = f"the latest checkpoint is of step {saved[-1]}"
    return (
        f"{', '.join(names)} became NaN or infinite between steps {before + 1} and {step};"
        f" {where}. Lower optimizer.learning_rate, lengthen its warm-up or set"
        " optimizer.clip_norm=1, in a new --workdir. To find the exact step, set log.every_steps=1."
    )
