"""Fine-tunes pretrained models with a classification head on GLUE and IMDb."""

import dataclasses
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

from dataprep import cache
from language import glue
from language.glue import EncodedSplit, GlueConfig, GlueData, GlueTask
from language.initial import (
    InitConfig,
    check_tokenizer,
    model_config,
    read_params,
    require_packages,
)
from language.tokenizer import Tokenizer, load_tokenizer
from nystromformer_jax import NystromformerForSequenceClassification, training
from nystromformer_jax.durable import write_bytes
from nystromformer_jax.export import export_model
from nystromformer_jax.pretrained import save_pretrained
from nystromformer_jax.typing import Array
from reporting.tables import format_spread

PATHS = ("data.dir", "data.workers")
Logits = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """The section "train": a `TrainConfig` with the budget in epochs, rounded up to full steps."""

    epochs: float  # a run with less than one epoch is partial
    batch_size: int
    total_steps: int = 0  # if not 0, replaces `epochs`; fewer steps than `epochs` are partial
    seed: int = 0
    accumulation: int = 1
    remat: bool = False

    def __post_init__(self) -> None:
        if not self.epochs > 0:
            raise ValueError(f"train.epochs: needs a positive number, got {self.epochs}.")
        if self.total_steps < 0:
            raise ValueError(f"train.total_steps: needs 0 or more, got {self.total_steps}.")
        self.in_steps(1)  # to validate the other fields

    def in_steps(self, examples: int) -> training.TrainConfig:
        """Returns the `TrainConfig` with the budget in steps for `examples` training examples."""
        values = dataclasses.asdict(self)
        passes = values.pop("epochs") * examples / max(self.batch_size, 1)
        values["total_steps"] = self.total_steps or math.ceil(passes)
        return training.TrainConfig(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateConfig:
    """The section "optimizer": AdamW, warm-up over a fraction of the steps, linear decay to zero."""

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
        self.in_steps(1)  # to validate the other fields

    def in_steps(self, total_steps: int) -> training.OptimizerConfig:
        """Returns the `OptimizerConfig` with the warm-up in steps."""
        values = dataclasses.asdict(self)
        warmup_steps = round(values.pop("warmup_share") * total_steps)
        return training.OptimizerConfig(schedule="linear", warmup_steps=warmup_steps, **values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringConfig:
    """The section "eval": an `EvalConfig` that evaluates once per epoch by default."""

    every_steps: int = 0  # 0: once per epoch
    max_examples: int = 0
    batch_size: int = 0

    def __post_init__(self) -> None:
        if self.every_steps < 0:
            raise ValueError(f"eval.every_steps: needs 0 or more, got {self.every_steps}.")
        self.in_steps(1)

    def in_steps(self, epoch_steps: int) -> training.EvalConfig:
        """Returns the `EvalConfig`; by default `every_steps` is `epoch_steps`."""
        every_steps = self.every_steps or max(epoch_steps, 1)
        return training.EvalConfig(**{**dataclasses.asdict(self), "every_steps": every_steps})


FINETUNING_SECTIONS = training.SECTIONS | {
    "data": GlueConfig,
    "init": InitConfig,
    "optimizer": RateConfig,
    "train": BudgetConfig,
    "eval": ScoringConfig,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A validated config with the mesh and the model."""

    config: Mapping[str, Any]  # plain sections, for `config.json`
    data: GlueConfig
    init: InitConfig
    sections: Mapping[str, Any]
    mesh: Mesh
    model: NystromformerForSequenceClassification

    def fit_config(self, examples: int) -> training.FitConfig:
        """Returns the config sections of the training loop for `examples` training examples."""
        train: training.TrainConfig = self.sections["train"].in_steps(examples)
        optimizer = self.sections["optimizer"].in_steps(train.total_steps)
        evaluation = self.sections["eval"].in_steps(math.ceil(examples / train.batch_size))
        steps = {"train": train, "optimizer": optimizer, "eval": evaluation}
        return training.FitConfig.from_sections({**self.sections, **steps})


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Run:
    """Validates a config and returns the run; nothing is prepared, written or compiled.

    `config` has sections of plain values. If `devices` is None, the mesh uses all devices.

    Raises:
      ValueError: A value is invalid; the message names the section and the key.
      FileNotFoundError: `init.checkpoint` does not exist.
      ImportError: A package of the extra `language` is not installed.
    """
    require_packages()
    sections = training.read_sections(config, FINETUNING_SECTIONS, plain=["model", "attention"])
    data, init = sections["data"], sections["init"]
    if not init.checkpoint:
        raise ValueError(
            "init.checkpoint: needs the folder of a pretrained model with its tokenizer, such as model/ in"
            " a pretraining run's folder, or a Hugging Face folder. init.from_scratch=True uses its sizes"
            " only."
        )
    mesh = training.make_mesh(sections["mesh"], devices)
    model = NystromformerForSequenceClassification(
        model_config(
            config,
            init,
            num_labels=glue.TASKS[data.task].num_labels,
            sequence_axis=training.sequence_axis(mesh),
            remat=sections["train"].remat,
        )
    )
    if data.max_len > model.config.max_len:
        raise ValueError(
            f"data.max_len={data.max_len} is more than the {model.config.max_len} positions of"
            f" {init.checkpoint}: lower it."
        )
    run = Run(config, data, init, sections, mesh, model)
    run.fit_config(1).check_batches(mesh)
    training.check_length(mesh, data.max_len, "data.max_len")
    jax.eval_shape(_make_params(run))  # to validate the model
    return run


def open_tokenizer(run: Run) -> Tokenizer:
    """Opens the tokenizer of the initial checkpoint.

    Raises:
      FileNotFoundError: The checkpoint has no tokenizer.
      ValueError: The tokenizer does not match the model of the checkpoint.
    """
    tokenizer = load_tokenizer(run.init.folder)
    check_tokenizer(tokenizer, run.model.config, run.init)
    return tokenizer


def is_partial(run: Run, data: GlueData) -> bool:
    """Returns True if a run uses only a part of the task's examples or of the steps of `epochs`."""
    counts = {name: len(split) for name, split in data.splits.items()}
    fewer_there = not all(data.task.has_all(name, counts[name]) for name in data.task.sizes)
    train_count = counts.pop("train")
    config = run.fit_config(train_count)
    fewer_seen = config.train.total_steps * config.train.batch_size < train_count
    fewer_scored = any(config.eval.scored(count) < count for count in counts.values())
    epochs = dataclasses.replace(run.sections["train"], total_steps=0).in_steps(train_count)
    fewer_steps = config.train.total_steps < epochs.total_steps
    return fewer_there or fewer_seen or fewer_scored or fewer_steps


def train(
    run: Run, data: GlueData, tokenizer: Tokenizer, workdir: training.Workdir
) -> dict[str, Any]:
    """Trains or resumes a run; writes the best model and the predictions.

    Returns:
      The content of `result.json`. A finished run is not trained again.
    """
    config = run.model.config
    check_tokenizer(tokenizer, config, run.init)
    spec = make_spec(run, len(data.splits["train"]))
    train_config = spec.config.train

    def report(fit_result: training.FitResult, params: Any) -> dict[str, Any]:
        with training.sync_errors(), training.writing_to(workdir.path):
            if training.is_primary():
                folder = workdir.path / "model"
                more = {**tokenizer.token_ids, **_labels(data.task)}
                save_pretrained(folder, run.model, {"params": params}, more=more)
                tokenizer.save(folder, config.max_len)
        predictions = workdir.path / "predictions" if training.is_primary() else None
        with training.writing_to(workdir.path):
            metrics = _evaluate_splits(run, data, spec, params, predictions)
        return {
            "kind": "glue",
            "task": data.task.name,
            "attention": config.attention,
            "init": run.init.checkpoint,
            "from_scratch": run.init.from_scratch,
            **metrics,
            "train_examples": len(data.splits["train"]),
            "batch_size": train_config.batch_size,
            "learning_rate": spec.config.optimizer.learning_rate,
            "partial": is_partial(run, data),
        }

    return training.train_to_result(
        workdir,
        spec,
        training=_examples(run, data.splits["train"]),
        validation=_examples(run, data.splits["valid"]),
        data_sha256=data.sha256,
        check_data=lambda: cache.require_unchanged(data.folder, data.sha256),
        report=report,
        make_start_params=lambda: read_params(
            run.init, config, NystromformerForSequenceClassification, train_config.seed
        ),
    )


def evaluate_checkpoint(run: Run, data: GlueData, workdir: training.Workdir) -> dict[str, Any]:
    """Returns metrics of the best checkpoint of a finished run; writes nothing.

    Raises:
      NotFinished: The run has no result yet.
    """
    result = workdir.require_result()
    workdir.require_data(data.sha256)
    spec = make_spec(run, len(data.splits["train"]))
    params = training.load_best_params(workdir, spec)
    return {**result, **_evaluate_splits(run, data, spec, params, folder=None)}


def write_export(run: Run, workdir: training.Workdir) -> Path:
    """Exports the model of a finished run to one file that needs only jax; returns the path.

    Raises:
      NotFinished: The run has no result yet.
      CannotWrite: The disk is full or the folder is read-only.
    """
    params = training.load_best_params(workdir, make_spec(run, examples=1))
    file = workdir.path / "model.jax_export"
    with training.sync_errors(), training.writing_to(workdir.path):
        if training.is_primary():
            config = dataclasses.replace(run.model.config, sequence_axis=None)  # for one device
            model = NystromformerForSequenceClassification(config)
            variables = {"params": jax.device_get(params)}
            exported = export_model(model, variables, length=run.data.max_len)
            write_bytes(file, exported.serialize())
    return file


def make_spec(run: Run, examples: int) -> training.TrainSpec:
    """Returns the `TrainSpec` of a run with `examples` training examples."""
    tokens = jax.ShapeDtypeStruct((run.data.max_len,), jnp.int32)
    task = glue.TASKS[run.data.task]
    label = jax.ShapeDtypeStruct((), jnp.float32 if task.is_regression else jnp.int32)
    return training.TrainSpec(
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
        eval_step=make_logits_step(run.model, run.mesh),
        summarize=lambda batches: _metrics(task, *_concatenate(batches)),
        select=task.select_by,
    )


def make_loss(model: NystromformerForSequenceClassification, task: GlueTask) -> Any:
    """Returns the `LossFn`: cross-entropy, or squared error for regression."""

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        logits = _logits(model, params, batch, dropout_rng)
        labels, weights = batch["labels"], batch["weights"]
        if task.is_regression:
            sums = {"loss": training.weighted(jnp.square(logits[:, 0] - labels), weights)}
        else:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            right = logits.argmax(axis=-1) == labels
            sums = {
                "loss": training.weighted(losses, weights),
                "accuracy": training.weighted(right, weights),
            }
        return sums["loss"][0], sums

    return loss_fn


def make_logits_step(
    model: NystromformerForSequenceClassification, mesh: Mesh
) -> training.EvalStep:
    """Returns a compiled step `(params, batch) -> {"logits", "labels", "weights"}`."""

    def logits_step(params: Any, batch: dict[str, Any]) -> dict[str, Array]:
        logits = _logits(model, params, batch, None)
        return {"logits": logits, "labels": batch["labels"], "weights": batch["weights"]}

    return jax.jit(training.on_mesh(logits_step, mesh), out_shardings=training.replicated(mesh))


def sentence(result: Mapping[str, Any]) -> str:
    """Returns a sentence that describes a result."""
    parts = []
    for split in ("valid", "test"):
        if result.get(split):
            errors = result[f"{split}_standard_error"]
            values = ", ".join(
                f"{name} {format_spread(100 * value, 100 * errors.get(name, math.nan))}"
                for name, value in result[split].items()
            )
            parts.append(f"{split} {values} ({result[f'{split}_examples']:,} examples)")
    return f"{result['task']}: {'; '.join(parts)}, at step {result['best_step']:,}."


def best_of(results: Mapping[Path, Mapping[str, Any]]) -> str:
    """Returns a sentence about the run with the best validation metric; a tie selects the first."""
    metric = glue.TASKS[next(iter(results.values()))["task"]].select_by
    best = max(results, key=lambda folder: results[folder]["valid"][metric])
    chosen = results[best]
    return (
        f"Best of {len(results)} by validation {metric}: batch {chosen['batch_size']}, rate"
        f" {chosen['learning_rate']:g}, in {best}. {sentence(chosen)}"
    )


def _logits(
    model: NystromformerForSequenceClassification,
    params: Any,
    batch: Mapping[str, Array],
    dropout_rng: Array | None,
) -> Array:
    inputs = (batch["inputs"], batch["mask"], batch["types"])
    return cast(Array, training.apply_model(model, params, dropout_rng, *inputs))


def _make_params(run: Run) -> Callable[[], Any]:
    tokens = jnp.zeros((1, run.data.max_len), jnp.int32)
    seed = run.sections["train"].seed
    return lambda: run.model.init(jax.random.key(seed), tokens, deterministic=True)["params"]


def _examples(run: Run, split: EncodedSplit) -> training.Examples:
    def batch(indices: npt.NDArray[np.integer]) -> Any:
        rows = split.batch(indices, run.data.max_len)
        if run.model.config.num_types == 1:  # as in RoBERTa, both texts have type 0
            return {**rows, "types": np.zeros_like(rows["types"])}
        return rows

    return training.Examples(len(split), batch)


def _labels(task: GlueTask) -> dict[str, Any]:
    """Returns the fields of config.json that describe the classes of a task."""
    labels = task.labels or ("LABEL_0",)
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "problem_type": "regression" if task.is_regression else "single_label_classification",
    }


def _concatenate(batches: list[Any]) -> tuple[Logits, npt.NDArray[Any]]:
    """Returns the logits and labels of all real rows in all batches."""
    logits, labels, weights = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("logits", "labels", "weights")
    )
    return logits[weights > 0], labels[weights > 0]


def _metrics(task: GlueTask, logits: Logits, labels: npt.NDArray[Any]) -> dict[str, float]:
    """Returns the metrics of the task and the loss."""
    if task.is_regression:
        loss = float(np.square(logits[:, 0] - labels).mean())
    else:
        shifted = logits - logits.max(axis=-1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(axis=-1))
        loss = float((log_sum - shifted[np.arange(len(labels)), labels]).mean())
    return {**glue.score(task, glue.predictions(task, logits), labels), "loss": loss}


def _evaluate_splits(
    run: Run, data: GlueData, spec: training.TrainSpec, params: Any, folder: Path | None
) -> dict[str, Any]:
    """Returns metrics of all splits except training; writes predictions to `folder` unless it is None."""
    results: dict[str, Any] = {}
    for name, split in data.splits.items():
        if name == "train":
            continue
        logging.getLogger(__name__).info("Evaluating the %s set.", name)
        logits, _ = training.evaluate_split(spec, params, _examples(run, split), _concatenate)
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
