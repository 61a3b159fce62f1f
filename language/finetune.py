"""Fine-tuning on GLUE and IMDb: a sequence classifier on top of a pretrained model."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.sharding import Mesh

from harness import cache
from harness.whole_files import write_whole
from language import glue
from language.glue import EncodedSplit, GlueConfig, GlueData, GlueTask
from language.initial import (
    InitConfig,
    check_tokenizer,
    model_config,
    read_params,
    require_packages,
)
from language.tokenizer import Tokenizer
from nystromformer_jax import NystromformerForSequenceClassification
from nystromformer_jax.export import export_model
from nystromformer_jax.pretrained import save_pretrained
from nystromformer_jax.training import (
    CheckpointConfig,
    EvalConfig,
    EvalStep,
    Examples,
    FitConfig,
    Job,
    LogConfig,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
    Workdir,
    agreed,
    apply_model,
    check_length,
    fit,
    is_first,
    load_params,
    make_mesh,
    on_mesh,
    read_sections,
    replicated,
    score,
    sequence_axis,
    weighted,
    writing_to,
)
from nystromformer_jax.typing import Array

PATHS = ("data.dir", "data.workers")
Logits = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """The section "train": how long to train, counted in passes over the training set.

    Args:
      epochs: passes; the last step is rounded up. Less than one pass counts as partial.
      total_steps: where it is not 0, steps instead of passes; fewer than those count as partial.
      batch_size: examples of one update.
      seed: of order, dropout, and parameters that the checkpoint lacks.
      accumulation: parts that a batch is computed in.
      remat: whether a layer's insides are computed again for the gradient.
    """

    epochs: float
    batch_size: int
    total_steps: int = 0
    seed: int = 0
    accumulation: int = 1
    remat: bool = False

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise ValueError(f"train.epochs: needs a positive number, got {self.epochs}.")
        if self.total_steps < 0:
            raise ValueError(f"train.total_steps: needs 0 or more, got {self.total_steps}.")
        self.over(1)  # for its errors

    def over(self, examples: int) -> TrainConfig:
        """In steps, for so many training examples."""
        steps = self.total_steps or math.ceil(self.epochs * examples / max(self.batch_size, 1))
        return TrainConfig(
            total_steps=steps,
            batch_size=self.batch_size,
            seed=self.seed,
            accumulation=self.accumulation,
            remat=self.remat,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateConfig:
    """The section "optimizer": AdamW with a warm-up that is a share of the steps, at most half of them."""

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
        self.over(1)  # for its errors

    def over(self, total_steps: int) -> OptimizerConfig:
        """In steps, down to zero in a straight line."""
        values = dataclasses.asdict(self)
        warmup_steps = round(values.pop("warmup_share") * total_steps)
        return OptimizerConfig(schedule="linear", warmup_steps=warmup_steps, **values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringConfig:
    """The section "eval": when and on what to evaluate; the last step always is."""

    every_steps: int = 0  # 0: once an epoch
    max_examples: int = 0  # 0: all
    batch_size: int = 0  # 0: train.batch_size

    def __post_init__(self) -> None:
        if self.every_steps < 0:
            raise ValueError(f"eval.every_steps: needs 0 or more, got {self.every_steps}.")
        self.over(1)

    def over(self, epoch_steps: int) -> EvalConfig:
        """In steps."""
        return EvalConfig(
            every_steps=self.every_steps or max(epoch_steps, 1),
            max_examples=self.max_examples,
            batch_size=self.batch_size,
        )


SECTIONS: dict[str, type] = {
    "data": GlueConfig,
    "init": InitConfig,
    "optimizer": RateConfig,
    "train": BudgetConfig,
    "eval": ScoringConfig,
    "mesh": MeshConfig,
    "checkpoint": CheckpointConfig,
    "log": LogConfig,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A config whose every value was checked, the mesh it runs on and the model it describes."""

    config: Mapping[str, Any]  # as it came: plain sections, for `config.json`
    data: GlueConfig
    init: InitConfig
    sections: Mapping[str, Any]
    mesh: Mesh
    model: NystromformerForSequenceClassification

    def fit_config(self, examples: int) -> FitConfig:
        """The loop's sections, for so many training examples."""
        sections = self.sections
        train: TrainConfig = sections["train"].over(examples)
        return FitConfig(
            train=train,
            optimizer=sections["optimizer"].over(train.total_steps),
            eval=sections["eval"].over(math.ceil(examples / train.batch_size)),
            mesh=sections["mesh"],
            checkpoint=sections["checkpoint"],
            log=sections["log"],
        )


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Run:
    """Checks a config before anything is prepared, written or compiled.

    Args:
      config: Sections of plain values.
      devices: What to lay the mesh out on; None: all there are.

    Raises:
      ValueError: One sentence that names the section and key, what came and what is known.
      FileNotFoundError: There is no checkpoint.
      ImportError: A package of the extra `language` is not installed.
    """
    require_packages()
    sections = read_sections(config, SECTIONS, plain=["model", "attention"])
    data, init = sections["data"], sections["init"]
    if not init.checkpoint:
        raise ValueError(
            "init.checkpoint: needs the folder of a pretrained model with its tokenizer, such as the"
            " model/ of a pretraining run, or a Hugging Face folder. init.from_scratch=True takes its"
            " sizes alone."
        )
    task = glue.TASKS[data.task]
    description = model_config(
        config["model"], config["attention"], init, num_labels=task.num_labels
    )
    if data.max_len > description.max_len:
        raise ValueError(
            f"data.max_len={data.max_len} is more than the {description.max_len} positions of"
            f" {init.checkpoint}: lower it."
        )
    mesh = make_mesh(sections["mesh"], devices)
    description = dataclasses.replace(
        description, sequence_axis=sequence_axis(mesh), remat=sections["train"].remat
    )
    run = Run(
        config, data, init, sections, mesh, NystromformerForSequenceClassification(description)
    )
    run.fit_config(1).check_batches(mesh)
    check_length(mesh, data.max_len, "data.max_len")
    jax.eval_shape(_make_params(run))  # for the model's own errors
    return run


def is_partial(run: Run, data: GlueData) -> bool:
    """Whether a run sees or scores fewer examples than the task has, or trains fewer steps than due."""
    counts = {name: len(split) for name, split in data.splits.items()}
    fewer_there = not all(data.task.has_all(name, counts[name]) for name in data.task.sizes)
    train_count = counts.pop("train")
    config = run.fit_config(train_count)
    fewer_seen = config.train.total_steps * config.train.batch_size < train_count
    fewer_scored = any(config.eval.scored(count) < count for count in counts.values())
    epochs = dataclasses.replace(run.sections["train"], total_steps=0).over(train_count)
    fewer_steps = config.train.total_steps < epochs.total_steps
    return fewer_there or fewer_seen or fewer_scored or fewer_steps


def train(run: Run, data: GlueData, tokenizer: Tokenizer, workdir: Workdir) -> dict[str, Any]:
    """Trains, or goes on; then scores the best checkpoint, and writes model and predictions.

    Returns:
      What `result.json` holds. A finished run's is returned as it is, and nothing is trained.
    """
    workdir.require_data(data.sha256)
    if workdir.result is not None:
        return workdir.result
    config = run.model.config
    check_tokenizer(tokenizer, config)
    fit_config = run.fit_config(len(data.splits["train"]))
    make_params = _make_params(run)
    eval_step = make_logits_step(run.model, run.mesh)

    start_params = None
    if run.init.reads_weights and not workdir.has_checkpoints:
        seed = fit_config.train.seed
        start_params = read_params(run.init, config, NystromformerForSequenceClassification, seed)
    outcome = fit(
        workdir,
        fit_config,
        mesh=run.mesh,
        make_params=make_params,
        start_params=start_params,
        loss_fn=make_loss(run.model, data.task),
        eval_step=eval_step,
        training=_examples(run, data.splits["train"]),
        validation=_examples(run, data.splits["valid"]),
        select=data.task.select_by,
        summarize=lambda batches: _scores(data.task, *_joined(batches)),
    )
    params = load_params(workdir.checkpoints, outcome.best_step, make_params, run.mesh)
    unchanged = functools.partial(cache.require_unchanged, data.folder, data.sha256)
    workdir.require_unchanged(unchanged)
    saved = workdir.path / "model"
    predictions = workdir.path / "predictions" if is_first() else None
    with agreed(), writing_to(workdir.path):
        if is_first():
            save_pretrained(saved, run.model, {"params": params}, more=tokenizer.token_ids)
            tokenizer.save(saved, config.max_len)
    with writing_to(workdir.path):
        scores = _score_all(run, data, fit_config, eval_step, params, predictions)
    result = {
        "kind": "glue",
        "task": data.task.name,
        "attention": config.attention,
        "init": run.init.checkpoint,
        "from_scratch": run.init.from_scratch,
        "seed": fit_config.train.seed,
        **scores,
        "best_step": outcome.best_step,
        "total_steps": fit_config.train.total_steps,
        "train_examples": len(data.splits["train"]),
        "batch_size": fit_config.train.batch_size,
        "learning_rate": fit_config.optimizer.learning_rate,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        **outcome.cost,
        **workdir.environment,
        "config_sha256": workdir.config_sha256,
        "data_sha256": data.sha256,
        "partial": is_partial(run, data),
    }
    workdir.require_unchanged(unchanged)
    workdir.write_result(result)
    return result


def score_again(run: Run, data: GlueData, workdir: Workdir) -> dict[str, Any]:
    """Scores a finished run's best checkpoint again; writes nothing.

    Raises:
      NotFinished: The run's best checkpoint is not known yet.
    """
    result = workdir.require_result()
    workdir.require_data(data.sha256)
    params = _best_params(run, workdir)
    fit_config = run.fit_config(len(data.splits["train"]))
    eval_step = make_logits_step(run.model, run.mesh)
    return {**result, **_score_all(run, data, fit_config, eval_step, params, folder=None)}


def write_export(run: Run, workdir: Workdir) -> Path:
    """Writes a finished run's model as one file for jax alone; see `nystromformer_jax.export`.

    Of several processes the first one writes.

    Raises:
      NotFinished: The run's best checkpoint is not known yet.
      CannotWrite: A full disk, or a read-only folder.
    """
    workdir.require_result()
    params = _best_params(run, workdir)
    file = workdir.path / "model.jax_export"
    with agreed(), writing_to(workdir.path):
        if is_first():
            whole = dataclasses.replace(run.model.config, sequence_axis=None)  # for one device
            model = NystromformerForSequenceClassification(whole)
            variables = {"params": jax.device_get(params)}
            exported = export_model(model, variables, length=run.data.max_len)
            write_whole(file, exported.serialize())
    return file


def job(run: Run, examples: int) -> Job:
    """The training step of a run on so many training examples."""
    tokens = jax.ShapeDtypeStruct((run.data.max_len,), jnp.int32)
    task = glue.TASKS[run.data.task]
    label = jax.ShapeDtypeStruct((), jnp.float32 if task.is_regression else jnp.int32)
    return Job(
        config=run.fit_config(examples),
        mesh=run.mesh,
        make_params=_make_params(run),
        loss_fn=make_loss(run.model, task),
        row={
            "inputs": tokens,
            "mask": jax.ShapeDtypeStruct(tokens.shape, bool),
            "types": tokens,
            "labels": label,
        },
    )


def make_loss(model: NystromformerForSequenceClassification, task: GlueTask) -> Any:
    """The loop's loss: cross-entropy, or the squared error of a regression."""

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        logits = _logits(model, params, batch, dropout_rng)
        labels, weights = batch["labels"], batch["weights"]
        if task.is_regression:
            sums = {"loss": weighted(jnp.square(logits[:, 0] - labels), weights)}
        else:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            right = logits.argmax(axis=-1) == labels
            sums = {"loss": weighted(losses, weights), "accuracy": weighted(right, weights)}
        return sums["loss"][0], sums

    return loss_fn


def make_logits_step(model: NystromformerForSequenceClassification, mesh: Mesh) -> EvalStep:
    """Compiles `(params, batch) -> {"logits", "labels", "weights"}`."""

    def logits_step(params: Any, batch: dict[str, Any]) -> dict[str, Array]:
        logits = _logits(model, params, batch, None)
        return {"logits": logits, "labels": batch["labels"], "weights": batch["weights"]}

    return jax.jit(on_mesh(logits_step, mesh), out_shardings=replicated(mesh))


def sentence(result: Mapping[str, Any]) -> str:
    """What a run has come to, in one sentence."""
    parts = []
    for split in ("valid", "test"):
        if result.get(split):
            values = ", ".join(_with_error(result, split, name) for name in result[split])
            parts.append(f"{split} {values} ({result[f'{split}_examples']:,} examples)")
    return f"{result['task']}: {'; '.join(parts)}, at step {result['best_step']:,}."


def best_of(results: Mapping[Path, Mapping[str, Any]]) -> str:
    """Which of several runs of a task is the best on validation (the first of equals), in a sentence."""
    metric = glue.TASKS[next(iter(results.values()))["task"]].select_by
    best = max(results, key=lambda folder: results[folder]["valid"][metric])
    chosen = results[best]
    return (
        f"Best of {len(results)} by validation {metric}: batch {chosen['batch_size']}, rate"
        f" {chosen['learning_rate']:g}, in {best}. {sentence(chosen)}"
    )


def _with_error(result: Mapping[str, Any], split: str, name: str) -> str:
    error = result[f"{split}_standard_error"].get(name)
    value = f"{name} {100 * result[split][name]:.2f}"
    return value if error is None else f"{value} ± {100 * error:.2f}"


def _logits(
    model: NystromformerForSequenceClassification,
    params: Any,
    batch: Mapping[str, Array],
    dropout_rng: Array | None,
) -> Array:
    inputs = (batch["inputs"], batch["mask"], batch["types"])
    return cast(Array, apply_model(model, params, dropout_rng, *inputs))


def _make_params(run: Run) -> Callable[[], Any]:
    tokens = jnp.zeros((1, run.data.max_len), jnp.int32)
    seed = run.sections["train"].seed
    return lambda: run.model.init(jax.random.key(seed), tokens, deterministic=True)["params"]


def _best_params(run: Run, workdir: Workdir) -> Any:
    best_step = workdir.require_result()["best_step"]
    return load_params(workdir.checkpoints, best_step, _make_params(run), run.mesh)


def _examples(run: Run, split: EncodedSplit) -> Examples:
    return Examples(len(split), lambda indices: split.batch(indices, run.data.max_len))


def _joined(batches: list[Any]) -> tuple[Logits, npt.NDArray[Any]]:
    """Logits and labels of all rows that count."""
    logits, labels, weights = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("logits", "labels", "weights")
    )
    return logits[weights > 0], labels[weights > 0]


def _scores(task: GlueTask, logits: Logits, labels: npt.NDArray[Any]) -> dict[str, float]:
    """The task's metrics, and the loss."""
    if task.is_regression:
        loss = float(np.square(logits[:, 0] - labels).mean())
    else:
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(axis=-1))
        loss = float((log_sum - shifted[np.arange(len(labels)), labels]).mean())
    return {**glue.score(task, glue.predictions(task, logits), labels), "loss": loss}


def _score_all(
    run: Run,
    data: GlueData,
    fit_config: FitConfig,
    eval_step: EvalStep,
    params: Any,
    folder: Path | None,
) -> dict[str, Any]:
    """Scores every split that has labels, and writes the predictions of all but training."""
    results: dict[str, Any] = {}
    for name, split in data.splits.items():
        if name == "train":
            continue
        logging.getLogger(__name__).info("Predicting the %s set.", name)
        logits, _ = score(eval_step, params, _examples(run, split), fit_config, run.mesh, _joined)
        predictions = glue.predictions(data.task, logits)
        count = len(predictions)
        labels = None if split.labels is None else split.labels[:count]
        if labels is not None:
            results[name] = glue.score(data.task, predictions, labels)
            results[f"{name}_standard_error"] = glue.standard_error(data.task, predictions, labels)
            results[f"{name}_examples"] = count
        if folder is not None:
            ids = split.ids[:count]
            glue.write_predictions(data.task, name, ids, predictions, folder, labels=labels)
    return results
