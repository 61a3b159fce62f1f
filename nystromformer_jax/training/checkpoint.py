"""Checkpoints through Orbax: the latest two, and the best one up to each of these steps.

Each step has a folder, which is renamed to its final name after all files and their checksums are written.
An older step is deleted only after that, so a kill at any moment leaves an intact checkpoint. A damaged step
is detected by its checksums, and the run resumes from the step before it.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.sharding import Mesh
from orbax.checkpoint.checkpoint_managers import preservation_policy

from nystromformer_jax.training.integrity import require_intact, write_checksums
from nystromformer_jax.training.mesh import replicated
from nystromformer_jax.training.spec import with_sharding
from nystromformer_jax.training.train_step import Sums, TrainState


@dataclasses.dataclass
class Record:
    """The state of a run besides its arrays; saved as JSON with every checkpoint."""

    best_step: int = 0  # 0: nothing evaluated yet
    best_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    evaluated_step: int = 0
    metrics_bytes: int = 0  # size of metrics.jsonl; later lines belong to later states
    train_seconds: float = 0.0  # of fit, with evaluation and saving, over all processes in turn
    timed_steps: int = 0  # without the first step of a process, which compiles
    timed_seconds: float = 0.0
    input_seconds: float = 0.0  # part of timed_seconds spent on waiting for and sharding batches


class Checkpointer:
    """Saves and restores under `folder`; leaving the `with` block waits for a save in progress."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        """Opens `folder`; unless `read_only`, removes the leftovers of a killed save."""
        self._folder = folder.absolute()
        self._saving = 0  # the step that is being written
        self._last: set[int] = set()  # the latest step and its best step
        self._kept: set[int] = set()  # these, and the same of the save before
        self._manager = ocp.CheckpointManager(
            self._folder,
            item_names=("params", "optimizer", "totals", "record"),
            options=ocp.CheckpointManagerOptions(read_only=True)
            if read_only
            else ocp.CheckpointManagerOptions(
                preservation_policy=_Keep(lambda: self._kept),
                cleanup_tmp_directories=True,
                enable_async_checkpointing=True,
                async_options=ocp.AsyncOptions(post_finalization_callback=self._write_checksums),
            ),
        )

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # A save in progress needs every process; after an error one of them may be gone.
        if kind is None or jax.process_count() == 1:
            self._manager.close()

    def steps(self) -> list[int]:
        """Returns the steps that can be restored, in order."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: TrainState, metric_sums: Sums, record: Record) -> None:
        """Starts a save in the background, after the one before; an existing step is kept."""
        if step in self._manager.all_steps():
            return
        self.wait()
        self._saving = step
        self._kept, self._last = self._last, {step, record.best_step}
        self._kept |= self._last
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(state.params),
                optimizer=ocp.args.StandardSave({"step": state.step, "opt_state": state.opt_state}),
                totals=ocp.args.StandardSave(metric_sums),
                record=ocp.args.JsonSave(dataclasses.asdict(record)),
            ),
        )

    def wait(self) -> None:
        """Waits until the save in progress is complete."""
        self._manager.wait_until_finished()

    def restore(
        self, step: int, state: TrainState, metric_sums: Sums, mesh: Mesh, shardings: TrainState
    ) -> tuple[TrainState, Sums, Record]:
        """Reads a step onto `mesh`, from whatever mesh and hosts it was written on.

        `state` and `metric_sums` are their `jax.eval_shape`, `shardings` those of the state on `mesh`.
        """
        shapes = with_sharding(state, shardings)
        optimizer = {"step": shapes.step, "opt_state": shapes.opt_state}
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(shapes.params),
                optimizer=ocp.args.StandardRestore(optimizer),
                totals=ocp.args.StandardRestore(with_sharding(metric_sums, replicated(mesh))),
                record=ocp.args.JsonRestore(),
            ),
        )
        record = Record(**restored.record)
        self._last = {step, record.best_step}
        return TrainState(params=restored.params, **restored.optimizer), restored.totals, record

    def restore_params(self, step: int, params: Any, mesh: Mesh) -> Any:
        """Reads the parameters alone."""
        shapes = with_sharding(params, replicated(mesh))
        args = ocp.args.Composite(params=ocp.args.StandardRestore(shapes))
        return self._manager.restore(step, args=args).params

    def _write_checksums(self) -> None:
        """Runs after every process has written its files, before their folder gets its final name."""
        (folder,) = self._folder.glob(f"{self._saving}.orbax-checkpoint-tmp*")
        write_checksums(folder)


def load_params(folder: Path, step: int, make_params: Callable[[], Any], mesh: Mesh) -> Any:
    """Returns the parameters that a run saved at `step`, with the shapes of `make_params()`.

    Raises:
        FileNotFoundError: `folder` has no such step.
        CheckpointDamaged: The step's files differ from what was written.
    """
    with Checkpointer(folder, read_only=True) as checkpointer:
        if step not in checkpointer.steps():
            saved = ", ".join(map(str, checkpointer.steps())) or "none"
            raise FileNotFoundError(f"no checkpoint of step {step} under {folder}; there: {saved}.")
        require_intact(folder, step)
        return checkpointer.restore_params(step, jax.eval_shape(make_params), mesh)


class _Keep(preservation_policy.PreservationPolicy):
    """Keeps the steps that the checkpointer returns when Orbax asks."""

    def __init__(self, steps: Callable[[], Collection[int]]) -> None:
        self._steps = steps

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        kept = self._steps()
        return [checkpoint.step in kept for checkpoint in checkpoints]
