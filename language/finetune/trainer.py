"""Fine-tunes a model on GLUE, IMDb or one's own files, and evaluates it, predicts with it and exports it."""

import dataclasses
import logging
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from dataprep import cache
from language.checkpoint import read_params, record_weights, save_model
from language.finetune import describe
from language.finetune.answering import AnsweringTask
from language.finetune.card import model_card
from language.finetune.data import TaskData
from language.finetune.run import (
    FineTuning,
    collate,
    is_partial,
    load_data,
    make_spec,
    open_tokenizer,
    prepare,
    read_sections,
)
from language.finetune.sequences import SequenceTask
from language.finetune.task import Task
from language.tokenizer import load_tokenizer
from nystromformer_jax import training
from nystromformer_jax.export import export_model
from nystromformer_jax.pretrained import from_pretrained
from nystromformer_jax.support.durable import read_config, write_bytes
from reporting.statistics import format_spread

__all__ = [
    "describe_data",
    "describe_result",
    "evaluate_checkpoint",
    "load_data",
    "make_spec",
    "open_run",
    "open_tokenizer",
    "predict",
    "prepare",
    "train",
    "write_export",
]

_logger = logging.getLogger(__name__)

PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}


def train(run: FineTuning, data: TaskData, workdir: training.Workdir) -> dict[str, Any]:
    """Trains or resumes a run; writes the best model, and then the predictions.

    Returns:
      The content of `result.json`. A finished run is not trained again.
    """
    run = run.with_task(data.task)
    config = run.model.config
    train_split = data.splits["train"]
    weights = run.class_weights(train_split)
    spec = make_spec(run, len(train_split), data.splits["valid"], weights)
    train_config = spec.config.train
    for name, split in data.splits.items():
        if name != "train" and split.is_labeled and workdir.result is None:
            # Raises ValueError, before training, if no example is complete.
            split.count_complete(spec.config.eval.num_evaluated(len(split)))
    init_sha256 = record_weights(run.init, workdir)

    def report(fit_result: training.FitResult, params: Any) -> dict[str, Any]:
        described = _description(data.task)
        save_model(workdir, run.model, params, data.tokenizer, run.data.max_len, **described)
        predictions = workdir.path / "predictions" if training.is_primary() else None
        with training.writing_to(workdir.path):
            metrics = _evaluate(run, data, spec, params, predictions)
            with training.sync_errors():
                if training.is_primary():
                    card = model_card(run, data, metrics, fit_result.last_step)
                    write_bytes(workdir.path / "model" / "README.md", card.encode())
        return {
            "task": data.task.name,
            "attention": config.attention,
            "init": run.init.checkpoint,
            "init_sha256": init_sha256,
            "from_scratch": run.init.from_scratch,
            **metrics,
            "train_examples": len(train_split),
            "batch_size": train_config.batch_size,
            "learning_rate": spec.config.optimizer.learning_rate,
            "partial": is_partial(run, data),
        }

    return training.train_to_result(
        workdir,
        spec,
        training=run.examples(train_split),
        validation=run.examples(data.splits["valid"]),
        data_sha256=data.sha256,
        check_data=lambda: cache.require_unchanged(data.folder, data.sha256),
        report=report,
        make_start_params=lambda: read_params(
            run.init, config, run.head.model_class, train_config.seed
        ),
    )


def describe_data(run: FineTuning, data: TaskData) -> str:
    """Returns a table of the splits and the first training examples."""
    return describe.describe_data(data, run.data.max_len)


def evaluate_checkpoint(
    run: FineTuning, data: TaskData, workdir: training.Workdir
) -> dict[str, Any]:
    """Returns metrics of the best checkpoint of a finished run; writes nothing.

    Raises:
      NotFinished: The run has no result yet.
      LossNotFinite: The run diverged.
    """
    run = run.with_task(data.task)
    result = workdir.require_result()
    workdir.require_data(data.sha256)
    spec = make_spec(run, len(data.splits["train"]), data.splits["valid"])
    params = training.load_best_params(workdir, spec)
    return {**result, **_evaluate(run, data, spec, params)}


def open_run(folder: Path) -> tuple[FineTuning, Any]:
    """Opens a finished run on one device, with its own model; returns it and the parameters.

    It needs neither the initial checkpoint nor the data.

    Raises:
      FileNotFoundError: The folder has no config or no model.
      ValueError: The folder is not that of a run.
      NotFinished: The run is not finished.
      LossNotFinite: The run diverged.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: pass the folder of a finished run.")
    config = read_config(folder)
    if not {"data", "train", "init"} <= config.keys() or "objective" in config:
        raise ValueError(
            f"{folder} is not the folder of a fine-tuned model: pass the folder of a finished run of"
            " run_finetune.py, not that of a model."
        )
    training.Workdir(folder, config, read_only=True).require_result()
    sections = read_sections(config)
    data = sections["data"]
    model, variables = from_pretrained(
        folder / "model", dtype=config["model"].get("dtype", "float32")
    )
    metadata = model.config.metadata
    names = metadata["id2label"]
    labels = [names[i] for i in sorted(names, key=int)]
    task = data.make_task(labels, metadata.get("has_unanswerable", False))
    mesh = training.make_mesh(training.MeshConfig(), jax.devices()[:1])
    run = FineTuning(config, data, sections["init"], sections, mesh, task, model)
    return run, variables["params"]


def predict(folder: Path, source: Path, output: Path, *, scores: bool = False) -> int:
    """Writes predictions of a finished run for the examples in `source` to `output`; returns their number.

    The formats are those of the training files and of the predictions of a run. Labels in the file are
    ignored. With `scores`, or if `output` ends in .jsonl, `SequenceTask.write_scores` writes them.

    Raises:
      FileNotFoundError: `source` does not exist.
      ValueError: An example is invalid; nothing is written. Further errors are those of `open_run`.
    """
    run, params = open_run(folder)
    if not source.is_file():
        raise FileNotFoundError(
            f"--input: {source} is not a file; pass a file with the examples to predict, in the format of the"
            " training file."
        )
    if source.resolve() == output.resolve():
        raise ValueError(f"--output: {output} is also the input; pass another file.")
    if output.is_dir():
        raise ValueError(f"--output: {output} is a folder; pass the path of a file.")
    scores = scores or output.suffix == ".jsonl"
    if scores and not isinstance(run.task, SequenceTask):
        raise ValueError(
            f"--output: {run.task.title} has no scores of labels: leave --scores out, and write a"
            f" {run.task.suffix} file."
        )
    everything = dataclasses.replace(run.sections["eval"], max_examples=0)
    run = dataclasses.replace(run, sections={**run.sections, "eval": everything})
    config, tokenizer = run.data.of_input(), load_tokenizer(folder / "model")
    with tempfile.TemporaryDirectory() as encoded:
        examples = config.read_file(source, labeled=False)
        run.task.encode(Path(encoded), "input", examples, tokenizer)
        split = run.task.open(Path(encoded), "input", tokenizer, config)
        spec = make_spec(run, examples=1)
        outputs = training.evaluate_split(spec, params, run.examples(split), collate)
        predicted = run.task.predict(split, outputs)
        with training.writing_to(output.parent):
            if scores and isinstance(run.task, SequenceTask):
                run.task.write_scores(output, split, outputs)
            else:
                run.task.write(output, split, predicted)
    return len(predicted)


def write_export(folder: Path) -> Path:
    """Exports the model of a finished run to a file that needs only jax and flatbuffers; returns its path.

    Raises:
      CannotWrite: The disk is full or the folder is read-only. Further errors are those of `open_run`.
    """
    file = folder.absolute() / "model.jax_export"
    run, params = open_run(folder)
    exported = export_model(run.model, {"params": params}, length=run.data.max_len)
    with training.writing_to(folder):
        write_bytes(file, exported.serialize())
    return file


def describe_result(result: Mapping[str, Any]) -> str:
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


def _description(task: Task) -> dict[str, Any]:
    """Returns the fields of config.json that describe a task."""
    labels = task.labels or ("LABEL_0",)
    fields = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "problem_type": PROBLEM_TYPES.get(task.kind),
    }
    if isinstance(task, AnsweringTask):
        fields["has_unanswerable"] = task.has_unanswerable
    return fields


def _evaluate(
    run: FineTuning,
    data: TaskData,
    spec: training.TrainSpec,
    params: Any,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Returns the metrics of all splits but the training split; the validation split is the first.

    Predictions are written to `folder` unless it is None.
    """
    task, results = run.task, dict[str, Any]()
    for name, split in data.splits.items():
        if name == "train":
            continue
        evaluated = spec.config.eval.num_evaluated(len(split))
        if not split.is_labeled and evaluated < len(split):
            _logger.warning(
                "Predictions for the %s set are not written, because eval.max_examples=%d leaves out some of"
                " its %d examples.",
                name,
                evaluated,
                len(split),
            )
            continue
        _logger.info("Evaluating the %s set.", "validation" if name == "valid" else name)
        outputs = training.evaluate_split(spec, params, run.examples(split), collate)
        predicted = task.predict(split, outputs)
        if split.is_labeled:
            results[name], results[f"{name}_standard_error"] = task.score(split, predicted)
            results[f"{name}_examples"] = len(predicted)
        if folder is not None:
            task.write(folder / task.file_name(name), split, predicted)
    return results
