"""One run of the benchmark: config, task, model, the loop, and what it leaves behind."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from harness import cache
from lra import data
from lra.data import DataConfig, PairSplit, Split, Task
from lra.data.baselines import baselines
from lra.models import Classifier, DualEncoder, ModelConfig
from nystromformer_jax import make_core
from nystromformer_jax.cores import CORES
from nystromformer_jax.spelling import nearest
from nystromformer_jax.training import (
    CheckpointConfig,
    EvalConfig,
    Examples,
    FitConfig,
    Job,
    LogConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
    Workdir,
    apply_model,
    check_length,
    fit,
    from_mapping,
    load_params,
    make_eval_step,
    make_mesh,
    read_sections,
    score,
    sequence_axis,
    weighted,
)
from nystromformer_jax.typing import Array

SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "eval": EvalConfig,
    "mesh": MeshConfig,
    "checkpoint": CheckpointConfig,
    "log": LogConfig,
}
PATHS = ("data.dir", "data.workers")  # the data are the same for any number of processes


@dataclasses.dataclass(frozen=True)
class Run:
    """A config whose every value was checked, the mesh it runs on and the model it describes."""

    config: Mapping[str, Any]  # as it came: plain sections, for `config.json`
    data: DataConfig
    fit: FitConfig
    mesh: Mesh
    attention: str
    model: Classifier | DualEncoder


def is_partial(run: Run, task: Task) -> bool:
    """Whether a run sees or scores fewer examples than the benchmark has, or trains fewer steps."""
    info = data.describe(task.name)
    fewer_scored = any(
        _scored(run, task, name) < len(task.splits[name]) for name in ("valid", "test")
    )
    train = run.fit.train
    fewer_steps = train.total_steps < (train.budget_steps or info.total_steps)
    return not info.has_all(task) or fewer_scored or fewer_steps


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Run:
    """Checks a config before anything is prepared, written or compiled.

    Args:
      config: Sections of plain values.
      devices: What to lay the mesh out on; None: all there are.

    Raises:
      ValueError: One sentence that names the section and key, what came and what is known.
    """
    sections = read_sections(config, SECTIONS, plain=["attention"])
    data_config, model_config = sections["data"], sections["model"]
    task = data.describe(data_config.task)
    if task.vocab_size > model_config.vocab_size:
        raise ValueError(
            f"model.vocab_size={model_config.vocab_size} is too small: {data_config.task} has"
            f" {task.vocab_size} token ids."
        )
    length = data_config.padding.padded_len
    if length > model_config.max_len:
        name = "padded_len" if data_config.padded_len else "max_len"
        raise ValueError(
            f"model.max_len={model_config.max_len} has no position for tokens up to"
            f" data.{name}={length}: raise the one or lower the other."
        )
    fit_config = FitConfig.of(sections)
    options = dict(config["attention"])
    attention = options.pop("name", None)
    if attention not in CORES:
        raise ValueError(
            f"attention.name: {attention!r} is unknown{nearest(str(attention), CORES)}"
        )
    if "seed" in {field.name for field in dataclasses.fields(CORES[attention])}:
        options.setdefault("seed", fit_config.train.seed)  # of what it samples once
    from_mapping(CORES[attention], options, "attention")  # for its errors
    mesh = make_mesh(sections["mesh"], devices)
    if attention == "nystrom":  # the others' lengths are the compiler's to split
        options["sequence_axis"] = sequence_axis(mesh)
    kind = DualEncoder if task.pairs else Classifier
    core = make_core(attention, **options)
    model = kind(model_config, core, task.num_classes, remat=fit_config.train.remat)
    fit_config.check_batches(mesh)
    check_length(mesh, length, "data.padded_len" if data_config.padded_len else "data.max_len")
    # Traced, not compiled: what the model itself refuses (an even kernel, say) it refuses here.
    jax.eval_shape(lambda: _init(model, length))
    return Run(config, data_config, fit_config, mesh, attention, model)


def train(run: Run, task: Task, workdir: Workdir) -> dict[str, Any]:
    """Trains, or goes on; then scores the best checkpoint on the test set, once.

    Returns:
      What `result.json` holds. A finished run's is returned as it is, and nothing is trained.
    """
    workdir.require_data(task.sha256)
    if workdir.result is not None:
        return workdir.result
    init = make_params(run)
    loss_fn = make_loss(run.model)
    eval_step = make_eval_step(loss_fn, run.mesh)
    outcome = fit(
        workdir,
        run.fit,
        mesh=run.mesh,
        make_params=init,
        loss_fn=loss_fn,
        eval_step=eval_step,
        training=_examples(run, task.splits["train"]),
        validation=_examples(run, task.splits["valid"]),
    )
    params = load_params(workdir.checkpoints, outcome.best_step, init, run.mesh)
    test = _score(run, task, "test", eval_step, params)
    result = {
        "task": task.name,
        "attention": run.attention,
        "seed": run.fit.train.seed,
        "test_accuracy": test["accuracy"],
        "test_examples": _scored(run, task, "test"),
        "valid_accuracy": outcome.best_metrics["accuracy"],
        "best_step": outcome.best_step,
        "total_steps": run.fit.train.total_steps,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        **outcome.cost,
        **workdir.environment,
        "config_sha256": workdir.config_sha256,
        "data_sha256": task.sha256,
        "baselines": baselines(task),
        "partial": is_partial(run, task),
    }
    workdir.require_unchanged(lambda: cache.require_unchanged(task.folder, task.sha256))
    workdir.write_result(result)
    return result


def score_again(run: Run, task: Task, workdir: Workdir) -> dict[str, Any]:
    """Scores a finished run's best checkpoint on the validation and the test set; writes nothing.

    Raises:
      NotFinished: The run's best checkpoint is not known yet.
    """
    result = workdir.require_result()
    workdir.require_data(task.sha256)
    best_step = result["best_step"]
    params = load_params(workdir.checkpoints, best_step, make_params(run), run.mesh)
    eval_step = make_eval_step(make_loss(run.model), run.mesh)
    scores = {name: _score(run, task, name, eval_step, params) for name in ("valid", "test")}
    return {
        "task": task.name,
        "attention": run.attention,
        "best_step": best_step,
        "valid_accuracy": scores["valid"]["accuracy"],
        "test_accuracy": scores["test"]["accuracy"],
        "test_examples": _scored(run, task, "test"),
    }


def job(run: Run) -> Job:
    """The training step of a run, for which no data are needed."""
    length = run.data.padding.padded_len
    row = {
        key: jax.ShapeDtypeStruct((length,), bool if key.startswith("mask") else jnp.int32)
        for key in run.model.batch_keys
    }
    return Job(
        config=run.fit,
        mesh=run.mesh,
        make_params=make_params(run),
        loss_fn=make_loss(run.model),
        row={**row, "labels": jax.ShapeDtypeStruct((), jnp.int32)},
    )


def make_loss(model: Classifier | DualEncoder) -> Any:
    """The loop's loss: summed cross-entropy, with loss and accuracy as sums and denominators."""

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        inputs = (batch[key] for key in model.batch_keys)
        logits = apply_model(model, params, dropout_rng, *inputs).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        sums = {
            "loss": weighted(losses, batch["weights"]),
            "accuracy": weighted(logits.argmax(axis=-1) == batch["labels"], batch["weights"]),
        }
        return sums["loss"][0], sums

    return loss_fn


def _init(model: Classifier | DualEncoder, length: int, seed: int = 0) -> Any:
    inputs = jnp.zeros((1, length), jnp.int32)
    mask = jnp.ones((1, length), bool)
    texts = (inputs, mask) * (len(model.batch_keys) // 2)
    return model.init(jax.random.key(seed), *texts, deterministic=True)["params"]


def make_params(run: Run) -> Callable[[], Any]:
    """Makes the initial parameters of a run, from its seed."""
    return lambda: _init(run.model, run.data.padding.padded_len, run.fit.train.seed)


def _examples(run: Run, split: Split | PairSplit) -> Examples:
    return Examples(len(split), lambda indices: split.batch(indices, run.data.padding))


def _scored(run: Run, task: Task, split: str) -> int:
    """How many examples of a split are scored."""
    return run.fit.eval.scored(len(task.splits[split]))


def _score(run: Run, task: Task, split: str, eval_step: Any, params: Any) -> dict[str, float]:
    """Scores all of a split; a signal ends it, and the same command does it again.

    Raises:
      Interrupted: SIGTERM or Ctrl-C.
    """
    logging.getLogger(__name__).info("Scoring the %s set.", split)
    return score(eval_step, params, _examples(run, task.splits[split]), run.fit, run.mesh)
