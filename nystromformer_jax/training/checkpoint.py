"""Saves and restores Orbax checkpoints.

The folder keeps the two latest checkpoints, and for each the best checkpoint up to that step. A checkpoint's
folder gets its final name after all files and checksums are written. Older checkpoints are deleted only then,
so a killed run always has an intact checkpoint. Checksums detect a damaged checkpoint, and the run then
resumes from an earlier one.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.sharding import Mesh
from orbax.checkpoint.checkpoint_managers import preservation_policy

from nystromformer_jax.training.integrity import require_intact, saved_steps, write_checksums
from nystromformer_jax.training.mesh import replicated
from nystromformer_jax.training.spec import with_sharding
from nystromformer_jax.training.train_step import Sums, TrainState

# Orbax's errors for a saved tree with other keys, kinds of leaves or shapes than the target.
_OTHER_STRUCTURE = re.compile(
    "structures do not match|Structure mismatch|not compatible with the stored"
)


@dataclasses.dataclass
class Record:
    """Training progress that is saved as JSON with every checkpoint, besides the arrays."""

    best_step: int = 0  # 0: nothing evaluated yet
    best_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    best_examples: int = 0  # number of examples of the best evaluation; 0: not recorded
    evaluated_step: int = 0
    stale_evaluations: int = 0  # number of evaluations since the best one
    metrics_bytes: int = 0  # size of metrics.jsonl at this step; a resume truncates it
    train_seconds: float = 0.0  # time in `fit`, with evaluation and saving, summed over resumes
    timed_steps: int = 0  # excludes the first step after each start, which compiles
    timed_seconds: float = 0.0
    input_seconds: float = 0.0  # part of timed_seconds spent on waiting for and sharding batches


class Checkpointer:
    """Saves and restores checkpoints in `folder`; leaving the `with` block waits for a pending save."""

    def __init__(self, folder: Path) -> None:
        """Opens `folder` and deletes incomplete checkpoints."""
        self._folder = folder.absolute()
        self._saving = 0  # the step that is being written
        self._last: set[int] = set()  # the latest step, and the best step at that time
        self._kept: set[int] = set()  # `_last`, and its value at the previous save
        self._manager = ocp.CheckpointManager(
            self._folder,
            item_names=("params", "optimizer", "totals", "record"),
            options=ocp.CheckpointManagerOptions(
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

    def save(self, step: int, state: TrainState, metric_sums: Sums, record: Record) -> None:
        """Saves a step in the background after any pending save."""
        self.wait()
        self._saving = step
        self._kept, self._last = self._last, {step, record.best_step}
        self._kept |= self._last
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(_one_replica(state.params)),
                optimizer=ocp.args.StandardSave(
                    _one_replica({"step": state.step, "opt_state": state.opt_state})
                ),
                totals=ocp.args.StandardSave(_one_replica(metric_sums)),
                record=ocp.args.JsonSave(dataclasses.asdict(record)),
            ),
        )

    def wait(self) -> None:
        """Waits until the save in progress is complete."""
        self._manager.wait_until_finished()

    def restore(
        self, step: int, state: TrainState, metric_sums: Sums, mesh: Mesh, shardings: TrainState
    ) -> tuple[TrainState, Sums, Record]:
        """Restores a step onto `mesh`, which may differ from the mesh and hosts that saved it.

        `state` and `metric_sums` hold shapes from `jax.eval_shape`. `shardings` is for the state.

        Raises:
          ValueError: The saved training state has a different structure.
        """
        shapes = with_sharding(state, shardings)
        optimizer = {"step": shapes.step, "opt_state": shapes.opt_state}
        args = ocp.args.Composite(
            params=ocp.args.StandardRestore(shapes.params),
            optimizer=ocp.args.StandardRestore(optimizer),
            totals=ocp.args.StandardRestore(with_sharding(metric_sums, replicated(mesh))),
            record=ocp.args.JsonRestore(),
        )
        try:
            restored = self._manager.restore(step, args=args)
        except ValueError as error:
            if not _OTHER_STRUCTURE.search(str(error)):
                raise
            raise ValueError(
                f"The checkpoint of step {step} in {self._folder} has a different training state: another"
                " version of this package or of optax saved it. Resume with that version, or train again"
                " in another --workdir."
            ) from error
        record = Record(**restored.record)
        self._last = {step, record.best_step}
        return TrainState(params=restored.params, **restored.optimizer), restored.totals, record

    def _write_checksums(self) -> None:
        """Writes checksums after every process has saved, before the folder gets its final name."""
        (folder,) = self._folder.glob(f"{self._saving}.orbax-checkpoint-tmp*")
        write_checksums(folder)


def load_params(folder: Path, step: int, make_params: Callable[[], Any], mesh: Mesh) -> Any:
    """Returns the parameters saved at `step`, with the shapes of `make_params()`.

    Raises:
      FileNotFoundError: `folder` has no such step.
      CheckpointDamaged: The files of the step do not match their checksums.
    """
    saved = saved_steps(folder)
    if step not in saved:
        raise FileNotFoundError(
            f"{folder} has no checkpoint of step {step}; saved steps:"
            f" {', '.join(map(str, saved)) or 'none'}."
        )
    require_intact(folder, step)
    shapes = with_sharding(jax.eval_shape(make_params), replicated(mesh))
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(folder.absolute() / str(step) / "params", shapes)


def _one_replica(tree: Any) -> Any:
    """Replaces replicated arrays with the copy on the first device, unless several processes save.

    Otherwise Orbax saves a slice from each device, and compiles a program per shape to take it.
    """
    if jax.process_count() > 1:
        return tree
    return jax.tree.map(lambda x: x.addressable_data(0) if x.is_fully_replicated else x, tree)


class _Keep(preservation_policy.PreservationPolicy):
    """Orbax policy that preserves the steps returned by `steps()`."""

    def __init__(self, steps: Callable[[], Collection[int]]) -> None:
        self._steps = steps

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        kept = self._steps()
        return [checkpoint.step in kept for checkpoint in checkpoints]
