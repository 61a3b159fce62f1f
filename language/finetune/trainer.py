"""Trains and evaluates a model on GLUE, IMDb or one's own files."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataprep import cache
from language.finetune.run import FineTuning, is_partial
from language.finetune.spec import collate, make_spec, tuned
from language.glue import GlueConfig
from language.initial import check_tokenizer, read_params, record_weights
from language.tasks.data import TaskData
from language.tasks.sequences import SequenceTask
from language.tasks.task import Task
from language.tokenizer import Tokenizer
from nystromformer_jax import training
from nystromformer_jax.pretrained import save_pretrained
from reporting.statistics import format_spread

_logger = logging.getLogger(__name__)

PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}


def train(
    run: FineTuning, data: TaskData, tokenizer: Tokenizer, workdir: training.Workdir
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
    for name, split in data.splits.items():
        if name != "train" and split.is_labeled and workdir.result is None:
            # Raises ValueError, before training, if no example is complete.
            split.count_complete(spec.config.eval.num_evaluated(len(split)))
    _require_same_tuning(run, workdir)
    init_sha256 = record_weights(run.init, workdir)

    def report(fit_result: training.FitResult, params: Any) -> dict[str, Any]:
        predictions = workdir.path / "predictions" if training.is_primary() else None
        with training.writing_to(workdir.path):
            task, metrics = _evaluate(run, data, spec, params, predictions)
        with training.sync_errors(), training.writing_to(workdir.path):
            if training.is_primary():
                folder = workdir.path / "model"
                more = {**tokenizer.token_ids, **_description(task)}
                save_pretrained(folder, run.model, {"params": params}, more=more)
                tokenizer.save(folder, config.max_len, config.num_types)
        return {
            "kind": "glue" if isinstance(run.data, GlueConfig) else "finetune",
            "task": task.name,
            "attention": config.attention,
            "init": run.init.checkpoint,
            "init_sha256": init_sha256,
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


def evaluate_checkpoint(
    run: FineTuning, data: TaskData, workdir: training.Workdir
) -> dict[str, Any]:
    """Returns metrics of the best checkpoint of a finished run; writes nothing.

    Raises:
      NotFinished: The run has no result yet.
      LossNotFinite: The run diverged.
      ConfigDiffers: `eval.tune_threshold` is not that of the run.
    """
    run = run.with_task(data.task)
    result = workdir.require_result()
    workdir.require_data(data.sha256)
    _require_same_tuning(run, workdir)
    spec = make_spec(run, len(data.splits["train"]), data.splits["valid"])
    params = training.load_best_params(workdir, spec)
    return {**result, **_evaluate(run, data, spec, params)[1]}


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


def _require_same_tuning(run: FineTuning, workdir: training.Workdir) -> None:
    """Raises ConfigDiffers if `eval.tune_threshold`, with which metrics are compared, has changed."""
    value = str(run.sections["eval"].tune_threshold)
    workdir.require_same("tune_threshold", value, "eval.tune_threshold")


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
        if hasattr(task, name):  # a threshold of None replaces that of the initial checkpoint
            fields[key] = getattr(task, name)
    return fields


def _evaluate(
    run: FineTuning,
    data: TaskData,
    spec: training.TrainSpec,
    params: Any,
    folder: Path | None = None,
) -> tuple[Task, dict[str, Any]]:
    """Returns the task, with a tuned threshold if the config asks for it, and metrics of its splits.

    The training split is left out. Predictions are written to `folder` unless it is None.
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
        if name == "valid":  # the first split that is evaluated
            task = tuned(run, split, outputs)
            if isinstance(task, SequenceTask) and task.threshold is not None:
                results["threshold"] = task.threshold
        predicted = task.predict(split, outputs)
        if split.is_labeled:
            results[name], results[f"{name}_standard_error"] = task.score(split, predicted)
            results[f"{name}_examples"] = len(predicted)
        if folder is not None:
            task.write(folder / task.file_name(name), split, predicted)
    return task, results
