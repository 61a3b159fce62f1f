"""Checkpoints: the latest two and the best of each, through Orbax.

One folder per step. A step's folder gets its name by one rename when all of it is written, hashes of
its files included, and an older one is deleted only after that, so a kill at any moment leaves a whole
checkpoint. A damaged one is found by its hashes, and the one before it is there to go on from.
"""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from orbax.checkpoint.checkpoint_managers import preservation_policy

from nystromformer_jax.training.integrity import require_whole, seal
from nystromformer_jax.training.mesh import replicated
from nystromformer_jax.training.metrics import Sums
from nystromformer_jax.training.train_step import TrainState

__all__ = ["CheckpointConfig", "Checkpointer", "Record", "load_params"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save, beside every evaluation and the end."""

    every_steps: int = 500

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ValueError(
                f"checkpoint.every_steps: needs a positive number, got {self.every_steps}."
            )


@dataclasses.dataclass
class Record:
    """What a run knows beside its arrays; saved as JSON with every checkpoint."""

    best_step: int = 0  # 0: nothing evaluated yet
    best_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    evaluated_step: int = 0
    metrics_bytes: int = 0  # the size of metrics.jsonl; what lies behind it is not of this state
    train_seconds: float = 0.0  # all of fit, evaluation and saving included, over all its processes
    timed_steps: int = 0  # steps whose time was taken, a process's first (compilation) left out
    timed_seconds: float = 0.0
    input_seconds: float = 0.0  # of the timed ones, spent waiting for and placing batches


class Checkpointer:
    """Saves and restores under `folder`; leaving the `with` block waits for a save in progress."""

    def __init__(self, folder: Path) -> None:
        """Opens `folder`; leftovers of a save that was killed are removed."""
        self._folder = folder.absolute()
        self._saving = 0  # the step that is being written
        self._last: set[int] = set()  # the latest step and the one that it names as best
        self._kept: set[int] = set()  # these, and the same of the step before
        self._manager = ocp.CheckpointManager(
            self._folder,
            item_names=("params", "optimizer", "totals", "record"),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=_Keep(lambda: self._kept),
                cleanup_tmp_directories=True,
                enable_async_checkpointing=True,
                async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
            ),
        )

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        # A save that is in progress needs every process; after an error one of them may be gone.
        if kind is None or jax.process_count() == 1:
            self._manager.close()

    def steps(self) -> list[int]:
        """The steps that can be restored, in order."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: TrainState, totals: Sums, record: Record) -> None:
        """Starts a save in the background, when the one before is done; an existing step stays."""
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
                totals=ocp.args.StandardSave(totals),
                record=ocp.args.JsonSave(dataclasses.asdict(record)),
            ),
        )

    def wait(self) -> None:
        """Returns when the save in progress is whole."""
        self._manager.wait_until_finished()

    def restore(
        self, step: int, state: TrainState, totals: Sums, mesh: Mesh, lies: TrainState
    ) -> tuple[TrainState, Sums, Record]:
        """Reads a step onto `mesh`, whatever mesh and however many hosts wrote it.

        Args:
            step: Which.
            state: Its `jax.eval_shape`.
            totals: The same of the sums.
            mesh: Where to.
            lies: The shardings of the state there.
        """
        shapes = jax.tree.map(_placed, state, lies)
        optimizer = {"step": shapes.step, "opt_state": shapes.opt_state}
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(shapes.params),
                optimizer=ocp.args.StandardRestore(optimizer),
                totals=ocp.args.StandardRestore(_on(mesh, totals)),
                record=ocp.args.JsonRestore(),
            ),
        )
        record = Record(**restored.record)
        self._last = {step, record.best_step}
        return TrainState(params=restored.params, **restored.optimizer), restored.totals, record

    def _seal(self) -> None:
        """Called when every process has written its files, before their folder gets its name."""
        (folder,) = self._folder.glob(f"{self._saving}.orbax-checkpoint-tmp*")
        seal(folder)

    def restore_params(self, step: int, params: Any, mesh: Mesh) -> Any:
        """Reads the parameters alone."""
        args = ocp.args.Composite(params=ocp.args.StandardRestore(_on(mesh, params)))
        return self._manager.restore(step, args=args).params


def load_params(folder: Path, step: int, make_params: Callable[[], Any], mesh: Mesh) -> Any:
    """The parameters that a run saved at `step`, shaped as `make_params` makes them.

    Raises:
        FileNotFoundError: `folder` holds no such step.
        CheckpointDamaged: it is not what was saved.
    """
    with Checkpointer(folder) as checkpointer:
        if step not in checkpointer.steps():
            there = ", ".join(map(str, checkpointer.steps())) or "none"
            raise FileNotFoundError(f"no checkpoint of step {step} under {folder}; there: {there}.")
        require_whole(folder, step)
        return checkpointer.restore_params(step, jax.eval_shape(make_params), mesh)


class _Keep(preservation_policy.PreservationPolicy):
    """Keeps the steps that the checkpointer names when Orbax asks."""

    def __init__(self, steps: Callable[[], Collection[int]]) -> None:
        self._steps = steps

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        kept = self._steps()
        return [checkpoint.step in kept for checkpoint in checkpoints]


def _on(mesh: Mesh, tree: Any) -> Any:
    """`tree` of shapes, to be restored whole on every device of `mesh`."""
    return jax.tree.map(lambda leaf: _placed(leaf, replicated(mesh)), tree)


def _placed(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
