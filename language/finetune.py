"""Fine-tunes pretrained models on GLUE, IMDb and one's own files."""

import dataclasses
import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from dataprep import cache
from language import files, glue
from language.files import FilesConfig
from language.glue import GlueConfig
from language.heads import HEADS, Head
from language.initial import (
    InitConfig,
    check_tokenizer,
    model_config,
    read_params,
    require_packages,
)
from language.tasks.data import TaskData
from language.tasks.examples import EncodedSplit
from language.tasks.sequences import SequenceTask
from language.tasks.task import Outputs, Task
from language.tokenizer import Tokenizer, load_tokenizer
from nystromformer_jax import NystromformerConfig, training
from nystromformer_jax.durable import read_json, write_bytes
from nystromformer_jax.export import export_model
from nystromformer_jax.pretrained import save_pretrained
from nystromformer_jax.typing import Array
from reporting.tables import format_spread

PATHS = ("data.dir", "data.workers", "data.train_file", "data.valid_file", "data.test_file")
SHORTEST = 64  # shortest padded length if examples are grouped by length
PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}


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
    """The section "eval": an `EvalConfig` that evaluates once per epoch by default.

    With `tune_threshold`, the threshold for the second of two classes, or for each of several labels, is
    the one with the highest F1 on the validation set.
    """

    every_steps: int = 0  # 0: once per epoch
    max_examples: int = 0
    batch_size: int = 0
    tune_threshold: bool = False

    def __post_init__(self) -> None:
        if self.every_steps < 0:
            raise ValueError(f"eval.every_steps: needs 0 or more, got {self.every_steps}.")
        self.in_steps(1)

    def in_steps(self, epoch_steps: int) -> training.EvalConfig:
        """Returns the `EvalConfig`; by default `every_steps` is `epoch_steps`."""
        values = dataclasses.asdict(self)
        del values["tune_threshold"]
        return training.EvalConfig(
            **{**values, "every_steps": self.every_steps or max(epoch_steps, 1)}
        )


SECTIONS = training.SECTIONS | {
    "init": InitConfig,
    "optimizer": RateConfig,
    "train": BudgetConfig,
    "eval": ScoringConfig,
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A validated config with the mesh, the task and the model.

    The labels of one's own files are known only when the files have been read; see `with_task`.
    """

    config: Mapping[str, Any]  # plain sections, for `config.json`
    data: GlueConfig | FilesConfig
    init: InitConfig
    sections: Mapping[str, Any]
    mesh: Mesh
    task: Task
    model: Any

    def __post_init__(self) -> None:
        if self.sections["eval"].tune_threshold and not self.task.has_threshold:
            raise ValueError(
                f"eval.tune_threshold: the task {self.task.title} has no decision threshold, which only"
                " two classes and multi_label have: leave it at False."
            )

    @property
    def head(self) -> Head:
        """The head of the task."""
        return HEADS[self.task.kind]

    def with_task(self, task: Task) -> "Run":
        """Returns the run with another task, and a model with an output per label."""
        config = dataclasses.replace(self.model.config, num_labels=task.num_labels)
        return dataclasses.replace(self, task=task, model=HEADS[task.kind].model_class(config))

    def fit_config(self, examples: int) -> training.FitConfig:
        """Returns the config sections of the training loop for `examples` training examples."""
        train: training.TrainConfig = self.sections["train"].in_steps(examples)
        optimizer = self.sections["optimizer"].in_steps(train.total_steps)
        evaluation = self.sections["eval"].in_steps(math.ceil(examples / train.batch_size))
        steps = {"train": train, "optimizer": optimizer, "eval": evaluation}
        return training.FitConfig.from_sections({**self.sections, **steps})

    def examples(self, split: EncodedSplit) -> training.Examples:
        """Returns the examples of a split for the input pipeline."""
        max_len = self.data.max_len
        groups = isinstance(self.data, FilesConfig) and self.data.group_by_length
        lengths = None
        if groups and training.sequence_axis(self.mesh) is None:
            lengths = split.padded_lengths(max_len)

        def batch(indices: npt.NDArray[np.integer], longest: int = max_len) -> Any:
            rows = split.batch(indices, padded_len(longest, max_len))
            if self.model.config.num_types == 1:  # as in RoBERTa, both texts have type 0
                rows = {**rows, "types": np.zeros_like(rows["types"])}
            return {**rows, "rows": np.asarray(indices, np.int32)}

        return training.Examples(len(split), batch, lengths)


def padded_len(longest: int, max_len: int) -> int:
    """Returns the padded length of a batch: `SHORTEST` times a power of two, at most `max_len`."""
    length = SHORTEST
    while length < longest:
        length *= 2
    return min(length, max_len)


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Run:
    """Validates a config and returns the run; nothing is prepared, written or compiled.

    `config` has sections of plain values. If `devices` is None, the mesh uses all devices.

    Raises:
      ValueError: A value is invalid; the message names the section and the key.
      FileNotFoundError: `init.checkpoint` does not exist.
      ImportError: A package of the extra `language` is not installed.
    """
    require_packages()
    data_class = GlueConfig if "task" in config.get("data", {}) else FilesConfig
    kinds = {"data": data_class, **SECTIONS}
    sections = training.read_sections(config, kinds, plain=["model", "attention"])
    data, init = sections["data"], sections["init"]
    if not init.checkpoint:
        raise ValueError(
            "init.checkpoint: needs the folder of a pretrained model with its tokenizer, such as model/ in"
            " a pretraining run's folder, or a Hugging Face folder. init.from_scratch=True uses its sizes"
            " only."
        )
    if isinstance(data, GlueConfig):
        task: Task = glue.TASKS[data.task]
    else:
        # Without labels in the config, those of the files replace these two.
        known = data if data.labels else dataclasses.replace(data, metric="")
        task = files.make_task(known, data.known_labels or ("0", "1"))
    mesh = training.make_mesh(sections["mesh"], devices)
    model = HEADS[task.kind].model_class(
        _model_config(
            config,
            init,
            data.max_len,
            num_labels=task.num_labels,
            sequence_axis=training.sequence_axis(mesh),
            remat=sections["train"].remat,
        )
    )
    run = Run(config, data, init, sections, mesh, task, model)
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


def load_data(run: Run, tokenizer: Tokenizer) -> TaskData:
    """Returns the prepared data of a run; see `language.glue.load` and `language.files.load`."""
    if isinstance(run.data, GlueConfig):
        return glue.load(run.data, tokenizer)
    return files.load(run.data, tokenizer)


def is_partial(run: Run, data: TaskData) -> bool:
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
    run: Run, data: TaskData, tokenizer: Tokenizer, workdir: training.Workdir
) -> dict[str, Any]:
    """Trains or resumes a run; writes the best model and the predictions.

    Returns:
      The content of `result.json`. A finished run is not trained again.
    """
    run = run.with_task(data.task)
    config = run.model.config
    check_tokenizer(tokenizer, config, run.init)
    spec = make_spec(run, len(data.splits["train"]), data.splits["valid"])
    train_config = spec.config.train

    def report(fit_result: training.FitResult, params: Any) -> dict[str, Any]:
        task, outputs = _evaluate_valid(run, data, spec, params)
        with training.sync_errors(), training.writing_to(workdir.path):
            if training.is_primary():
                folder = workdir.path / "model"
                more = {**tokenizer.token_ids, **_description(task)}
                save_pretrained(folder, run.model, {"params": params}, more=more)
                tokenizer.save(folder, config.max_len)
        predictions = workdir.path / "predictions" if training.is_primary() else None
        with training.writing_to(workdir.path):
            metrics = _evaluate_splits(run, data, spec, params, task, outputs, predictions)
        return {
            "kind": "glue" if isinstance(run.data, GlueConfig) else "finetune",
            "task": task.name,
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
        training=run.examples(data.splits["train"]),
        validation=run.examples(data.splits["valid"]),
        data_sha256=data.sha256,
        check_data=lambda: cache.require_unchanged(data.folder, data.sha256),
        report=report,
        make_start_params=lambda: read_params(
            run.init, config, run.head.model_class, train_config.seed
        ),
    )


def evaluate_checkpoint(run: Run, data: TaskData, workdir: training.Workdir) -> dict[str, Any]:
    """Returns metrics of the best checkpoint of a finished run; writes nothing.

    Raises:
      NotFinished: The run has no result yet.
    """
    run = run.with_task(data.task)
    result = workdir.require_result()
    workdir.require_data(data.sha256)
    spec = make_spec(run, len(data.splits["train"]), data.splits["valid"])
    params = training.load_best_params(workdir, spec)
    task, outputs = _evaluate_valid(run, data, spec, params)
    return {**result, **_evaluate_splits(run, data, spec, params, task, outputs, folder=None)}


def write_export(run: Run, workdir: training.Workdir) -> Path:
    """Exports the model of a finished run to one file that needs only jax; returns the path.

    Raises:
      NotFinished: The run has no result yet.
      CannotWrite: The disk is full or the folder is read-only.
    """
    workdir.require_result()
    trained = open_trained(workdir.path)
    file = workdir.path / "model.jax_export"
    with training.sync_errors(), training.writing_to(workdir.path):
        if training.is_primary():
            exported = export_model(
                trained.run.model, {"params": trained.params}, length=run.data.max_len
            )
            write_bytes(file, exported.serialize())
    return file


@dataclasses.dataclass(frozen=True)
class Trained:
    """The model of a finished run: with its own weights and tokenizer, on one device."""

    run: Run
    params: Any
    tokenizer: Tokenizer


def open_trained(folder: Path) -> Trained:
    """Opens the model in a run's folder; needs neither the initial checkpoint nor the data.

    Raises:
      FileNotFoundError: The folder has no config or no model.
      ValueError: The folder is not that of a run.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: pass the folder of a finished run.")
    config = read_json(folder / "config.json")
    if not {"data", "train"} <= config.keys():
        raise ValueError(
            f"{folder / 'config.json'} is not the config of a run: pass the folder of a finished run, not"
            " that of a model."
        )
    config = {
        **config,
        "init": {"checkpoint": str(folder / "model")},
        "attention": {"name": ""},
        "mesh": {"data": 1},
        "eval": {"batch_size": config.get("eval", {}).get("batch_size", 0)},
        "train": {**config["train"], "remat": False, "accumulation": 1},
    }
    run = prepare(config, jax.local_devices()[:1])
    metadata = run.model.config.metadata
    task = run.task
    if isinstance(run.data, FilesConfig):
        labels = [
            label for _, label in sorted((int(i), x) for i, x in metadata["id2label"].items())
        ]
        task = files.make_task(run.data, labels, metadata.get("has_unanswerable", False))
    if isinstance(task, SequenceTask):
        task = dataclasses.replace(task, threshold=metadata.get("decision_threshold"))
    run = run.with_task(task)
    params = read_params(run.init, run.model.config, run.head.model_class, seed=0)
    return Trained(run, params, load_tokenizer(run.init.folder))


def predict(trained: Trained, source: Path, output: Path) -> int:
    """Writes predictions for the examples in the file `source` to `output`; returns their number.

    The formats are those of the training files and of the predictions of a run. Labels in the file are
    ignored.

    Raises:
      ValueError: An example is invalid; nothing is written.
    """
    run = trained.run
    data = run.data
    if isinstance(data, GlueConfig):
        assert isinstance(run.task, SequenceTask)
        text, *second = run.task.texts
        data = FilesConfig(
            kind=run.task.kind,
            text=text,
            text_pair=second[0] if second else "",
            max_len=data.max_len,
            truncation=data.truncation,
        )
    if source.resolve() == output.resolve():
        raise ValueError(f"--output: {output} is the input; pass another file.")
    with tempfile.TemporaryDirectory() as folder:
        split = files.open_input(data, run.task, source, trained.tokenizer, Path(folder))
        spec = make_spec(run, examples=1)
        outputs, _ = training.evaluate_split(spec, trained.params, run.examples(split), collate)
        predicted = run.task.predict(split, outputs)
        with training.writing_to(output.parent):
            run.task.write(output, split, predicted)
    return len(predicted)


def make_spec(run: Run, examples: int, valid: EncodedSplit | None = None) -> training.TrainSpec:
    """Returns the `TrainSpec` of a run with `examples` training examples.

    Training needs the validation split `valid`; a plan or an export does not.
    """
    tokens = jax.ShapeDtypeStruct((run.data.max_len,), jnp.int32)

    def summarize(batches: list[Any]) -> dict[str, float]:
        assert valid is not None
        outputs, loss = collate(batches)
        task = _tuned(run, valid, outputs)
        return {**task.score(valid, task.predict(valid, outputs))[0], "loss": loss}

    return training.TrainSpec(
        config=run.fit_config(examples),
        mesh=run.mesh,
        make_params=_make_params(run),
        loss_fn=make_loss(run.model, run.head),
        row={
            "inputs": tokens,
            "mask": jax.ShapeDtypeStruct(tokens.shape, bool),
            "types": tokens,
            "labels": run.head.label(run.data.max_len, run.task.num_labels),
            "rows": jax.ShapeDtypeStruct((), jnp.int32),
        },
        eval_step=make_outputs_step(run.model, run.head, run.mesh),
        summarize=summarize,
        select=run.task.select_by,
    )


def make_loss(model: Any, head: Head) -> Any:
    """Returns the `LossFn`: the mean of the head's losses over all labels of a batch."""

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        losses = head.losses(_apply(model, params, batch, dropout_rng), batch["labels"])
        weights = batch["weights"]
        loss, _ = training.weighted(losses.loss, weights)
        count, _ = training.weighted(losses.num_labels, weights)
        sums = {"loss": (loss, count)}
        if losses.right is not None:
            sums["accuracy"] = (training.weighted(losses.right, weights)[0], count)
        return loss, sums

    return loss_fn


def make_outputs_step(model: Any, head: Head, mesh: Mesh) -> training.EvalStep:
    """Returns a compiled step `(params, batch) -> outputs`, for `collate`."""

    def outputs_step(params: Any, batch: dict[str, Any]) -> dict[str, Any]:
        outputs = _apply(model, params, batch, None)
        losses = head.losses(outputs, batch["labels"])
        return {
            "results": head.results(outputs),
            "loss": losses.loss,
            "count": losses.num_labels,
            "rows": batch["rows"],
            "weights": batch["weights"],
        }

    return jax.jit(training.on_mesh(outputs_step, mesh), out_shardings=training.replicated(mesh))


def collate(batches: Sequence[Mapping[str, Any]]) -> tuple[Outputs, float]:
    """Returns the results of all real rows in the order of the split, and the mean loss.

    Results of shorter batches are padded with zeros.
    """
    weights, rows, losses, counts = (
        np.concatenate([batch[name] for batch in batches])
        for name in ("weights", "rows", "loss", "count")
    )
    real = np.flatnonzero(weights > 0)
    order = real[np.argsort(rows[real], kind="stable")]
    outputs = {}
    for name in batches[0]["results"]:
        parts = [np.asarray(batch["results"][name]) for batch in batches]
        width = max(part.shape[1] for part in parts)
        padded = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        outputs[name] = np.concatenate(padded)[order]
    loss = losses[real].sum(dtype=np.float64) / counts[real].sum(dtype=np.float64)
    return outputs, float(loss)


def sentence(result: Mapping[str, Any]) -> str:
    """Returns a sentence that describes a result."""
    parts = []
    for split in ("valid", "test"):
        if result.get(split):
            errors = result[f"{split}_standard_error"]
            scales = {name: 1 if name == "mse" else 100 for name in result[split]}
            values = ", ".join(
                f"{name} {format_spread(scale * result[split][name], scale * errors.get(name, math.nan))}"
                for name, scale in scales.items()
            )
            parts.append(f"{split} {values} ({result[f'{split}_examples']:,} examples)")
    return f"{result['task']}: {'; '.join(parts)}, at step {result['best_step']:,}."


def best_of(results: Mapping[Path, Mapping[str, Any]]) -> str:
    """Returns a sentence about the run with the best validation metric; a tie selects the first."""
    metric = next(iter(next(iter(results.values()))["valid"]))  # the first one selects checkpoints
    best = max(results, key=lambda folder: results[folder]["valid"][metric])
    chosen = results[best]
    return (
        f"Best of {len(results)} by validation {metric}: batch {chosen['batch_size']}, rate"
        f" {chosen['learning_rate']:g}, in {best}. {sentence(chosen)}"
    )


def _model_config(
    config: Mapping[str, Any], init: InitConfig, max_len: int, **fields: Any
) -> NystromformerConfig:
    """Returns the model's config; positions are repeated for a `max_len` that the checkpoint lacks."""
    own = model_config(config, init, **fields)
    if max_len <= own.max_len:
        return own
    if not config["attention"].get("name"):
        raise ValueError(
            f"data.max_len={max_len} is more than the {own.max_len} positions of {init.checkpoint}: lower it,"
            " or name an attention, such as attention=nystrom after the colon of --config, to repeat them."
        )
    return model_config(config, init, max_len=max_len, **fields)


def _apply(model: Any, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None) -> Any:
    inputs = (batch["inputs"], batch["mask"], batch["types"])
    return training.apply_model(model, params, dropout_rng, *inputs)


def _make_params(run: Run) -> Callable[[], Any]:
    tokens = jnp.zeros((1, run.data.max_len), jnp.int32)
    seed = run.sections["train"].seed
    return lambda: run.model.init(jax.random.key(seed), tokens, deterministic=True)["params"]


def _description(task: Task) -> dict[str, Any]:
    """Returns the fields of config.json that describe a task."""
    labels = task.labels or ("LABEL_0",)
    fields = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "problem_type": PROBLEM_TYPES.get(task.kind),
    }
    for name, key in (
        ("threshold", "decision_threshold"),
        ("has_unanswerable", "has_unanswerable"),
    ):
        if (value := getattr(task, name, None)) is not None:
            fields[key] = value
    return fields


def _tuned(run: Run, valid: EncodedSplit, outputs: Outputs) -> Task:
    """Returns the task, with a tuned threshold if the config asks for it."""
    return run.task.tuned(valid, outputs) if run.sections["eval"].tune_threshold else run.task


def _evaluate_valid(
    run: Run, data: TaskData, spec: training.TrainSpec, params: Any
) -> tuple[Task, Outputs]:
    """Returns the task, with its threshold, and the outputs for the validation split."""
    valid = data.splits["valid"]
    logging.getLogger(__name__).info("Evaluating the valid set.")
    outputs, _ = training.evaluate_split(spec, params, run.examples(valid), collate)
    return _tuned(run, valid, outputs), outputs


def _evaluate_splits(
    run: Run,
    data: TaskData,
    spec: training.TrainSpec,
    params: Any,
    task: Task,
    valid_outputs: Outputs,
    folder: Path | None,
) -> dict[str, Any]:
    """Returns metrics of all splits except training; writes predictions to `folder` unless it is None."""
    results: dict[str, Any] = {}
    if isinstance(task, SequenceTask) and task.threshold is not None:
        results["threshold"] = task.threshold
    for name, split in data.splits.items():
        if name == "train":
            continue
        outputs = valid_outputs
        if name != "valid":
            logging.getLogger(__name__).info("Evaluating the %s set.", name)
            outputs, _ = training.evaluate_split(spec, params, run.examples(split), collate)
        predicted = task.predict(split, outputs)
        if split.is_labeled:
            results[name], results[f"{name}_standard_error"] = task.score(split, predicted)
            results[f"{name}_examples"] = len(predicted)
        if folder is not None:
            task.write(folder / task.file_name(name), split, predicted)
    return results
