"""Captured inputs of a model's cores, and the runs that can be opened."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra import data, train
from lra.figures import trained_run
from lra.figures.trained_run import open_run
from nystromformer_jax import softmax_attention
from nystromformer_jax.attention.functions import add_convolution
from nystromformer_jax.support.durable import read_config, read_json, write_json
from tests.helpers import REFERENCE, SAME_ARITHMETIC, assert_close, mask_of_lengths
from tests.lra.figures.tiny_run import BEST, LATEST, params_at, small_config, write_run


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A finished run with two layers, rematerialization, and the hash of its data."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NYSTROMFORMER_JAX_CACHE", str(folder / "cache"))
        config = small_config("softmax", train__remat=True, model__num_layers=2)
        return write_run(folder / "run", config, bind_data=True)


@pytest.fixture
def folder(stored, tmp_path, monkeypatch):
    """A copy of the run, with its prepared data."""
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(stored.parent / "cache"))
    return shutil.copytree(stored, tmp_path / "run")


def core_params(params, layer):
    return params["sequence_encoder"]["encoder"][f"layer_{layer}"]["attention"].get("core", {})


def test_captured_inputs_reproduce_the_output(rngs):
    """Each layer has its own convolution, so this tests the order, too."""
    run = train.prepare(small_config("softmax,conv_kernel_size=3", model__num_layers=2))
    params = params_at(run, BEST)
    inputs = jax.random.randint(next(rngs), (1, 59), 1, 15), mask_of_lengths([41], 59)
    layers = trained_run.capture_cores(run.model, params, inputs)
    assert len(layers) == 2
    of_cores = lambda module, method: module.name == "core"
    apply = functools.partial(run.model.apply, deterministic=True, capture_intermediates=of_cores)
    _, state = jax.jit(apply)({"params": params}, *inputs)
    for number, (query, key, value, mask) in enumerate(layers):
        (output,) = core_params(state["intermediates"], number)["__call__"]
        again = softmax_attention(query, key, value, mask=mask)
        value = jnp.where(mask[..., None, None], value, 0)
        again = add_convolution(again, value, core_params(params, number)["conv_kernel"])
        assert_close(again, output, REFERENCE, mask)
        np.testing.assert_array_equal(mask, inputs[1])


def test_opens_the_best_checkpoint_or_the_latest_and_changes_no_files(folder):
    def state():
        return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}

    for finished, step in ((True, BEST), (False, LATEST)):
        before = state()
        trained = open_run(folder, max_len=100)
        assert state() == before
        assert (trained.name, trained.step, trained.finished) == ("run", step, finished)
        assert trained.run.config == read_config(folder)
        assert_close(trained.params, jax.device_get(params_at(trained.run, step)), SAME_ARITHMETIC)
        if finished:
            (folder / "result.json").unlink()
            (folder / "checkpoints" / "7.orbax-checkpoint-tmp-0").mkdir()  # a save in progress


def test_opens_a_run_of_another_machine_with_a_curriculum(folder):
    """The curriculum fits the run's batches; with smaller ones it has more steps than the run."""
    record = read_json(folder / "config.json")
    record["mesh"]["data"], record["data"]["curriculum"] = 3, 12
    record["train"] |= {"batch_size": 18, "total_steps": 1}
    write_json(folder / "config.json", record)
    config = read_config(folder)
    assert open_run(folder, max_len=100).run.config == config
    with pytest.raises(ValueError, match="less than one batch"):
        train.prepare(config)


def test_longest_examples_are_truncated_to_the_shortest_of_them(folder, monkeypatch):
    trained = open_run(folder, max_len=100)
    lengths = [11, 41, 17, 43, 41, 5]
    texts = data.Sequences.from_bytes([bytes([1 + n % 14] * n) for n in lengths])
    split = data.Split(texts, np.zeros(6, np.int32))
    task = dataclasses.replace(trained.task, splits={"test": split})
    trained = dataclasses.replace(trained, task=task)
    assert trained.longest(3) == [3, 1, 4]
    monkeypatch.setattr(trained_run, "CANDIDATES", 2)
    assert trained.longest(1) == [1]
    assert trained.longest(3) == [1, 2, 0]
    layers = trained.layers([3, 1])
    assert [x.shape for x in layers[1]] == [(2, 41, 2, 5)] * 3
    second = trained_run.unpadded(trained.core_calls(1)[1])
    np.testing.assert_array_equal(layers[1][2][1:], second[2])


def with_hashes(**hashes):
    return {"config.json": lambda record: {**record, "hashes": hashes}}


SHA256 = "0" * 64


@pytest.mark.parametrize(
    ("files", "word"),  # each file's new content, or a function of the old one; None: removed
    [
        ({"config.json": None}, "not a run"),
        ({"config.json": {"data": {}, "init": {}}}, "not a run of run_lra"),
        ({"config.json": {"model_type": "bert"}}, "not a run of run_lra"),
        ({"config.json": small_config("reformer")}, "reformer"),
        ({"config.json": lambda old: old | {"data": old["data"] | {"padded_len": 101}}}, "101"),
        ({"result.json": {}}, r"result\.json.*best_step"),
        ({"result.json": {"best_step": 4}}, "step 4"),
        ({"result.json": None, "checkpoints": None}, "no checkpoint"),
        (with_hashes(sha256=SHA256), "--data_dir"),
        (with_hashes(), "no valid hash"),
        (with_hashes(sha256=SHA256, changed_under_the_run=True), "no valid hash"),
    ],
)
def test_rejects_a_folder_that_is_not_a_complete_run_of_its_data(folder, files, word):
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.rename(folder / f"old {name}")
        else:
            content = content(read_json(path)) if callable(content) else content
            path.write_text(json.dumps(content))
    with pytest.raises((ValueError, FileNotFoundError), match=word):
        open_run(folder, max_len=100)
