"""Runs of every kind of task: learned, scored, exported and predicted again, on a few rows."""

import csv
import dataclasses
import functools
import json
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from language.checkpoint import read_params
from language.config import (
    FinetuneEvalConfig,
    FinetuneOptimizerConfig,
    FinetuneTrainConfig,
    InitConfig,
)
from language.finetune import trainer
from language.finetune.answering import f1
from language.finetune.data import TaskData
from language.finetune.glue_tasks import TASKS
from language.finetune.heads import HEADS
from language.finetune.run import collate, is_partial, make_loss, mean_loss
from language.finetune.tagging import entity_scores
from language.tokenizer import load_tokenizer
from nystromformer_jax import training
from nystromformer_jax.pretrained import from_pretrained, load, save_pretrained
from nystromformer_jax.support.durable import sha256_of
from nystromformer_jax.support.predictions import padded_len
from nystromformer_jax.training import CannotWrite, ConfigDiffers, NotFinished, Workdir
from tests.helpers import OTHER_FRAMEWORK, REFERENCE, assert_close, files_of_at_most, rematerialises
from tests.language import runs
from tests.language.finetune import fakes, glue_fakes

EPOCHS = {"token_classification": 20.0, "question_answering": 20.0}  # enough to learn the task


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny model with a vocabulary, written without training.

    It has a decision threshold, like the model of a run with `eval.tune_threshold`.
    """
    folder = fakes.checkpoint(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"decision_threshold": 0.999}))
    return folder


def config_of(folder, checkpoint, name, argument="", **changes):
    """A config for one's own files of a kind, or for a task of GLUE, written to `folder`."""
    if name in TASKS:
        task = glue_fakes.write_task(folder / "glue", name)
        return runs.glue_sections(name, task, checkpoint, argument, **changes)
    return fakes.sections(name, fakes.write(folder, name), checkpoint, argument, **changes)


def opened(config):
    """The prepared run of a config on one device, and its data."""
    run = trainer.prepare(config, jax.devices()[:1])
    return run, trainer.load_data(run)


def trained(folder, config, act=trainer.train):
    """Trains a run in `folder`/run, or evaluates it; returns the result, the run, its data and its folder."""
    run, data = opened(config)
    with Workdir(folder / "run", config, paths=trainer.PATHS) as workdir:
        return act(run, data, workdir), run, data, workdir


@pytest.fixture(scope="module")
def finished(tmp_path_factory, checkpoint):
    """The folder of a run on MRPC, and what `trained` returns."""
    folder = tmp_path_factory.mktemp("finished")
    with runs.cache_in(folder):
        return folder, trained(folder, config_of(folder, checkpoint, "mrpc"))


def score_of_file(file, kind, tests):
    """A metric of a file of predictions by name, computed from the file alone."""
    if kind == "question_answering":
        answers = json.loads(file.read_text())
        entries = [p["qas"][0] for p in json.loads(tests.read_text())["data"][0]["paragraphs"]]
        scores = [f1(e["answers"][0]["text"], answers[e["id"]]) for e in entries]
        return {"f1": np.mean(scores)}
    if kind == "token_classification":
        blocks = [block.splitlines() for block in file.read_text().split("\n\n")]
        columns = [
            list(zip(*(line.split("\t") for line in block), strict=True)) for block in blocks
        ]
        return entity_scores([own[1] for own in columns], [own[2] for own in columns])[0]
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    guesses, truths = ([row[name] for row in rows] for name in ("prediction", "label"))
    if kind == "classification":
        return {"accuracy": sklearn_metrics.accuracy_score(truths, guesses)}
    if kind == "regression":
        pair = [float(x) for x in guesses], [float(x) for x in truths]
        return {"pearson": np.corrcoef(*pair)[0, 1]}
    names = list(fakes.LABELS.values())
    ones = [
        [[name in json.loads(cell) for name in names] for cell in own] for own in (truths, guesses)
    ]
    return {"micro_f1": sklearn_metrics.f1_score(*ones, average="micro", zero_division=0)}


def assert_scores(task, file, result, tests=None):
    """Requires that a file of predictions gives one of the metrics of a result."""
    for name, value in score_of_file(file, task.kind, tests).items():
        if name in result:
            assert value == pytest.approx(result[name], abs=1e-5), name


@pytest.mark.slow_except("mrpc")
@pytest.mark.parametrize("task", ["mnli", "stsb", "cola", "mrpc"])
def test_predictions_of_a_run_give_its_scores(tmp_path, checkpoint, finished, task):
    folder, (result, _, data, _) = finished
    if task != "mrpc":
        folder = tmp_path
        result, _, data, _ = trained(folder, config_of(folder, checkpoint, task))
    assert json.loads((folder / "run/result.json").read_text()) == result
    for name, split in data.splits.items():
        file = folder / "run/predictions" / data.task.file_name(name)
        assert file.exists() == (name != "train")
        if name != "train":
            assert file.read_bytes().count(b"\n") == 1 + len(split)
            assert (name in result) == split.is_labeled
        if name in result:
            assert_scores(data.task, file, result[name])
            assert set(result[f"{name}_standard_error"]) == set(result[name])


def test_finished_run_is_evaluated_again_and_exported_atomically(finished, no_annotations):
    folder, (result, run, data, workdir) = finished
    assert trainer.evaluate_checkpoint(run, data, workdir) == result
    before = set(workdir.path.iterdir())
    with files_of_at_most(5000), pytest.raises(CannotWrite, match="run cannot be written"):
        trainer.write_export(workdir.path)
    assert set(workdir.path.iterdir()) == before
    opened, _ = trainer.open_run(folder / "run")
    assert opened.model.config.metadata["id2label"] == {"0": "0", "1": "1"}  # MRPC's
    assert opened.task.threshold is None


def test_a_submission_has_all_rows_or_is_not_written(tmp_path, finished, caplog):
    _, (_, run, data, workdir) = finished
    limited = dataclasses.replace(run.sections["eval"], max_examples=3)
    run = dataclasses.replace(run, sections={**run.sections, "eval": limited}).with_task(data.task)
    spec = trainer.make_spec(run, len(data.splits["train"]))
    params = training.load_best_params(workdir, spec)
    scores = trainer._evaluate(run, data, spec, params, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mrpc-valid.tsv"]
    assert scores["valid_examples"] == 3
    assert "Predictions for the test set are not written" in caplog.text


def same_from_python(language_model, split, kind, predictions):
    """Requires that a language model predicts what the run predicted."""
    texts = [fakes.text(i) for i in range(fakes.COUNT)]
    if kind == "regression":
        numbers = np.array(predictions[1:], float)
        assert_close(language_model.regress(texts), numbers, OTHER_FRAMEWORK)
    elif kind == "token_classification":
        tags = language_model.tag([example.texts for example in split.examples])
        assert [tag for own in tags for tag in own] == [tag for tag in predictions if tag]
    elif kind == "question_answering":
        for example in split.examples:
            assert language_model.answer(*example.texts)[0] == "rome"
    else:
        names = ["neg", "pos"] if kind == "classification" else ["fun", "odd", "sad"]
        assert language_model.classify(texts)[0] == names


@pytest.mark.slow_except("token_classification")
@pytest.mark.parametrize("kind", HEADS)
def test_a_run_learns_and_predicts_again(tmp_path, checkpoint, kind, no_annotations):
    tests = fakes.write(tmp_path, kind, "test")
    config = config_of(
        tmp_path,
        checkpoint,
        kind,
        data={"test_file": str(tests)},
        train={"epochs": EPOCHS.get(kind, 2.0)},
        log={"every_steps": 100},
        eval={"every_steps": 100, "tune_threshold": kind == "multi_label"},
    )
    result, run, data, workdir = trained(tmp_path, config)
    assert trainer.evaluate_checkpoint(run, data, workdir) == result
    metric = next(iter(result["test"]))
    written = tmp_path / "run/predictions" / data.task.file_name("test")
    assert_scores(data.task, written, result["test"], tests)
    assert ("threshold" in result) == (kind == "multi_label")
    if kind in EPOCHS:
        assert result["test"][metric] == 1  # labels, windows and answers are aligned
    batch = data.splits["valid"].batch(np.arange(2), 19)
    arguments = (batch["inputs"], batch["mask"], batch["types"])
    content = trainer.write_export(tmp_path / "run").read_bytes()
    outputs = jax.export.deserialize(bytearray(content)).call(*arguments)
    model, variables = from_pretrained(tmp_path / "run/model")
    assert type(model) is HEADS[kind].model_class
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    assert_close(outputs, apply(variables, *arguments), OTHER_FRAMEWORK)

    output = tmp_path / "new/output"
    assert trainer.predict(tmp_path / "run", tests, output) == result["test_examples"]
    own, ours = (file.read_text().splitlines() for file in (output, written))
    if kind != "question_answering":  # the file of a labeled split has one more column
        column = 2 if kind == "token_classification" else 1
        own = [line.split("\t")[-1] for line in own]
        ours = [(line.split("\t") + [""] * 2)[column] for line in ours]
    assert own == ours
    same_from_python(load(tmp_path / "run/model"), data.splits["test"], kind, own)
    with pytest.raises(ValueError, match=r"--output: .*new is a folder"):
        trainer.predict(tmp_path / "run", tests, output.parent)
    before = output.read_bytes()
    tests.write_text("")
    with pytest.raises(ValueError, match=r"test\.\w+ (has no|is not JSON)"):
        trainer.predict(tmp_path / "run", tests, output)
    assert output.read_bytes() == before


def test_the_model_is_saved_before_the_test_set_is_read(tmp_path, checkpoint, monkeypatch):
    """The same command then evaluates again; nothing predicts or exports before it has finished."""
    data = {"test_file": str(fakes.write(tmp_path, "regression", "test"))}
    config = config_of(tmp_path, checkpoint, "regression", data=data, train={"epochs": 0.5})
    evaluate = training.evaluate_split

    def stop(spec, params, examples, summarize):
        if examples.count == fakes.COUNT:  # of the test set
            raise KeyboardInterrupt
        return evaluate(spec, params, examples, summarize)

    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate_split", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, config)
    saved = sha256_of(tmp_path / "run/model/model.safetensors")
    with pytest.raises(NotFinished):
        trainer.write_export(tmp_path / "run")
    assert trained(tmp_path, config)[0]["test_examples"] == fakes.COUNT
    assert sha256_of(tmp_path / "run/model/model.safetensors") == saved


@pytest.mark.slow(minutes=0.2)
def test_run_starts_from_the_checkpoint_unless_from_scratch(tmp_path, checkpoint):
    """With a rate of almost zero the encoder stays the checkpoint's, or a new one."""
    still = {"optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0}}
    _, pretrained = from_pretrained(checkpoint)
    for from_scratch in (False, True):
        folder = tmp_path / str(from_scratch)
        changes = {"init": {"from_scratch": from_scratch}, "train": {"seed": 1}}
        config = config_of(folder, checkpoint, "mrpc", **changes, **still)
        result, _, _, _ = trained(folder, config)
        assert result["from_scratch"] == from_scratch
        weights = "" if from_scratch else sha256_of(checkpoint / "model.safetensors")
        assert result["init_sha256"] == weights
        _, tuned = from_pretrained(folder / "run/model")
        words = [
            np.asarray(variables["params"]["nystromformer"]["embeddings"]["word"]["embedding"])
            for variables in (pretrained, tuned)
        ]
        assert (np.abs(words[0] - words[1]).max() > 1e-3) == from_scratch


@pytest.mark.slow(minutes=0.2)
def test_attention_can_differ_from_the_checkpoints(tmp_path, checkpoint):
    config = config_of(tmp_path, checkpoint, "mrpc", ",attention=softmax,conv_kernel_size=3")
    result, _, _, _ = trained(tmp_path, config)
    assert result["attention"] == "softmax"


@pytest.mark.parametrize("remat", [False, True])
def test_remat_recomputes_layers(tmp_path, checkpoint, remat):
    argument, changes = ",attention=softmax", {"train": {"remat": remat}}
    config = runs.glue_sections("mrpc", tmp_path, checkpoint, argument, **changes)
    assert rematerialises(trainer.make_spec(trainer.prepare(config), 40)) == remat


def test_run_is_partial_if_it_saw_or_evaluated_less(tmp_path, checkpoint):
    run = trainer.prepare(runs.glue_sections("mrpc", tmp_path, checkpoint))
    task = TASKS["mrpc"]

    def partial(splits=None, **changes):
        sections = {
            name: dataclasses.replace(section, **changes.get(name, {}))
            for name, section in run.sections.items()
        }
        counts = {**task.sizes, **(splits or {})}
        own = {name: range(size) for name, size in counts.items()}
        data = TaskData(task, None, own, "", tmp_path, counts)
        return is_partial(dataclasses.replace(run, sections=sections), data)

    for whole in (
        {},
        {"train": {"epochs": 1.0}},
        {"train": {"total_steps": 10**6}},
        {"eval": {"max_examples": 1_725}},
    ):
        assert not partial(**whole), whole
    for part in (
        {"train": {"epochs": 0.9}},
        {"train": {"total_steps": 916}},  # of 917 in two passes
        {"eval": {"max_examples": 1_724}},
        {"splits": {"train": 3_600}},
        {"splits": {"valid": 400}},
    ):
        assert partial(**part), part


def test_evaluates_after_each_epoch_rounded_up_to_full_steps(tmp_path, checkpoint):
    run = trainer.prepare(runs.glue_sections("mrpc", tmp_path, checkpoint))
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
        trainer.prepare(config)


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


def test_examples_of_similar_length_are_padded_together(tmp_path, checkpoint):
    """Batches are shorter than max_len, and the loss of a batch does not depend on its padding."""
    file = fakes.write(tmp_path, "classification")
    argument = ",attention=nystrom,max_len=150"
    config = fakes.sections("classification", file, checkpoint, argument, data={"max_len": 150})
    run = trainer.prepare(config)
    data = trainer.load_data(run)
    split = data.splits["train"]
    grouped = run.examples(split)
    assert grouped.lengths.tolist() == (split.lengths[:, 0] + 2).tolist()
    rows = np.arange(len(split))
    short = grouped.fetch(rows)
    assert short["inputs"].shape == (len(split), 16)
    off = dataclasses.replace(run, data=dataclasses.replace(run.data, group_by_length=False))
    full = off.examples(split).fetch(rows)
    assert full["inputs"].shape == (len(split), 150)
    spec = trainer.make_spec(run, len(split))
    params = jax.jit(spec.make_params)()
    weights = {"weights": np.ones(len(split), np.float32)}
    outputs = [spec.compiled_eval_step(params, {**batch, **weights}) for batch in (short, full)]
    assert_close(outputs[0]["loss"], outputs[1]["loss"], OTHER_FRAMEWORK)
    for changes in (
        {"landmark_layout": "hf"},
        {"mask_conv": False, "conv_kernel_size": 3},
        {"attention": "reformer"},
    ):
        changed = dataclasses.replace(run.model.config, **changes)
        model = dataclasses.replace(run, model=type(run.model)(changed))
        assert model.examples(split).lengths is None
    lengths = {1: 64, 64: 64, 65: 128, 128: 128, 129: 150, 150: 150}
    assert {longest: padded_len(longest, 150) for longest in lengths} == lengths


def test_layouts_that_depend_on_the_length_are_padded_to_max_len(tmp_path):
    """Hugging Face's layout needs a length that is a multiple of the number of landmarks."""
    checkpoint = fakes.checkpoint(tmp_path / "checkpoint", max_len=150)
    file = fakes.write(tmp_path, "classification")
    changes = {"data": {"max_len": 150}, "init": {"quirks": "hf"}}
    config = fakes.sections("classification", file, checkpoint, ",attention=nystrom", **changes)
    config["attention"]["num_landmarks"] = 15
    run = trainer.prepare(config)
    split = trainer.load_data(run).splits["train"]
    assert run.model.config.landmark_layout == "hf"
    assert run.examples(split).lengths is None
    batch = run.examples(split).fetch(np.arange(3))
    spec = trainer.make_spec(run, len(split))
    weights = {"weights": np.ones(3, np.float32)}
    spec.compiled_eval_step(jax.jit(spec.make_params)(), {**batch, **weights})


def test_two_separators_need_room_before_data_is_read(tmp_path):
    folder = fakes.checkpoint(tmp_path / "checkpoint")
    dataclasses.replace(load_tokenizer(folder), pair_separators=2).save(folder)

    def open_tokenizer(max_len):
        data = {"text_pair": "second", "max_len": max_len}
        return trainer.open_tokenizer(
            trainer.prepare(fakes.sections("classification", "none.csv", folder, data=data))
        )

    assert open_tokenizer(6).pair_separators == 2
    with pytest.raises(
        ValueError, match=r"data.max_len=5: a pair of texts needs at least 6 tokens"
    ):
        open_tokenizer(5)


def test_too_few_rows_for_one_example_are_an_error_before_training(tmp_path, checkpoint):
    changes = {"eval": {"max_examples": 1}, "train": {"epochs": 0.5}}
    with pytest.raises(ValueError, match=r"eval.max_examples=1: the first example is longer"):
        trained(tmp_path, config_of(tmp_path, checkpoint, "question_answering", **changes))
    assert list((tmp_path / "run").glob("*.json*")) == []


def test_configs_of_older_runs_are_read(finished):
    _, (_, run, _, _) = finished
    data, command = {**run.config["data"], "workers": 0}, {"config": "configs/glue.py:mrpc"}
    older = trainer.prepare({**run.config, "data": data, "command": command}, jax.devices()[:1])
    assert older.sections == run.sections


@pytest.mark.parametrize(("kind", "outputs"), [("regression", 1), ("classification", 2)])
def test_a_config_without_labels_has_placeholders(checkpoint, kind, outputs):
    run = trainer.prepare(fakes.sections(kind, "none.csv", checkpoint))
    assert run.model.config.num_labels == outputs


@pytest.mark.slow(minutes=0.2)
def test_metrics_with_and_without_a_tuned_threshold_are_not_compared(
    tmp_path, checkpoint, no_annotations
):
    config = config_of(tmp_path, checkpoint, "multi_label", train={"epochs": 0.5})
    trained(tmp_path, config)
    tuned = runs.merged(config, {"eval": {"tune_threshold": True}})
    for act in (trainer.train, trainer.evaluate_checkpoint):
        with pytest.raises(ConfigDiffers, match=r"tune_threshold was False, is now True\. Pass"):
            trained(tmp_path, tuned, act)


def test_a_run_without_checkpoint_does_not_resume_from_other_weights(
    tmp_path, checkpoint, monkeypatch, no_annotations
):
    def stop(*arguments):
        raise KeyboardInterrupt

    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    config = config_of(tmp_path, folder, "regression", train={"epochs": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "read_params", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, config)
    model, variables = from_pretrained(folder)
    save_pretrained(folder, model, jax.tree.map(lambda x: x + 0.01, variables))
    with pytest.raises(ConfigDiffers, match="contains a run with different weights in"):
        trained(tmp_path, config)


@pytest.mark.parametrize(("examples", "partial"), [(0, False), (7, True), (999, False)])
def test_a_run_on_a_sample_of_a_file_is_partial(tmp_path, checkpoint, examples, partial):
    data = {"examples": examples}
    run, data = opened(config_of(tmp_path, checkpoint, "classification", data=data))
    assert is_partial(run, data) == partial
    rows = data.splits["train"].ids.astype(int).tolist()
    assert (rows == sorted(rows)) == (not partial)  # only a sample is in random order


def test_positions_are_repeated_only_for_a_named_attention(tmp_path, checkpoint):
    def prepare(argument):
        changes = {"data": {"max_len": 61}}
        return trainer.prepare(fakes.sections("regression", "x", checkpoint, argument, **changes))

    with pytest.raises(ValueError, match=r"more than the 29 positions of .*attention=nystrom"):
        prepare("")
    run = prepare(",attention=nystrom")
    assert run.model.config.max_len == 61
    init = InitConfig(checkpoint=str(checkpoint))
    params = read_params(init, run.model.config, type(run.model), 0)
    table = params["nystromformer"]["embeddings"]["position"]["embedding"]
    np.testing.assert_array_equal(table[29:58], table[:29])
