"""Runs on own files of each kind: learned, scored, exported, and predicted again."""

import csv
import dataclasses
import functools
import json
import shutil
import types

import jax
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from language import finetune
from language.config import InitConfig
from language.finetune import trainer
from language.heads import HEADS
from language.initial import read_params
from language.tasks.answering import f1
from language.tasks.tagging import entity_scores
from language.tokenizer import load_tokenizer
from nystromformer_jax.pretrained import from_pretrained, load, save_pretrained
from nystromformer_jax.support.predictions import padded_len
from nystromformer_jax.training import ConfigDiffers, NotFinished, Workdir
from tests.helpers import OTHER_FRAMEWORK, assert_close
from tests.language.files import fakes

EPOCHS = {"token_classification": 20.0, "question_answering": 20.0}  # enough to learn the task


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return fakes.checkpoint(tmp_path_factory.mktemp("checkpoint"))


def scores_of_file(file, kind, tests):
    """The first metric of a file of predictions, computed from the file alone."""
    if kind == "question_answering":
        answers = json.loads(file.read_text())
        entries = [p["qas"][0] for p in json.loads(tests.read_text())["data"][0]["paragraphs"]]
        return np.mean([f1(e["answers"][0]["text"], answers[e["id"]]) for e in entries])
    if kind == "token_classification":
        blocks = [block.splitlines() for block in file.read_text().split("\n\n")]
        columns = [
            list(zip(*(line.split("\t") for line in block), strict=True)) for block in blocks
        ]
        return entity_scores([own[1] for own in columns], [own[2] for own in columns])[0]["f1"]
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
    guesses, truths = ([row[name] for row in rows] for name in ("prediction", "label"))
    if kind == "classification":
        return sklearn_metrics.accuracy_score(truths, guesses)
    if kind == "regression":
        return np.corrcoef([float(x) for x in guesses], [float(x) for x in truths])[0, 1]
    names = list(fakes.LABELS.values())
    ones = [
        [[name in json.loads(cell) for name in names] for cell in own] for own in (truths, guesses)
    ]
    return sklearn_metrics.f1_score(*ones, average="micro", zero_division=0)


def same_from_python(language_model, split, kind, predictions):
    """Requires that a language model predicts what the run predicted."""
    texts = [fakes.text(i) for i in range(fakes.COUNT)]
    if kind == "regression":
        assert_close(language_model.regress(texts), predictions, OTHER_FRAMEWORK)
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
    train = fakes.write(tmp_path, kind)
    tests = fakes.write(tmp_path, kind, "test")
    config = fakes.sections(
        kind,
        train,
        checkpoint,
        data={"test_file": str(tests)},
        train={"epochs": EPOCHS.get(kind, 2.0)},
        log={"every_steps": 100},
        eval={"every_steps": 100, "tune_threshold": kind == "multi_label"},
    )
    run = finetune.prepare(config, jax.devices()[:1])
    tokenizer = finetune.open_tokenizer(run)
    data = finetune.load_data(run, tokenizer)
    with Workdir(tmp_path / "run", config, paths=finetune.PATHS) as workdir:
        with pytest.raises(NotFinished):
            finetune.write_export(run, workdir)
        result = finetune.train(run, data, tokenizer, workdir)
        assert finetune.evaluate_checkpoint(run, data, workdir) == result
        content = finetune.write_export(run, workdir).read_bytes()
    metric = next(iter(result["test"]))
    written = tmp_path / "run/predictions" / data.task.file_name("test")
    assert scores_of_file(written, kind, tests) == pytest.approx(result["test"][metric], abs=1e-5)
    assert ("threshold" in result) == (kind == "multi_label")
    if kind in EPOCHS:
        assert result["test"][metric] == 1  # labels, windows and answers are aligned
    batch = data.splits["valid"].batch(np.arange(2), 19)
    arguments = (batch["inputs"], batch["mask"], batch["types"])
    outputs = jax.export.deserialize(bytearray(content)).call(*arguments)
    model, variables = from_pretrained(tmp_path / "run/model")
    assert type(model) is HEADS[kind].model_class
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    expected = apply(variables, *arguments)
    assert_close(outputs, expected, OTHER_FRAMEWORK)

    output = tmp_path / "new/output"
    trained = finetune.open_trained(tmp_path / "run")
    assert finetune.predict(trained, tests, output) == result["test_examples"]
    own, ours = (file.read_text().splitlines() for file in (output, written))
    if kind != "question_answering":  # the file of a labeled split has one more column
        column = 2 if kind == "token_classification" else 1
        own = [line.split("\t")[-1] for line in own]
        ours = [(line.split("\t") + [""] * 2)[column] for line in ours]
    if kind == "regression":
        own, ours = (np.array(cells[1:], float) for cells in (own, ours))
        assert_close(own, ours, OTHER_FRAMEWORK)
    else:
        assert own == ours
    same_from_python(load(tmp_path / "run/model"), data.splits["test"], kind, own)
    with pytest.raises(ValueError, match=r"--output: .*new is a folder; pass the path of a file"):
        finetune.predict(trained, tests, output.parent)
    before = output.read_bytes()
    tests.write_text("")
    with pytest.raises(ValueError, match=r"test\.\w+ (has no|is not JSON)"):
        finetune.predict(trained, tests, output)
    assert output.read_bytes() == before


def test_examples_of_similar_length_are_padded_together(tmp_path, checkpoint):
    """Batches are shorter than max_len, and the loss of a batch does not depend on its padding."""
    file = fakes.write(tmp_path, "classification")
    argument = ",attention=nystrom,max_len=150"
    config = fakes.sections("classification", file, checkpoint, argument, data={"max_len": 150})
    run = finetune.prepare(config)
    data = finetune.load_data(run, finetune.open_tokenizer(run))
    split = data.splits["train"]
    grouped = run.examples(split)
    assert grouped.lengths.tolist() == (split.lengths[:, 0] + 2).tolist()
    rows = np.arange(len(split))
    short = grouped.fetch(rows)
    assert short["inputs"].shape == (len(split), 64)
    off = dataclasses.replace(run, data=dataclasses.replace(run.data, group_by_length=False))
    full = off.examples(split).fetch(rows)
    assert full["inputs"].shape == (len(split), 150)
    spec = finetune.make_spec(run, len(split))
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
    run = finetune.prepare(config)
    split = finetune.load_data(run, finetune.open_tokenizer(run)).splits["train"]
    assert run.model.config.landmark_layout == "hf"
    assert run.examples(split).lengths is None
    batch = run.examples(split).fetch(np.arange(3))
    spec = finetune.make_spec(run, len(split))
    weights = {"weights": np.ones(3, np.float32)}
    spec.compiled_eval_step(jax.jit(spec.make_params)(), {**batch, **weights})


def test_two_separators_need_room_before_data_is_read(tmp_path):
    folder = fakes.checkpoint(tmp_path / "checkpoint")
    dataclasses.replace(load_tokenizer(folder), pair_separators=2).save(folder)

    def open_tokenizer(max_len):
        data = {"text_pair": "second", "max_len": max_len}
        return finetune.open_tokenizer(
            finetune.prepare(fakes.sections("classification", "none.csv", folder, data=data))
        )

    assert open_tokenizer(6).pair_separators == 2
    with pytest.raises(
        ValueError, match=r"data.max_len=5: a pair of texts needs at least 6 tokens"
    ):
        open_tokenizer(5)


def train_with(tmp_path, checkpoint, kind, evaluates=False, **evaluation):
    """Trains a run on few examples, or evaluates it."""
    file = fakes.write(tmp_path, kind)
    config = fakes.sections(kind, file, checkpoint, eval=evaluation, train={"epochs": 0.5})
    run = finetune.prepare(config, jax.devices()[:1])
    tokenizer = finetune.open_tokenizer(run)
    data = finetune.load_data(run, tokenizer)
    with Workdir(tmp_path / "run", config, paths=finetune.PATHS, read_only=evaluates) as workdir:
        if evaluates:
            return finetune.evaluate_checkpoint(run, data, workdir)
        return finetune.train(run, data, tokenizer, workdir)


def test_too_few_rows_for_one_example_are_an_error_before_training(tmp_path, checkpoint):
    with pytest.raises(ValueError, match=r"eval.max_examples=1: the first example is longer"):
        train_with(tmp_path, checkpoint, "question_answering", max_examples=1)
    assert list((tmp_path / "run").glob("*.json*")) == []


@pytest.mark.slow(minutes=0.2)
def test_older_runs_with_data_workers_are_read(tmp_path, checkpoint, no_annotations):
    result = train_with(tmp_path, checkpoint, "regression")
    file = tmp_path / "run/config.json"
    config = json.loads(file.read_text())
    config["data"]["workers"] = 0
    file.write_text(json.dumps(config))
    assert train_with(tmp_path, checkpoint, "regression") == result
    assert finetune.open_trained(tmp_path / "run").task.is_regression


@pytest.mark.parametrize(("kind", "outputs"), [("regression", 1), ("classification", 2)])
def test_a_config_without_labels_has_placeholders(checkpoint, kind, outputs):
    run = finetune.prepare(fakes.sections(kind, "none.csv", checkpoint))
    assert run.model.config.num_labels == outputs


@pytest.mark.slow(minutes=0.2)
def test_metrics_with_and_without_a_tuned_threshold_are_not_compared(
    tmp_path, checkpoint, no_annotations
):
    train_with(tmp_path, checkpoint, "multi_label")
    for evaluates in (False, True):
        with pytest.raises(ConfigDiffers, match=r"tune_threshold was False, is now True\. Pass"):
            train_with(tmp_path, checkpoint, "multi_label", evaluates, tune_threshold=True)


def test_a_run_without_checkpoint_does_not_resume_from_other_weights(
    tmp_path, checkpoint, monkeypatch, no_annotations
):
    def stop(*arguments):
        raise KeyboardInterrupt

    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, folder)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "read_params", stop)
        with pytest.raises(KeyboardInterrupt):
            train_with(tmp_path, folder, "regression")
    model, variables = from_pretrained(folder)
    save_pretrained(folder, model, jax.tree.map(lambda x: x + 0.01, variables))
    with pytest.raises(ConfigDiffers, match="contains a run with different weights in"):
        train_with(tmp_path, folder, "regression")


@pytest.mark.parametrize(("examples", "is_partial"), [(0, False), (7, True), (999, False)])
def test_a_run_on_a_sample_of_a_file_is_partial(tmp_path, checkpoint, examples, is_partial):
    file = fakes.write(tmp_path, "classification")
    config = fakes.sections("classification", file, checkpoint, data={"examples": examples})
    run = finetune.prepare(config, jax.devices()[:1])
    data = finetune.load_data(run, finetune.open_tokenizer(run))
    assert finetune.is_partial(run, data) == is_partial
    rows = data.splits["train"].ids.astype(int).tolist()
    assert (rows == sorted(rows)) == (not is_partial)  # only a sample is in random order


def test_positions_are_repeated_only_for_a_named_attention(tmp_path, checkpoint):
    def prepare(argument):
        changes = {"data": {"max_len": 61}}
        return finetune.prepare(fakes.sections("regression", "x", checkpoint, argument, **changes))

    with pytest.raises(ValueError, match=r"more than the 29 positions of .*attention=nystrom"):
        prepare("")
    run = prepare(",attention=nystrom")
    assert run.model.config.max_len == 61
    init = InitConfig(checkpoint=str(checkpoint))
    params = read_params(init, run.model.config, type(run.model), 0)
    table = params["nystromformer"]["embeddings"]["position"]["embedding"]
    np.testing.assert_array_equal(table[29:58], table[:29])


@pytest.mark.parametrize("shift", [0, 19])  # 19: all probabilities are near 1
def test_tuned_threshold_has_the_best_f1(shift):
    from language.tasks.sequences import SequenceTask

    rng = np.random.default_rng(0)
    labels = (rng.random(101) < 0.2).astype(np.int32)
    scores = labels - 2 + rng.normal(size=101).round(1) + shift
    logits = np.stack([np.zeros(101), scores], 1).astype(np.float32)

    split = types.SimpleNamespace(labels=labels)
    task = SequenceTask(name="x", title="x", texts=("text",), metrics=("f1",))
    tuned = task.tuned(split, {"logits": logits})
    best = max(
        sklearn_metrics.f1_score(labels, logits[:, 1] - logits[:, 0] >= cut)
        for cut in np.unique(logits[:, 1])
    )
    assert task.score(split, tuned.predict(split, {"logits": logits}))[0]["f1"] == best
    assert task.score(split, task.predict(split, {"logits": logits}))[0]["f1"] < best
    assert task.has_threshold
    assert not dataclasses.replace(task, labels=("a", "b", "c")).has_threshold
    assert not dataclasses.replace(task, kind="regression", labels=()).has_threshold
