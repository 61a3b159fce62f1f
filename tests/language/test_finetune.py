"""Fine-tuning from a checkpoint to predictions, on tasks of a few rows."""

import dataclasses
import functools
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from language import finetune, glue
from language.config import (
    FinetuneEvalConfig,
    FinetuneOptimizerConfig,
    FinetuneTrainConfig,
)
from language.finetune import trainer
from language.finetune.spec import collate, make_loss, mean_loss
from language.heads import HEADS
from language.tasks.data import TaskData
from language.tasks.metrics import score
from language.tasks.sequences import read_predictions
from language.tokenizer import load_tokenizer
from nystromformer_jax import training
from nystromformer_jax.pretrained import from_pretrained
from nystromformer_jax.support.durable import sha256_of
from nystromformer_jax.training import CannotWrite, Workdir
from tests.helpers import (
    OTHER_FRAMEWORK,
    REFERENCE,
    assert_close,
    files_of_at_most,
    rematerialises,
)
from tests.language import runs
from tests.language.files import fakes as files
from tests.language.glue import fakes


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny model with a vocabulary, written without training.

    It has a decision threshold, like the model of a run with `eval.tune_threshold`.
    """
    folder = files.checkpoint(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decision_threshold": 0.999}))
    return folder


def finetuned(tmp_path, checkpoint, task="mrpc", argument="", **changes):
    folder = fakes.write_task(tmp_path / "glue", task)
    config = runs.glue_sections(task, folder, checkpoint, argument, **changes)
    run = finetune.prepare(config, jax.devices()[:1])
    tokenizer = load_tokenizer(run.init.folder)
    data = glue.load(run.data, tokenizer)
    with Workdir(tmp_path / "run", config, paths=finetune.PATHS) as workdir:
        result = finetune.train(run, data, tokenizer, workdir)
        return result, run, data, workdir


@pytest.fixture(scope="module")
def finished(tmp_path_factory, checkpoint):
    """The folder of a run on MRPC, and what `finetuned` returns."""
    folder = tmp_path_factory.mktemp("finished")
    with runs.cache_in(folder):
        return folder, finetuned(folder, checkpoint)


@pytest.mark.slow_except("mrpc")
@pytest.mark.parametrize("task", ["mnli", "stsb", "cola", "mrpc"])
def test_predictions_of_a_run_give_its_scores(tmp_path, checkpoint, finished, task):
    if task == "mrpc":
        tmp_path, (result, _, data, _) = finished
    else:
        result, _, data, _ = finetuned(tmp_path, checkpoint, task)
    assert json.loads((tmp_path / "run/result.json").read_text()) == result
    for split in data.splits:
        if split == "train":
            continue
        files = list((tmp_path / "run/predictions").glob("*.tsv"))
        name = data.task.file_name(split)
        assert name in {file.name for file in files}
        read = read_predictions(data.task, tmp_path / "run/predictions" / name)
        assert len(read.predictions) == len(data.splits[split])
        if not data.splits[split].is_labeled:
            assert split not in result
        else:
            scores = score(data.task, read.predictions, read.labels)
            assert scores == pytest.approx(result[split], abs=1e-9)
            assert set(result[f"{split}_standard_error"]) == set(scores)


def test_finished_run_is_evaluated_again_and_exported_atomically(
    finished, no_annotations, monkeypatch
):
    folder, (result, run, data, workdir) = finished
    assert finetune.evaluate_checkpoint(run, data, workdir) == result
    before = set(workdir.path.iterdir())
    with monkeypatch.context() as another_process:
        another_process.setattr(training, "is_primary", lambda: False)
        finetune.write_export(run, workdir)
    with files_of_at_most(5000), pytest.raises(CannotWrite, match="run cannot be written"):
        finetune.write_export(run, workdir)
    assert set(workdir.path.iterdir()) == before
    content = finetune.write_export(run, workdir).read_bytes()
    batch = data.splits["valid"].batch(np.arange(7), 19)
    arguments = (batch["inputs"], batch["mask"], batch["types"])
    logits = jax.export.deserialize(bytearray(content)).call(*arguments)
    model, variables = from_pretrained(folder / "run/model")
    assert model.config.metadata["id2label"] == {"0": "0", "1": "1"}  # MRPC's
    assert finetune.open_trained(folder / "run").task.threshold is None
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    assert_close(logits, apply(variables, *arguments), OTHER_FRAMEWORK)


def test_a_submission_has_all_rows_or_is_not_written(tmp_path, finished, caplog):
    _, (_, run, data, workdir) = finished
    limited = dataclasses.replace(run.sections["eval"], max_examples=3)
    run = dataclasses.replace(run, sections={**run.sections, "eval": limited}).with_task(data.task)
    spec = finetune.make_spec(run, len(data.splits["train"]))
    params = training.load_best_params(workdir, spec)
    _, scores = trainer._evaluate(run, data, spec, params, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mrpc-valid.tsv"]
    assert scores["valid_examples"] == 3
    assert "Predictions for the test set are not written" in caplog.text


@pytest.mark.slow(minutes=0.2)
def test_run_starts_from_the_checkpoint_unless_from_scratch(tmp_path, checkpoint):
    """With a rate of almost zero the encoder stays the checkpoint's, or a new one."""
    still = {"optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0}}
    _, trained = from_pretrained(checkpoint)
    for from_scratch in (False, True):
        folder = tmp_path / str(from_scratch)
        changes = {"init": {"from_scratch": from_scratch}, "train": {"seed": 1}}
        result, _, _, _ = finetuned(folder, checkpoint, **changes, **still)
        assert result["from_scratch"] == from_scratch
        weights = "" if from_scratch else sha256_of(checkpoint / "model.safetensors")
        assert result["init_sha256"] == weights
        _, tuned = from_pretrained(folder / "run/model")
        words = [
            np.asarray(variables["params"]["nystromformer"]["embeddings"]["word"]["embedding"])
            for variables in (trained, tuned)
        ]
        assert (np.abs(words[0] - words[1]).max() > 1e-3) == from_scratch


@pytest.mark.slow(minutes=0.2)
def test_attention_can_differ_from_the_checkpoints(tmp_path, checkpoint):
    result, _, _, _ = finetuned(
        tmp_path, checkpoint, "mrpc", ",attention=softmax,conv_kernel_size=3"
    )
    assert result["attention"] == "softmax"


@pytest.mark.parametrize("remat", [False, True])
def test_remat_recomputes_layers(tmp_path, checkpoint, remat):
    argument, changes = ",attention=softmax", {"train": {"remat": remat}}
    config = runs.glue_sections("mrpc", tmp_path, checkpoint, argument, **changes)
    assert rematerialises(finetune.make_spec(finetune.prepare(config), 40)) == remat


def test_run_is_partial_if_it_saw_or_evaluated_less(tmp_path, checkpoint):
    run = finetune.prepare(runs.glue_sections("mrpc", tmp_path, checkpoint))
    task = glue.TASKS["mrpc"]

    def is_partial(splits=None, **changes):
        sections = {
            name: dataclasses.replace(section, **changes.get(name, {}))
            for name, section in run.sections.items()
        }
        counts = {**task.sizes, **(splits or {})}
        own = {name: range(size) for name, size in counts.items()}
        data = TaskData(task, own, "", tmp_path, counts)
        return finetune.is_partial(dataclasses.replace(run, sections=sections), data)

    for whole in (
        {},
        {"train": {"epochs": 1.0}},
        {"train": {"total_steps": 10**6}},
        {"eval": {"max_examples": 1_725}},
    ):
        assert not is_partial(**whole), whole
    for part in (
        {"train": {"epochs": 0.9}},
        {"train": {"total_steps": 916}},  # of 917 in two passes
        {"eval": {"max_examples": 1_724}},
        {"splits": {"train": 3_600}},
        {"splits": {"valid": 400}},
    ):
        assert is_partial(**part), part


def test_evaluates_after_each_epoch_rounded_up_to_full_steps(tmp_path, checkpoint):
    run = finetune.prepare(runs.glue_sections("mrpc", tmp_path, checkpoint))
    for examples, steps in ((40, 5), (41, 6), (47, 6)):  # in batches of 8
        assert run.fit_config(examples).eval.every_steps == steps


def test_epochs_are_converted_to_steps():
    train = functools.partial(FinetuneTrainConfig, batch_size=32)
    assert train(epochs=4.0).in_steps(3_668).total_steps == 459
    assert train(epochs=0.5).in_steps(3_668).total_steps == 58
    assert train(epochs=4.0, total_steps=7).in_steps(3_668).total_steps == 7
    optimizer = FinetuneOptimizerConfig(learning_rate=3e-5, warmup_share=0.05)
    assert optimizer.in_steps(459).warmup_steps == 23
    assert FinetuneEvalConfig().in_steps(115).every_steps == 115
    assert FinetuneEvalConfig(every_steps=9).in_steps(115).every_steps == 9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"epochs": 0.0}}, "train.epochs.*positive"),
        ({"train": {"epochs": 1e308}}, r"train.epochs.*at most 2\*\*32"),
        ({"train": {"batch_size": 0}}, "train.batch_size"),
        ({"train": {"total_steps": -1}}, "train.total_steps"),
        ({"optimizer": {"warmup_share": 0.7}}, "optimizer.warmup_share"),
        ({"optimizer": {"learning_rate": 0.0}}, "optimizer.learning_rate"),
        ({"eval": {"every_steps": -1}}, "eval.every_steps"),
        ({"init": {"checkpoint": ""}}, "init.checkpoint"),
        ({"data": {"max_len": 31}}, "data.max_len=31 is more than the 29 positions"),
        ({"data": {"max_len": 4}}, "data.max_len=4.*at least 5"),
        ({"data": {"task": "mrcp"}}, "did you mean mrpc"),
        ({"data": {"examples": -1}}, "data.examples"),
        ({"data": {"truncation": "tail"}}, "data.truncation"),
    ],
)
def test_rejects_invalid_configs_before_reading_data(tmp_path, checkpoint, changes, words):
    config = runs.glue_sections("mrpc", tmp_path, checkpoint, **changes)
    with pytest.raises(ValueError, match=words):
        finetune.prepare(config)


def test_loss_is_a_mean_over_the_labels_of_rows_with_weight():
    """Two labels, then four in a row of weight 0, then one."""
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    labels = jnp.array([[1, -1, 1, -1], [3, 3, 3, 3], [-1, 0, -1, -1]])
    batch = {"inputs": labels, "mask": jnp.ones((3, 4), bool), "types": labels, "labels": labels}
    model = types.SimpleNamespace(apply=lambda variables, *_, **__: variables["params"])
    loss_fn = make_loss(model, HEADS["token_classification"])
    loss, sums = loss_fn(jnp.asarray(logits), {**batch, "weights": jnp.array([1.0, 0, 1])}, None)
    words = [(0, 0), (0, 2), (2, 1)]
    expected = sum(np.log(np.exp(logits[at]).sum()) - logits[at][labels[at]] for at in words)
    correct = sum(logits[at].argmax() == labels[at] for at in words)
    assert_close(loss, expected, REFERENCE)
    assert_close(sums, {"loss": (expected, 3), "accuracy": (correct, 3)}, REFERENCE)


def test_collated_outputs_are_in_the_order_of_the_split():
    """Rows of weight 0 are dropped, shorter batches are padded, and the loss is a mean over labels."""
    batches = [
        {
            "outputs": {"classes": np.array([[3, 4, 5], [1, 1, 1]])},
            "loss": np.array([6.0, 2.0]),
            "count": np.array([3.0, 1.0]),
            "rows": np.array([2, 0]),
            "weights": np.array([1.0, 1.0]),
        },
        {
            "outputs": {"classes": np.array([[7, 8], [9, 9]])},
            "loss": np.array([1.0, 99.0]),
            "count": np.array([1.0, 1.0]),
            "rows": np.array([1, 1]),
            "weights": np.array([1.0, 0.0]),
        },
    ]
    outputs = collate(batches)
    assert outputs["classes"].tolist() == [[1, 1, 1], [7, 8, 0], [3, 4, 5]]
    assert mean_loss(batches) == pytest.approx(9 / 5)
