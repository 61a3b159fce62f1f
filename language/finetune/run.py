"""A validated config of fine-tuning, with its mesh, task and model, and its `TrainSpec`."""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from language.checkpoint import (
    check_tokenizer,
    make_params,
    model_config,
    require_packages,
)
from language.config import FINETUNING, InitConfig
from language.finetune.data import TaskData, load
from language.finetune.examples import Split
from language.finetune.files import FilesConfig
from language.finetune.glue import GlueConfig
from language.finetune.heads import HEADS, Head
from language.finetune.sequences import SequenceTask
from language.finetune.task import DataConfig, Outputs, Task
from language.tokenizer import Tokenizer, load_tokenizer
from nystromformer_jax import NystromformerConfig, training
from nystromformer_jax.pretrained.config_json import has_convolution
from nystromformer_jax.support.predictions import BASE_LEN, padded_len
from nystromformer_jax.typing import Array

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """A validated config with the mesh, the task and the model.

    The labels of one's own files are known only when the files have been read; see `with_task`.
    """

    config: Mapping[str, Any]  # plain sections, for `config.json`
    data: DataConfig
    init: InitConfig
    sections: Mapping[str, Any]
    mesh: Mesh
    task: Task
    model: Any

    def __post_init__(self) -> None:
        if self.sections["train"].class_weights and self.task.kind != "classification":
            raise ValueError(
                f"train.class_weights: {self.task.title} has no classes of texts: leave it empty."
            )

    @property
    def head(self) -> Head:
        """The head of the task."""
        return HEADS[self.task.kind]

    def with_task(self, task: Task) -> "FineTuning":
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

    def examples(self, split: Split) -> training.Examples:
        """Returns the examples of a split for the input pipeline.

        They are grouped by length if the config asks for it, the length is not divided, and padding does not
        affect outputs.
        """
        config, max_len = self.model.config, self.data.max_len
        base_len = self.data.base_len or BASE_LEN
        is_whole = self.mesh.shape["sequence"] == 1
        groups = self.data.group_by_length and is_whole and not depends_on_length(config)

        def batch(indices: npt.NDArray[np.integer], longest: int = max_len) -> Any:
            # Also if all texts are empty, there is room for one token of each.
            longest = max(longest, split.num_special + split.lengths.shape[1])
            rows = split.batch(indices, padded_len(longest, max_len, base_len))
            if config.num_types == 1:  # as in RoBERTa, both texts have type 0
                rows = {**rows, "types": np.zeros_like(rows["types"])}
            return {**rows, "rows": np.asarray(indices, np.int32)}

        lengths = split.padded_lengths(max_len) if groups else None
        return training.Examples(len(split), batch, lengths)

    def class_weights(self, train: Split) -> npt.NDArray[np.float32] | None:
        """Returns the weight of each class in the training loss, [C]; None if all are 1.

        "balanced" weights are N / (C n) for a class with n of the N training examples.

        Raises:
          ValueError: The config has another number of weights than there are classes.
        """
        given, count = self.sections["train"].class_weights, self.task.num_labels
        if not given:
            return None
        if given == "balanced":
            sizes = np.bincount(train.labels, minlength=count)
            return (len(train) / (count * np.maximum(sizes, 1))).astype(np.float32)
        weights = np.array([float(weight) for weight in given.split(",")], np.float32)
        if len(weights) != count:
            raise ValueError(
                f"train.class_weights={given}: needs {count} numbers, one for each of the labels"
                f" {', '.join(self.task.labels)}."
            )
        return weights

    def make_params(self) -> Callable[[], Any]:
        """Returns a function that initializes the parameters from the seed of the config."""
        return make_params(self.model, self.data.max_len, self.sections["train"].seed)


def depends_on_length(config: NystromformerConfig) -> bool:
    """Returns True if the outputs depend on the padded length of a batch."""
    if config.attention == "reformer":  # it has more buckets for a longer batch
        return True
    if config.landmark_layout != "real":  # the length must also be a multiple of M
        return True
    return has_convolution(config.attention, config.conv_kernel_size) and not config.mask_conv


def prepare(config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None) -> FineTuning:
    """Validates a config and returns the run; nothing is prepared, written or compiled.

    `config` has sections of plain values. If `devices` is None, the mesh uses all devices.

    Raises:
      ValueError: A value is invalid; the message names the section and the key.
      FileNotFoundError: `init.checkpoint` does not exist.
      ImportError: A package of the extra `language` is not installed.
    """
    require_packages()
    sections = read_sections(config)
    data, init = sections["data"], sections["init"]
    if not init.checkpoint:
        raise ValueError(
            "init.checkpoint: needs the folder of a pretrained model with its tokenizer, such as model/ in"
            " a pretraining run's folder, or a Hugging Face folder. init.from_scratch=True uses only"
            " its sizes and tokenizer."
        )
    task = data.make_task()
    mesh = training.make_mesh(sections["mesh"], devices)
    model = HEADS[task.kind].model_class(
        _model_config(
            config,
            init,
            data.max_len,
            num_labels=task.num_labels,
            remat=sections["train"].remat,
        )
    )
    config, sections = training.choose_accumulation(
        config,
        sections,
        mesh,
        core=model.config.make_core()(),
        sizes=model.config,
        length=data.max_len,
    )
    run = FineTuning(config, data, init, sections, mesh, task, model)
    run.fit_config(1).check_batches(mesh)
    training.check_length(mesh, data.max_len, "data.max_len")
    jax.eval_shape(run.make_params())  # to validate the model
    return run


def read_sections(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of a config as dataclasses; "data" is a `GlueConfig` if it has a task.

    Older runs have `data.workers`, which is ignored.
    """
    data = {key: value for key, value in config.get("data", {}).items() if key != "workers"}
    if config.get("eval", {}).get("tune_threshold"):  # of version 0.2.0
        _logger.warning(
            "eval.tune_threshold was removed and has no effect: the most probable class is predicted, and"
            " labels from a probability of 0.5."
        )
    kinds = {"data": GlueConfig if "task" in data else FilesConfig, **FINETUNING}
    sections = {**config, "data": data}
    return training.read_sections(sections, kinds, plain=["model", "attention"])


def open_tokenizer(run: FineTuning) -> Tokenizer:
    """Opens the tokenizer of the initial checkpoint.

    Raises:
      FileNotFoundError: The checkpoint has no tokenizer.
      ValueError: The tokenizer does not match the model of the checkpoint, or `data.max_len` is too small
        for its special tokens.
    """
    tokenizer = load_tokenizer(run.init.folder)
    check_tokenizer(tokenizer, run.model.config)
    least = 4 + tokenizer.pair_separators  # [CLS], [SEP] at the end, and one token of each text
    if isinstance(run.task, SequenceTask) and len(run.task.texts) == 2 and run.data.max_len < least:
        raise ValueError(
            f"data.max_len={run.data.max_len}: a pair of texts needs at least {least} tokens with the"
            f" tokenizer of {run.init.checkpoint}, the special ones and one of each text."
        )
    return tokenizer


def load_data(run: FineTuning) -> TaskData:
    """Returns the prepared data of a run; validates its tokenizer, and its config for the labels."""
    data = load(run.data, open_tokenizer(run))
    run.with_task(data.task).class_weights(data.splits["train"])
    return data


def is_partial(run: FineTuning, data: TaskData) -> bool:
    """Returns True if a run uses only a part of the task's examples or of the steps of `epochs`."""
    counts = {name: len(split) for name, split in data.splits.items()}
    fewer_there = not all(data.task.has_all(name, counts.get(name, 0)) for name in data.task.sizes)
    fewer_there |= data.is_sample
    train_count = counts.pop("train")
    config = run.fit_config(train_count)
    fewer_seen = config.train.total_steps * config.train.batch_size < train_count
    fewer_evaluated = any(config.eval.num_evaluated(count) < count for count in counts.values())
    epochs = dataclasses.replace(run.sections["train"], total_steps=0).in_steps(train_count)
    fewer_steps = config.train.total_steps < epochs.total_steps
    return fewer_there or fewer_seen or fewer_evaluated or fewer_steps


def _model_config(
    config: Mapping[str, Any], init: InitConfig, max_len: int, **fields: Any
) -> NystromformerConfig:
    """Returns the model's config; repeats the checkpoint's positions if they are fewer than `max_len`."""
    own = model_config(config, init, **fields)
    if max_len <= own.max_len:
        return own
    if not config["attention"].get("name"):
        raise ValueError(
            f"data.max_len={max_len} is more than the {own.max_len} positions of {init.checkpoint}: lower it,"
            " or name an attention, such as attention=nystrom after the colon of --config, to repeat them."
        )
    return model_config(config, init, max_len=max_len, **fields)


def make_spec(
    run: FineTuning,
    examples: int,
    valid: Split | None = None,
    class_weights: npt.NDArray[np.float32] | None = None,
) -> training.TrainSpec:
    """Returns the `TrainSpec` of a run with `examples` training examples.

    Training needs the validation split `valid` and the weights of classes; a plan or an export does not.
    """
    tokens = jax.ShapeDtypeStruct((run.data.max_len,), jnp.int32)

    def summarize(batches: list[Any]) -> dict[str, float]:
        assert valid is not None
        outputs = collate(batches)
        scores, _ = run.task.score(valid, run.task.predict(valid, outputs))
        return {**scores, "loss": mean_loss(batches)}

    return training.TrainSpec(
        config=run.fit_config(examples),
        mesh=run.mesh,
        make_params=run.make_params(),
        loss_fn=make_loss(run.model, run.head, class_weights),
        row={
            "inputs": tokens,
            "mask": jax.ShapeDtypeStruct(tokens.shape, bool),
            "types": tokens,
            "labels": run.head.label(run.data.max_len, run.task.num_labels),
            "rows": jax.ShapeDtypeStruct((), jnp.int32),
        },
        full_length=run.data.max_len if run.data.base_len else 0,
        eval_step=make_outputs_step(run.model, run.head, run.mesh),
        summarize=summarize,
        select=run.task.select_by,
        tie_break="loss",
    )


def make_loss(model: Any, head: Head, class_weights: npt.NDArray[np.float32] | None = None) -> Any:
    """Returns the `LossFn`: the mean of the head's losses over all labels of a batch.

    With `class_weights` [C] the mean of a classification's losses is weighted by the class of each label.
    """

    def loss_fn(
        params: Any, batch: dict[str, Array], dropout_rng: Array | None
    ) -> tuple[Array, dict[str, Any]]:
        losses = head.losses(
            _apply(model, params, batch, dropout_rng), batch["labels"], batch["mask"]
        )
        weights = batch["weights"]
        own = 1.0 if class_weights is None else jnp.asarray(class_weights)[batch["labels"]]
        loss, _ = training.weighted(losses.loss * own, weights)
        count, _ = training.weighted(losses.num_labels, weights)
        sums = {"loss": (loss, training.weighted(losses.num_labels * own, weights)[0])}
        if losses.num_correct is not None:
            sums["accuracy"] = (training.weighted(losses.num_correct, weights)[0], count)
        return loss, sums

    return loss_fn


def make_outputs_step(model: Any, head: Head, mesh: Mesh) -> training.EvalStep:
    """Returns a compiled step `(params, batch) -> outputs`, for `collate`."""

    def outputs_step(params: Any, batch: dict[str, Any]) -> dict[str, Any]:
        logits = _apply(model, params, batch, None)
        losses = head.losses(logits, batch["labels"], batch["mask"])
        return {
            "outputs": head.outputs(logits),
            "loss": losses.loss,
            "count": losses.num_labels,
            "rows": batch["rows"],
            "weights": batch["weights"],
        }

    return jax.jit(training.on_mesh(outputs_step, mesh), out_shardings=training.replicated(mesh))


def collate(batches: Sequence[Mapping[str, Any]]) -> Outputs:
    """Returns the outputs of all real rows in the order of the split; those of shorter batches are padded.

    A batch has "outputs", "rows" (their indices in the split) and "weights" (0 at rows that fill it up).
    """
    weights, rows = (
        np.concatenate([batch[name] for batch in batches]) for name in ("weights", "rows")
    )
    real = np.flatnonzero(weights > 0)
    order = real[np.argsort(rows[real], kind="stable")]
    outputs = {}
    for name in batches[0]["outputs"]:
        parts = [np.asarray(batch["outputs"][name]) for batch in batches]
        width = max(part.shape[1] for part in parts)
        padded = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        outputs[name] = np.concatenate(padded)[order]
    return outputs


def mean_loss(batches: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean loss over the labels of all real rows."""
    weights, losses, counts = (
        np.concatenate([batch[name] for batch in batches]) for name in ("weights", "loss", "count")
    )
    real = weights > 0
    return float(losses[real].sum(dtype=np.float64) / counts[real].sum(dtype=np.float64))


def _apply(model: Any, params: Any, batch: Mapping[str, Array], dropout_rng: Array | None) -> Any:
    inputs = (batch["inputs"], batch["mask"], batch["types"])
    return training.apply_model(model, params, dropout_rng, *inputs)
