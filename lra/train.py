"""Trains and evaluates one run of the benchmark."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax.errors import InvalidRngError, ScopeCollectionNotFound, ScopeParamShapeError
from jax.sharding import Mesh

from dataprep import cache
from lra import data
from lra.data import DataConfig, Split, Task, TaskInfo
from lra.data.baselines import baselines
from lra.models import Classifier, DualEncoder, Model, ModelConfig, Tagger
from nystromformer_jax import make_core
from nystromformer_jax.cores import CoreFactory, core_class, option_fields
from nystromformer_jax.support.plugins import is_plugin
from nystromformer_jax.training import (
    SECTIONS,
    Examples,
    FitConfig,
    FitResult,
    TrainConfig,
    TrainSpec,
    Workdir,
    apply_model,
    check_length,
    choose_accumulation,
    evaluate_split,
    from_mapping,
    load_best_params,
    make_mesh,
    read_sections,
    sync_errors,
    train_to_result,
    weighted,
)
from nystromformer_jax.training.train_step import LossFn
from nystromformer_jax.typing import Array
from reporting.statistics import binomial_error

VALIDATED = "validated"  # value of "state" in `result.json` if the test set is not evaluated


@dataclasses.dataclass(frozen=True)
class Run:
    """A validated config with its device mesh and model."""

    config: Mapping[str, Any]  # sections of plain values, as written to `config.json`
    data: DataConfig
    fit: FitConfig
    mesh: Mesh
    attention: str
    model: Model


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> Run:
    """Validates a config and returns its run; loads no data, and writes and compiles nothing.

    `config` has sections of plain values. If `devices` is None, the mesh uses all devices.

    Raises:
      ValueError: A value is invalid; the message names its section and key.
    """
    own = {"data": DataConfig, "model": ModelConfig}
    sections = read_sections(config, own | SECTIONS, plain=["attention"])
    data_config, model_config = sections["data"], sections["model"]
    task = data.describe(data_config.task)
    _check_task(task, data_config, model_config, sections["train"])
    make = _core_factory(config["attention"], sections["train"].seed)
    mesh = make_mesh(sections["mesh"], devices)
    config, sections = choose_accumulation(
        config,
        sections,
        mesh,
        core=make(),
        sizes=model_config,
        length=data_config.padding.padded_len,
        sequences=2 if task.pairs else 1,
    )
    fit_config = FitConfig.from_sections(sections)
    kind = DualEncoder if task.pairs else Tagger if task.targets else Classifier
    model = kind(model_config, make, task.num_classes, remat=fit_config.train.remat)
    fit_config.check_batches(mesh)
    length = data_config.padding.padded_len
    check_length(mesh, length, "data.padded_len" if data_config.padded_len else "data.max_len")
    if data_config.pad_to_multiple_of:
        check_length(mesh, data_config.pad_to_multiple_of, "data.pad_to_multiple_of")
    # Tracing the model raises the errors of its modules, for example for an even kernel size.
    shortest = data_config.padding.for_longest(1).padded_len
    for tokens in sorted({shortest, length}):  # training initializes the parameters with `length`
        params = jax.eval_shape(functools.partial(_init, model, tokens))
    attention = config["attention"]["name"]
    if is_plugin(attention):
        _check_variables(model, params, shortest, attention)
    return Run(config, data_config, fit_config, mesh, attention, model)


def _core_factory(section: Mapping[str, Any], seed: int) -> CoreFactory:
    """Returns the factory of the section "attention"; `seed` is the default of an option `seed`."""
    options = dict(section)
    name = options.pop("name", None)
    try:
        core = core_class(name)
    except ValueError as error:
        raise ValueError(f"attention.name: {error}") from None
    if "seed" in option_fields(core):
        options.setdefault("seed", seed)  # for sampling at initialization
    converted = from_mapping(core, options, "attention")  # only to validate and convert the options
    return make_core(name, **{option: getattr(converted, option) for option in options})


def _check_task(task: TaskInfo, config: DataConfig, model: ModelConfig, train: TrainConfig) -> None:
    """Raises ValueError unless the lengths, the vocabulary and the curriculum suit the task."""
    if task.vocab_size > model.vocab_size:
        raise ValueError(
            f"model.vocab_size={model.vocab_size} is too small: {config.task} has"
            f" {task.vocab_size} token ids."
        )
    if config.max_len < task.min_len:
        raise ValueError(
            f"data.max_len={config.max_len} truncates labeled tokens of {config.task}: pass at"
            f" least {task.min_len}."
        )
    if config.curriculum and not task.has_curriculum:
        raise ValueError(
            f"data.curriculum={config.curriculum}: {config.task} has no curriculum; of the"
            " benchmark's tasks, only ListOps and Pathfinder have one. Set data.curriculum=0."
        )
    length = config.padding.padded_len
    if length > model.max_len:
        name = "padded_len" if config.padded_len else "max_len"
        raise ValueError(
            f"model.max_len={model.max_len} is less than data.{name}={length}: raise model.max_len"
            f" or lower data.{name}."
        )
    if config.curriculum and config.num_easier < train.batch_size:
        raise ValueError(
            f"data.curriculum={config.curriculum} with data.examples={config.examples} has"
            f" {config.num_easier} examples, less than one batch of train.batch_size={train.batch_size}:"
            " raise them, or set data.curriculum=0."
        )
    easier_steps = config.num_easier // train.batch_size
    if easier_steps >= train.total_steps:
        raise ValueError(
            f"data.curriculum={config.curriculum} takes {easier_steps:,} steps, but train.total_steps is"
            f" {train.total_steps:,}, so the run would see no example of the benchmark: lower"
            " data.curriculum, or set it to 0."
        )


def make_spec(run: Run) -> TrainSpec:
    """Returns the `TrainSpec` of a run; needs no data."""
    length, targets = run.data.padding.padded_len, data.describe(run.data.task).targets
    inputs, mask = (jax.ShapeDtypeStruct((length,), dtype) for dtype in (jnp.int32, bool))
    labels = jax.ShapeDtypeStruct((targets,) if targets else (), jnp.int32)
    row = _by_batch_key(run.model, {"inputs": inputs, "mask": mask, "positions": labels})
    return TrainSpec(
        config=run.fit,
        mesh=run.mesh,
        make_params=make_params(run),
        loss_fn=make_loss(run.model),
        row={**row, "labels": labels},
    )


def make_loss(model: Model) -> LossFn:
    """Returns the loss: cross-entropy, with the metrics loss and accuracy."""

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        inputs = (batch[key] for key in model.batch_keys)
        logits = apply_model(model, params, dropout_rng, *inputs).astype(jnp.float32)
        labels, weights = batch["labels"], batch["weights"]
        if labels.ndim > 1:  # labeled tokens
            weights = jnp.repeat(weights, labels.shape[1])
            labels, logits = labels.ravel(), logits.reshape(-1, logits.shape[-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        sums = {
            "loss": weighted(losses, weights),
            "accuracy": weighted(logits.argmax(axis=-1) == labels, weights),
        }
        return sums["loss"][0], sums

    return loss_fn


def make_params(run: Run) -> Callable[[], Any]:
    """Returns `TrainSpec.make_params` of a run, which initializes the parameters from the run's seed."""
    return lambda: _init(run.model, run.data.padding.padded_len, run.fit.train.seed)


def train(run: Run, task: Task, workdir: Workdir, *, test: bool = True) -> dict[str, Any]:
    """Trains or resumes a run, and evaluates its best checkpoint once on the test set.

    With `test=False`, the test set is not evaluated; a later call with `test=True` evaluates it.

    Returns:
      The content of `result.json`. If the run is finished, nothing is trained.
    """
    spec = make_spec(run)

    training = _examples(run, task.splits["train"])
    files = {task.folder: task.sha256}
    is_unfinished = workdir.result is None and workdir.divergence is None
    if is_unfinished and run.data.curriculum:
        if task.open_curriculum is None:
            raise ValueError(
                f"data.curriculum={run.data.curriculum}: the `lra.data.Task` {task.name} has no"
                " open_curriculum. Set it, or set TaskInfo.has_curriculum=False."
            )
        with sync_errors():  # each process generates or opens the easier examples
            easier, prepared = task.open_curriculum()
        workdir.require_same("curriculum_sha256", prepared.sha256, "curriculum")
        training = dataclasses.replace(training, curriculum=_examples(run, easier))
        files[prepared.folder] = prepared.sha256

    def check_data() -> None:
        for folder, sha256 in files.items():
            cache.require_unchanged(folder, sha256)

    def evaluate_test(params: Any) -> dict[str, Any]:
        return {**_evaluate_test(run, spec, task, params), "baselines": baselines(task)}

    def report(fit_result: FitResult, params: Any) -> dict[str, Any]:
        return {
            "task": task.name,
            "attention": run.attention,
            **(evaluate_test(params) if test else {"state": VALIDATED}),
            "valid_accuracy": fit_result.best_metrics["accuracy"],
            "partial": is_partial(run, task)
            or fit_result.best_examples < len(task.splits["valid"]),
        }

    result = train_to_result(
        workdir,
        spec,
        training=training,
        validation=_examples(run, task.splits["valid"]),
        data_sha256=task.sha256,
        check_data=check_data,
        report=report,
    )
    if test and result.get("state") == VALIDATED:
        rest = {key: value for key, value in result.items() if key != "state"}
        tested = evaluate_test(load_best_params(workdir, spec))
        # `eval` may differ from that of the training.
        result = {**rest, **tested, "partial": result["partial"] or is_partial(run, task)}
        workdir.write_result(result)
    return result


def describe_data(run: Run, task: Task) -> str:
    """Checks all hashes of the data; returns hashes, statistics and the first training examples."""
    from lra.data import statistics  # loads pandas

    return statistics.describe_data(task, data.describe(run.data.task))


def evaluate_checkpoint(
    run: Run, task: Task, workdir: Workdir, *, test: bool = True
) -> dict[str, Any]:
    """Evaluates a finished run's best checkpoint; writes nothing.

    With `test=False`, only the validation set is evaluated, not the test set.

    Raises:
      NotFinished: The run has no result yet.
      LossNotFinite: The run diverged.
    """
    result = workdir.require_result()
    workdir.require_data(task.sha256)
    spec = make_spec(run)
    params = load_best_params(workdir, spec)
    found = {
        "task": task.name,
        "attention": run.attention,
        "best_step": result["best_step"],
        "valid_accuracy": _evaluate(run, spec, task, "valid", params)["accuracy"],
    }
    return found | (_evaluate_test(run, spec, task, params) if test else {})


def is_partial(run: Run, task: Task) -> bool:
    """Returns True if a run plans fewer steps than its recipe, or has fewer examples than the benchmark."""
    info = data.describe(run.data.task)
    fewer_evaluated = any(
        _num_evaluated(run, task, name) < len(task.splits[name]) for name in ("valid", "test")
    )
    train = run.fit.train
    fewer_steps = train.total_steps < (train.budget_steps or info.total_steps)
    return not info.has_all(task) or fewer_evaluated or fewer_steps


def describe_result(result: Mapping[str, Any]) -> str:
    """Returns a sentence with the accuracies of one run."""
    if "test_accuracy" not in result:
        return (
            f"{result['task']} with {result['attention']} attention: validation accuracy"
            f" {100 * result['valid_accuracy']:.2f} % at its best step, {result['best_step']:,}; the test"
            " set was not evaluated."
        )
    error = binomial_error(result["test_accuracy"], result["test_examples"])
    return (
        f"{result['task']} with {result['attention']} attention: test accuracy"
        f" {100 * result['test_accuracy']:.2f} ± {100 * error:.2f} % on {result['test_examples']:,}"
        f" examples; validation {100 * result['valid_accuracy']:.2f} % at its best step,"
        f" {result['best_step']:,}."
    )


def _check_variables(model: Model, params: Any, length: int, attention: str) -> None:
    """Raises ValueError unless a training step at `length` can use `params` and its random streams."""
    step = functools.partial(apply_model, model)
    try:
        jax.eval_shape(step, params, jax.random.key(0), *_inputs(model, length))
    except (ScopeCollectionNotFound, InvalidRngError) as error:
        raise ValueError(
            f"attention.name: {attention} may have no variables but parameters (so no nn.BatchNorm), and no"
            f' random stream but "dropout": {error}'
        ) from None
    except ScopeParamShapeError as error:
        raise ValueError(
            f"attention.name: {attention} has parameters whose shapes depend on the length of the input, so"
            f" all batches must have one length: set data.pad_to_multiple_of=0. {error}"
        ) from None


def _by_batch_key(model: Model, known: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values by batch key of the model.

    For pairs, `inputs1` and `inputs2` have the value of "inputs", and the masks that of "mask".
    """
    return {key: known[key.rstrip("12")] for key in model.batch_keys}


def _inputs(model: Model, length: int) -> list[Array]:
    inputs = jnp.zeros((1, length), jnp.int32)
    mask = jnp.ones((1, length), bool)
    known = {"inputs": inputs, "mask": mask, "positions": inputs[:, :1]}
    return list(_by_batch_key(model, known).values())


def _init(model: Model, length: int, seed: int = 0) -> Any:
    arrays = _inputs(model, length)
    return model.init(jax.random.key(seed), *arrays, deterministic=True)["params"]


def _examples(run: Run, split: Split) -> Examples:
    padding = run.data.padding

    def make_batch(indices: Any, longest: int = 0) -> Any:
        return split.batch(indices, padding.for_longest(longest))

    return Examples(len(split), make_batch, split.lengths if padding.multiple else None)


def _num_evaluated(run: Run, task: Task, split: str) -> int:
    """Returns the number of evaluated examples of a split."""
    return run.fit.eval.num_evaluated(len(task.splits[split]))


def _evaluate(run: Run, spec: TrainSpec, task: Task, split: str, params: Any) -> dict[str, float]:
    name = "validation" if split == "valid" else split
    logging.getLogger(__name__).info("Evaluating the %s set.", name)
    metrics: dict[str, float] = evaluate_split(spec, params, _examples(run, task.splits[split]))
    return metrics


def _evaluate_test(run: Run, spec: TrainSpec, task: Task, params: Any) -> dict[str, Any]:
    """Returns the entries of `result.json` about the test set."""
    return {
        "test_accuracy": _evaluate(run, spec, task, "test", params)["accuracy"],
        "test_examples": _num_evaluated(run, task, "test"),
    }
