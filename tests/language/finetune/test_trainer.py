"""Runs of every kind of task: learned, scored, exported and predicted again, on a few rows."""

import csv
import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest

from language.finetune import trainer
from language.finetune.glue_tasks import TASKS
from language.finetune.heads import HEADS
from language.tokenizer import load_tokenizer
from nystromformer_jax import training
from nystromformer_jax.pretrained import TruncationWarning, from_pretrained, load, save_pretrained
from nystromformer_jax.support.durable import read_json, sha256_of
from nystromformer_jax.training import CannotWrite, ConfigDiffers, NotFinished, Workdir
from tests.helpers import (
    OTHER_FRAMEWORK,
    SAME_ARITHMETIC,
    assert_close,
    files_of_at_most,
    rematerialises,
)
from tests.language import runs
from tests.language.finetune import fakes, glue_fakes

SOFTMAX = ",attention=softmax"  # compiles faster
EPOCHS = {"token_classification": 20.0, "question_answering": 20.0}  # enough to learn the task


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
    with Workdir(folder / "run", config) as workdir:
        return act(run, data, workdir), run, data, workdir


@pytest.fixture(scope="module")
def finished(tmp_path_factory, checkpoint):
    """The folder of a run on MRPC, and what `trained` returns."""
    folder = tmp_path_factory.mktemp("finished")
    with runs.cache_in(folder):
        config = config_of(folder, checkpoint, "mrpc", train={"class_weights": "balanced"})
        return folder, trained(folder, config)


def scores_of_file(task, split, file):
    """The metrics of a split, computed from a file of predictions."""
    if task.kind == "question_answering":
        answers = json.loads(file.read_text())
        return task.score(split, [answers[example.id] for example in split.examples])[0]
    if task.kind == "token_classification":
        blocks = file.read_text().split("\n\n")
        tags = [[line.split("\t")[2] for line in block.splitlines()] for block in blocks]
        return task.score(split, tags)[0]
    with file.open(newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        cells = [row["prediction"] for row in rows]
    read = {
        "classification": task.labels.index,
        "regression": float,
        "multi_label": lambda cell: [name in json.loads(cell) for name in task.labels],
    }[task.kind]
    return task.score(split, np.array([read(cell) for cell in cells]))[0]


@pytest.mark.slow_except("mrpc")
@pytest.mark.parametrize("task", ["mnli", "stsb", "cola", "mrpc"])
def test_predictions_of_a_run_give_its_scores(tmp_path, checkpoint, finished, task):
    folder, (result, _, data, _) = finished
    if task != "mrpc":
        folder = tmp_path
        result, _, data, _ = trained(folder, config_of(folder, checkpoint, task))
    assert json.loads((folder / "run/result.json").read_text()) == result
    assert data.sha256 in (folder / "run/model/README.md").read_text()
    for name, split in data.splits.items():
        file = folder / "run/predictions" / data.task.file_name(name)
        assert file.exists() == (name != "train")
        if name != "train":
            assert file.read_bytes().count(b"\n") == 1 + len(split)
            assert (name in result) == split.is_labeled
        if name in result:
            scores = scores_of_file(data.task, split, file)
            assert scores == pytest.approx(result[name], abs=1e-5)
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


def test_predictions_have_the_scores_of_the_saved_model(tmp_path, finished):
    run, file = finished[0] / "run", tmp_path / "pairs.tsv"
    pairs = [("good film", "bad plot"), ("rome", "the very old film"), ("bad", "bad")]
    file.write_text("\n".join("\t".join(pair) for pair in [("#1 String", "#2 String"), *pairs]))
    for name, scores in (("new.jsonl", False), ("new.tsv", True)):
        trainer.predict(run, file, tmp_path / name, scores=scores)
    lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    header, *rows = [line.split("\t") for line in (tmp_path / "new.tsv").read_text().splitlines()]
    assert header == ["index", "prediction", "0", "1"]
    model = load(run / "model")
    names, chances = model.classify(**model.tokenizer(*map(list, zip(*pairs, strict=True))))
    for line, row, own in zip(lines, rows, chances.tolist(), strict=True):
        assert line["prediction"] == row[1] == names[own.index(max(own))]
        assert list(line["scores"].values()) == pytest.approx(own, abs=1e-5)
        assert [float(x) for x in row[2:]] == pytest.approx(own, abs=1e-5)
    long, cut = ["good " * 40], ["good " * (read_json(run / "config.json")["data"]["max_len"] - 2)]
    with pytest.warns(TruncationWarning):  # as in the run, though the model has more positions
        assert_close(model.classify(long)[1], model.classify(cut)[1], OTHER_FRAMEWORK)


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
        SOFTMAX,
        data={"test_file": str(tests)},
        train={"epochs": EPOCHS.get(kind, 2.0)},
        log={"every_steps": 100},
        eval={"every_steps": 100},
    )
    result, _, data, _ = trained(tmp_path, config)
    metric = next(iter(result["test"]))
    written = tmp_path / "run/predictions" / data.task.file_name("test")
    scores = scores_of_file(data.task, data.splits["test"], written)
    assert scores == pytest.approx(result["test"], abs=1e-5)
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
    if kind == "regression":
        trainer.predict(tmp_path / "run", tests, tmp_path / "scores.tsv", scores=True)
        lines = (tmp_path / "scores.tsv").read_text().splitlines()
        assert {line.count("\t") for line in lines} == {1}
    with pytest.raises(ValueError, match=r"--output: .*new is a folder"):
        trainer.predict(tmp_path / "run", tests, output.parent)
    before = output.read_bytes()
    tests.write_text("")
    with pytest.raises(ValueError, match=r"test\.\w+ (has no|is not JSON)"):
        trainer.predict(tmp_path / "run", tests, output)
    assert output.read_bytes() == before


def test_the_model_is_saved_before_the_test_set_is_read(tmp_path, checkpoint, monkeypatch):
    """The same command then evaluates again; nothing predicts or exports before it has finished."""
    config = config_of(tmp_path, checkpoint, "mrpc", SOFTMAX)
    evaluate = training.evaluate_split

    def stop(spec, params, examples, summarize):
        if examples.count == 5:  # of the test set
            raise KeyboardInterrupt
        return evaluate(spec, params, examples, summarize)

    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate_split", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, config)
    saved = sha256_of(tmp_path / "run/model/model.safetensors")
    with pytest.raises(NotFinished):
        trainer.write_export(tmp_path / "run")
    assert trained(tmp_path, config)[0]["valid_examples"] == 7
    assert sha256_of(tmp_path / "run/model/model.safetensors") == saved


@pytest.mark.parametrize("from_scratch", [False, True])
def test_training_starts_from_the_checkpoint_unless_from_scratch(
    tmp_path, checkpoint, monkeypatch, from_scratch
):
    start = lambda *_, make_start_params, **__: make_start_params()
    monkeypatch.setattr(training, "train_to_result", start)
    config = config_of(tmp_path, checkpoint, "mrpc", init={"from_scratch": from_scratch})
    params = trained(tmp_path, config)[0]
    assert (params is None) == from_scratch  # and then drawn from the seed
    if not from_scratch:
        expected = from_pretrained(checkpoint)[1]["params"]
        assert_close(params["nystromformer"], expected["nystromformer"], SAME_ARITHMETIC)


@pytest.mark.parametrize("remat", [False, True])
def test_remat_recomputes_layers(tmp_path, checkpoint, remat):
    changes = {"train": {"remat": remat}}
    config = runs.glue_sections("mrpc", tmp_path, checkpoint, SOFTMAX, **changes)
    assert rematerialises(trainer.make_spec(trainer.prepare(config), 40)) == remat


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"epochs": 0.0}}, "train.epochs.*positive"),
        ({"train": {"epochs": 1e308}}, r"train.epochs.*at most 2\*\*32"),
        ({"train": {"batch_size": 0}}, "train.batch_size"),
        ({"train": {"total_steps": -1}}, "train.total_steps"),
        ({"train": {"class_weights": "1,-2"}}, "train.class_weights.*positive"),
        ({"data": {"task": "stsb"}, "train": {"class_weights": "balanced"}}, "no classes"),
        ({"optimizer": {"warmup_share": 0.7}}, "optimizer.warmup_share"),
        ({"optimizer": {"learning_rate": 0.0}}, "optimizer.learning_rate"),
        ({"eval": {"every_steps": -1}}, "eval.every_steps"),
        ({"init": {"checkpoint": ""}}, "init.checkpoint"),
        ({"data": {"max_len": 31}}, "data.max_len=31 is more than the 29 positions"),
        ({"data": {"max_len": 4}}, "data.max_len=4.*at least 5"),
        ({"data": {"task": "mrcp"}}, "did you mean mrpc"),
        ({"data": {"examples": -1}}, "data.examples"),
        ({"data": {"base_len": -1}}, "data.base_len"),
        ({"data": {"truncation": "tail"}}, "data.truncation"),
    ],
)
def test_rejects_invalid_configs_before_reading_data(tmp_path, checkpoint, changes, words):
    config = runs.glue_sections("mrpc", tmp_path, checkpoint, **changes)
    with pytest.raises(ValueError, match=words):
        trainer.prepare(config)


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
    evaluation = {**run.config["eval"], "tune_threshold": False}
    older = {**run.config, "data": data, "eval": evaluation, "command": command}
    older = trainer.prepare(older, jax.devices()[:1])
    assert older.sections == run.sections


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


def test_positions_are_repeated_only_for_a_named_attention(tmp_path, checkpoint):
    def prepare(argument):
        changes = {"data": {"max_len": 61}}
        return trainer.prepare(fakes.sections("regression", "x", checkpoint, argument, **changes))

    with pytest.raises(ValueError, match=r"more than the 29 positions of .*attention=nystrom"):
        prepare("")
    assert prepare(",attention=nystrom").model.config.max_len == 61
