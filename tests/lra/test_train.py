"""Complete runs on a few generated trees, and validation of configs."""

import dataclasses
import functools
import json
import pathlib
import shutil
import types

import jax
import numpy as np
import pytest

from lra import data, train
from nystromformer_jax.support.durable import read_record, write_json
from nystromformer_jax.training import ConfigDiffers, Workdir, config_sha256, loop
from tests.helpers import REFERENCE, assert_close
from tests.lra import small
from tests.training import tiny

SIX_STEPS = {"data__examples": 40, "data__max_len": 64, "data__workers": 1, "mesh__data": 8}
SIX_STEPS |= {"train__total_steps": 6, "train__accumulation": 0, "optimizer__learning_rate": 1e-2}
SIX_STEPS |= {"eval__every_steps": 4, "eval__batch_size": 16, "log__every_steps": 2}
SIX_STEPS |= {"checkpoint__every_steps": 1000}


def small_config(argument=small.NYSTROM, **changes):
    """ListOps on 40 trees cut to 64 tokens, for 6 steps on eight devices."""
    return small.small_config("listops", argument, **SIX_STEPS | changes)


def run(config, folder):
    prepared = train.prepare(config)
    with Workdir(folder, config) as workdir:
        return train.train(prepared, data.load(prepared.data), workdir)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run: its config, folder and result."""
    folder, config = tmp_path_factory.mktemp("finished"), small_config()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NYSTROMFORMER_JAX_CACHE", str(folder / "cache"))
        return config, folder / "run", run(config, folder / "run")


def test_result_has_test_accuracy_and_provenance(finished):
    _, folder, result = finished
    assert json.loads((folder / "result.json").read_text()) == result
    expected = {"task": "listops", "attention": "nystrom", "seed": 0, "partial": True}
    expected["test_examples"] = 40  # 2.5 batches: the last one is partial
    assert {key: result[key] for key in expected} == expected
    assert 0 <= result["test_accuracy"] <= 1
    speed = {"train_seconds", "step_seconds", "examples_per_second"}
    for key in {*speed, "parameters", "peak_bytes", "device", "versions", "data_sha256"}:
        assert result[key] is not None
    config = json.loads((folder / "config.json").read_text())
    assert result["config_sha256"] == config_sha256(config)
    lines = tiny.lines_of(folder)
    assert [line["step"] for line in lines] == [2, 4, 4, 6, 6]
    valid = {line["step"]: line["valid/accuracy"] for line in lines if "valid/accuracy" in line}
    assert result["valid_accuracy"] == valid[result["best_step"]]


def test_a_finished_run_trains_nothing_and_reproduces_its_test_accuracy(finished):
    config, folder, first = finished

    def written():
        return {path: path.stat().st_mtime_ns for path in folder.rglob("[!.]*")}

    before = written()
    assert run(config, folder) == first
    prepared = train.prepare(config)
    task = data.load(prepared.data)
    with Workdir(folder, config) as workdir:
        again = train.evaluate_checkpoint(prepared, task, workdir)
        untested = train.evaluate_checkpoint(prepared, task, workdir, test=False)
    assert again.keys() - untested.keys() == {"test_accuracy", "test_examples"}
    assert again == {key: first[key] for key in again}
    assert written() == before


def test_accuracy_of_a_split_is_that_of_its_labels():
    """The labels of one split are the model's predictions, and those of the other never are."""
    prepared = train.prepare(small_config())
    task, params, spec = (
        ragged_task(prepared),
        small.random_params(prepared),
        train.make_spec(prepared),
    )
    split = task.splits["test"]
    batch = split.batch(np.arange(61), prepared.data.padding)
    apply = jax.jit(functools.partial(train.apply_model, prepared.model))
    logits = apply(params, None, batch["inputs"], batch["mask"])
    predicted = np.asarray(logits).argmax(axis=-1).astype(np.int32)
    labels = {"valid": (predicted + 1) % 10, "test": predicted}
    splits = {name: dataclasses.replace(split, labels=own) for name, own in labels.items()}
    task = dataclasses.replace(task, splits={**task.splits, **splits})
    for name, accuracy in (("valid", 0), ("test", 1)):
        assert train._evaluate(prepared, spec, task, name, params)["accuracy"] == accuracy


def test_resumes_with_any_number_of_data_workers(tmp_path):
    with Workdir(tmp_path / "run", small_config(data__workers=1)):
        pass  # as in older versions, where the number of workers was part of the config
    for workers in (0, 3):
        config = small_config(data__workers=workers)
        with Workdir(tmp_path / "run", config) as workdir:
            assert workdir.config_sha256 == config_sha256(small_config())


@pytest.mark.parametrize(
    "changes",
    [
        {"eval__max_examples": 7},
        {"data__examples": 7},
        {"train__total_steps": 4999},
        {"train__budget_steps": 5001},
    ],
)
def test_a_shortened_run_is_partial(changes):
    whole = {"data__examples": 0, "train__total_steps": 5000}

    def is_partial(changes):
        prepared = train.prepare(small_config(**{**whole, **changes}))
        return train.is_partial(prepared, empty_task(prepared.data.examples))

    assert is_partial(changes)
    assert not is_partial({})
    assert not is_partial({"data__examples": 10**9, "eval__max_examples": 10**9})
    assert not is_partial({"train__total_steps": 4999, "train__budget_steps": 4999})
    # A release may lack one example in a thousand.
    info, task = data.describe("listops"), empty_task(0)
    for size in (95_904, 95_903):
        splits = {**task.splits, "train": range(size)}
        assert info.has_all(dataclasses.replace(task, splits=splits)) == (size == 95_904)


def empty_task(examples):
    """ListOps with the right numbers of examples and no data."""
    none = data.Sequences.from_bytes([])
    sizes = data.describe("listops").sizes
    splits = {name: data.Split(none, np.zeros(size, np.int32)) for name, size in sizes.items()}
    task = data.Task("listops", splits, sha256="", decode=str, folder=pathlib.Path())
    return task.first(examples) if examples else task


def ragged_task(prepared):
    """Replaces the generated trees by sequences of 1 to 61 tokens."""
    random = np.random.default_rng(0)

    def split():
        texts = [bytes(random.integers(1, 16, length, np.uint8)) for length in range(1, 65)]
        labels = random.integers(0, 10, 64).astype(np.int32)
        return data.Split(data.Sequences.from_bytes(texts), labels).first(61)

    splits = {name: split() for name in ("train", "valid", "test")}
    return dataclasses.replace(data.load(prepared.data), splits=splits)


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize(
    "argument",
    [small.NYSTROM, "linformer,projection_size=4", "none"],
)
def test_batches_of_similar_length_give_the_same_evaluation(argument):
    scores = {}
    for multiple in (0, 16):
        prepared = train.prepare(small_config(argument, data__pad_to_multiple_of=multiple))
        task, params = ragged_task(prepared), small.random_params(prepared)
        spec = train.make_spec(prepared)
        scores[multiple] = train._evaluate(prepared, spec, task, "valid", params)
        examples = train._examples(prepared, task.splits["valid"])
        assert examples.fetch(np.array([3, 20]))["inputs"].shape == (2, 32 if multiple else 64)
    assert scores[16]["accuracy"] == scores[0]["accuracy"]
    assert scores[16]["loss"] == pytest.approx(scores[0]["loss"], rel=1e-5)


def test_loss_of_labeled_tokens_ignores_rows_of_weight_zero():
    logits = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    labels = np.array([[3, 1], [2, 2], [1, 0]])
    model = types.SimpleNamespace(batch_keys=["inputs"], apply=lambda _, inputs, **__: inputs)
    batch = {"inputs": logits, "labels": labels, "weights": np.array([1.0, 0, 1])}
    loss, sums = jax.jit(train.make_loss(model))({}, batch, None)
    tokens = [(0, 0), (0, 1), (2, 0), (2, 1)]
    expected = sum(np.log(np.exp(logits[at]).sum()) - logits[at][labels[at]] for at in tokens)
    correct = sum(logits[at].argmax() == labels[at] for at in tokens)
    assert_close(loss, expected, REFERENCE)
    assert_close(sums, {"loss": (expected, 4), "accuracy": (correct, 4)}, REFERENCE)


def test_rejects_other_data_an_unfinished_run_and_a_task_without_a_curriculum(finished, tmp_path):
    config, folder, _ = finished
    prepared = train.prepare(config)
    task = data.load(dataclasses.replace(prepared.data, seed=1))
    with Workdir(folder, config) as workdir, pytest.raises(ConfigDiffers, match="different data"):
        train.train(prepared, task, workdir)
    with Workdir(tmp_path / "a", config) as workdir, pytest.raises(ValueError, match="train it"):
        train.evaluate_checkpoint(prepared, task, workdir)
    config = small_config(data__curriculum=16)
    task = dataclasses.replace(task, open_curriculum=None)
    with Workdir(tmp_path / "b", config) as workdir, pytest.raises(ValueError, match="curriculum"):
        train.train(train.prepare(config), task, workdir)


def test_a_run_reads_its_curriculum_first_and_checks_its_files(tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(train, "train_to_result", lambda *_, **options: given.update(options) or {})
    config = small_config(data__curriculum=16)
    prepared = train.prepare(config)
    task = data.load(prepared.data)
    with Workdir(tmp_path / "finished", config) as workdir:
        workdir.result = {}
        train.train(prepared, task, workdir)
    assert given["training"].curriculum is None
    assert not [*task.folder.parent.glob("listops-curriculum-*")]  # it is not generated
    with Workdir(tmp_path / "run", config) as workdir:
        train.train(prepared, task, workdir)
        rows, easier = np.arange(8), given["training"].curriculum
        expected = task.open_curriculum()[0].batch(rows, prepared.data.padding)
        assert easier.count == 16
        np.testing.assert_array_equal(easier.fetch(rows)["inputs"], expected["inputs"])
        given["check_data"]()
        record = read_record(workdir.path) | {"hashes": {"curriculum_sha256": "0" * 64}}
        write_json(workdir.path / "config.json", record)
        with pytest.raises(ConfigDiffers, match="curriculum_sha256"):
            train.train(prepared, task, workdir)
    (labels,) = task.folder.parent.glob("listops-curriculum-*/train_labels.npy")
    labels.write_bytes(labels.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"train_labels\.npy was modified"):
        given["check_data"]()


@pytest.mark.slow(minutes=0.3)
@pytest.mark.parametrize("options", ["conv_kernel_size=3", "quirks=mlpen"])
def test_memorizes_eight_trees_and_tests_the_best_parameters(tmp_path, monkeypatch, options):
    """Also with the layout, start, pooling and momentum of the authors."""
    every = {"eval__every_steps": 10, "log__every_steps": 10}
    config = small_config(
        f"nystrom,num_landmarks=4,{options}", data__examples=8, train__total_steps=60, **every
    )
    loaded, load_params = [], loop.load_params
    spy = lambda folder, step, *rest: [loaded.append(step), load_params(folder, step, *rest)][1]
    monkeypatch.setattr(loop, "load_params", spy)
    result = run(config, tmp_path / "run")
    lines = tiny.lines_of(tmp_path / "run")
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert losses[-1] < 0.7 * losses[0]
    valid = {line["step"]: line["valid/accuracy"] for line in lines if "valid/accuracy" in line}
    best = max(valid.values())
    first = min(step for step in valid if valid[step] == best)
    assert (result["valid_accuracy"], result["best_step"], loaded) == (best, first, [first])


SPLIT = {"mesh__data": 1, "mesh__sequence": 8}
MLPEN = {"attention__landmark_layout": "mlpen"}
BYTES = {"model__vocab_size": 257}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"data__task": "listop"}, "listops"),
        ({"model__vocab_size": 9}, "16 token ids"),
        ({"model__max_len": 32}, r"data\.max_len=64"),
        ({"attention__name": "nystrm"}, "nystrom"),
        ({"attention__num_landmarks": "many"}, r"attention\.num_landmarks"),
        ({"attention__num_landmarks": 0}, "num_landmarks"),
        ({"attention__conv_kernel_size": 2}, "odd"),
        ({"attention__landmarks": 3}, r"attention\.num_landmarks"),
        ({"attention__conv_groups": "heads"}, r"attention\.conv_groups"),
        ({"train__batch_size": 9}, "multiple of 8"),
        ({"mesh__data": 3}, "match 8"),
        ({**SPLIT, "data__max_len": 63}, "64"),
        ({**SPLIT, "data__pad_to_multiple_of": 12}, r"data\.pad_to_multiple_of"),
        ({**MLPEN, "data__pad_to_multiple_of": 6}, "M = 4"),
        ({**BYTES, "data__task": "image", "data__curriculum": 8}, "image has no curriculum"),
        ({"data__curriculum": 7}, "7 examples"),
        ({"data__curriculum": 50, "data__examples": 7}, "7 examples"),
        ({"data__curriculum": 48, "data__examples": 0}, r"takes 6 steps"),
        ({**BYTES, "data__task": "mqar-128-4"}, "at least 128"),
        ({"train__seed": 2**32}, r"2\*\*32"),
        ({"log__evry_steps": 3}, r"log\.every_steps"),
    ],
)
def test_rejects_invalid_values_before_preparing_data(changes, word, no_annotations):
    with pytest.raises(ValueError, match=word):
        train.prepare(small_config(**changes))


def test_test_set_is_not_read_before_it_is_asked_for(finished, tmp_path, monkeypatch):
    config, folder, expected = finished
    shutil.copytree(folder, tmp_path / "run")  # all steps, before the test set is evaluated
    (tmp_path / "run" / "result.json").unlink()
    prepared, read = train.prepare(config), []
    evaluate = train._evaluate
    monkeypatch.setattr(
        train, "_evaluate", lambda *given: [read.append(given[3]), evaluate(*given)][1]
    )
    task = data.load(prepared.data)

    def run_once(**options):
        with Workdir(tmp_path / "run", config) as workdir:
            return train.train(prepared, task, workdir, **options)

    result = run_once(test=False)
    assert read == []
    assert result["state"] == "validated"
    assert not {"test_accuracy", "test_examples", "baselines"} & result.keys()
    assert "the test set was not evaluated" in train.describe_result(result)
    assert run_once(test=False) == result
    tested = run_once()
    assert run_once() == run_once(test=False) == tested
    assert read == ["test"]
    assert tested.keys() == expected.keys()
    assert tested["test_accuracy"] == expected["test_accuracy"]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == tested


def test_a_validated_run_that_is_tested_on_fewer_examples_is_partial(
    finished, tmp_path, monkeypatch
):
    folder = shutil.copytree(finished[1], tmp_path / "run")
    (folder / "result.json").unlink()
    monkeypatch.setattr(train, "is_partial", lambda run, task: run.fit.eval.max_examples > 0)
    monkeypatch.setattr(train, "_evaluate", lambda *_: {"accuracy": 0.25})

    def run_with(max_examples, **options):
        config = small_config(eval__max_examples=max_examples)
        prepared = train.prepare(config)
        with Workdir(folder, config) as workdir:
            return train.train(prepared, data.load(prepared.data), workdir, **options)

    assert not run_with(0, test=False)["partial"]
    tested = run_with(7)
    assert (tested["test_examples"], tested["partial"]) == (7, True)


@pytest.mark.slow(minutes=0.2)
def test_a_run_whose_best_step_was_validated_on_fewer_examples_is_partial(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "is_partial", lambda run, task: run.fit.eval.max_examples > 0)
    config = small_config(eval__max_examples=7)
    assert run(config, tmp_path / "run")["partial"]
    (tmp_path / "run" / "result.json").unlink()
    assert run(small_config(), tmp_path / "run")["partial"]
