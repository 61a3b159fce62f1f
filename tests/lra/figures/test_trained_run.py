"""Captured inputs of a model's cores, and the runs that can be opened."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lra import data, train
from lra.data import listops
from lra.figures import trained_run
from lra.figures.trained_run import CoreCall, open_run
from nystromformer_jax import softmax_attention
from nystromformer_jax.attention.functions import add_convolution
from nystromformer_jax.support.durable import read_config
from tests.helpers import REFERENCE, SAME_ARITHMETIC, assert_close, mask_of_lengths, normal
from tests.lra.data.fakes import tsv
from tests.lra.figures.tiny_run import BEST, LATEST, params_at, small_config, write_run


def core_params(params, layer):
    return params["sequence_encoder"]["encoder"][f"layer_{layer}"]["attention"].get("core", {})


def test_captured_inputs_reproduce_the_output(rngs):
    """Each layer has its own convolution, so this tests the order, too."""
    run = train.prepare(small_config("softmax,conv_kernel_size=3", model__num_layers=2))
    params = params_at(run, BEST)
    inputs = jax.random.randint(next(rngs), (1, 59), 1, 15), mask_of_lengths([41], 59)
    layers = trained_run.capture_cores(run.model, params, inputs)
    assert len(layers) == 2
    _, state = run.model.apply(
        {"params": params},
        *inputs,
        deterministic=True,
        capture_intermediates=lambda module, method: module.name == "core",
    )
    for number, (query, key, value, mask) in enumerate(layers):
        (output,) = core_params(state["intermediates"], number)["__call__"]
        again = softmax_attention(query, key, value, mask=mask)
        value = jnp.where(mask[..., None, None], value, 0)
        again = add_convolution(again, value, core_params(params, number)["conv_kernel"])
        assert_close(again, output, REFERENCE, mask)
        np.testing.assert_array_equal(mask, inputs[1])


def test_a_run_with_rematerialization_can_be_captured(tmp_path):
    trained = open_run(write_run(tmp_path / "run", small_config(train__remat=True)), max_len=100)
    inputs = jnp.ones((1, 59), jnp.int32), mask_of_lengths([41], 59)
    layers = trained_run.capture_cores(trained.run.model, trained.params, inputs)
    assert len(layers) == trained.run.config["model"]["num_layers"]
    assert all(jnp.isfinite(layer.value[:, :41]).all() for layer in layers)


@pytest.mark.slow(minutes=0.2)
def test_first_text_of_a_pair_comes_first(rngs):
    config = small_config(
        "softmax", data__task="retrieval", model__vocab_size=257, model__num_layers=2
    )
    run = train.prepare(config)
    tokens = [jax.random.randint(next(rngs), (1, 59), 1, 200) for _ in range(2)]
    masks = [mask_of_lengths([length], 59) for length in (31, 47)]
    pair = (tokens[0], masks[0], tokens[1], masks[1])
    (first, _) = trained_run.capture_cores(run.model, params_at(run, BEST), pair)
    np.testing.assert_array_equal(first.mask, jnp.concatenate(masks))
    np.testing.assert_array_equal(trained_run.unpadded(first)[0], first.query[:1, :31])


def test_padding_is_removed_at_any_position(rngs):
    query, key, value = (normal(next(rngs), (1, 7, 2, 3)) for _ in range(3))
    mask = jnp.array([[True, False, True, True, False, True, False]])
    tokens = trained_run.unpadded(CoreCall(query, key, value, mask))
    for found, x in zip(tokens, (query, key, value), strict=True):
        np.testing.assert_array_equal(found, x[:, jnp.array([0, 2, 3, 5])])


@pytest.mark.slow_except("False-5")
@pytest.mark.parametrize(("finished", "step"), [(True, BEST), (False, LATEST)])
def test_opens_the_best_checkpoint_or_the_latest_and_changes_no_files(finished, step, tmp_path):
    config = small_config()
    folder = write_run(tmp_path / "run", config, finished=finished)
    if not finished:
        (folder / "checkpoints" / "7.orbax-checkpoint-tmp-0").mkdir()  # a save in progress

    def state():
        return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}

    before = state()
    trained = open_run(folder, max_len=100)
    assert state() == before
    assert (trained.name, trained.step, trained.finished) == ("run", step, finished)
    assert trained.run.config == json.loads(json.dumps(config))
    assert_close(trained.params, jax.device_get(params_at(trained.run, step)), SAME_ARITHMETIC)


def test_opens_a_run_of_another_machine_with_a_curriculum(tmp_path):
    # 4 steps of the run's batches, and 9 of one example per device.
    config = small_config(data__examples=80, data__curriculum=72, train__batch_size=16)
    folder = write_run(tmp_path / "run", config)
    config = read_config(folder)
    config["mesh"]["data"], config["train"]["batch_size"] = 3, 18
    (folder / "config.json").write_text(json.dumps(config))
    assert open_run(folder, max_len=100).run.config == config
    with pytest.raises(ValueError, match="does not match"):
        train.prepare(config)


def test_longest_examples_are_truncated_to_the_shortest_of_them(tmp_path, monkeypatch):
    config = small_config(model__num_layers=2)
    trained = open_run(write_run(tmp_path / "run", config), max_len=100)
    lengths = [11, 41, 17, 43, 41, 5]
    split = data.Split(
        data.Sequences.from_bytes([bytes([1 + n % 14] * n) for n in lengths]), np.zeros(6, np.int32)
    )
    task = dataclasses.replace(trained.task, splits={"test": split})
    trained = dataclasses.replace(trained, task=task)
    assert trained.longest(3) == [3, 1, 4]
    monkeypatch.setattr(trained_run, "CANDIDATES", 2)
    assert trained.longest(1) == [1]
    assert trained.longest(3) == [1, 2, 0]
    monkeypatch.undo()
    layers = trained.layers([3, 1])
    assert [x.shape for x in layers[1]] == [(2, 41, 2, 5)] * 3
    second = trained_run.unpadded(trained.core_calls(1)[1])
    np.testing.assert_array_equal(layers[1][2][1:], second[2])


def test_rejects_data_other_than_those_of_the_run(tmp_path):
    folder = write_run(tmp_path / "run", small_config(), bind_data=True)
    assert open_run(folder, max_len=100).step == BEST
    file = folder / "config.json"
    record = json.loads(file.read_text())

    def write_hashes(**hashes):
        file.write_text(json.dumps({**record, "hashes": hashes}))

    write_hashes(sha256="0" * 64)
    with pytest.raises(ValueError, match="on other data"):
        open_run(folder, max_len=100)
    for changed in ({}, {**record["hashes"], "changed_under_the_run": True}):
        write_hashes(**changed)
        with pytest.raises(ValueError, match="no valid hash"):
            open_run(folder, max_len=100)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("result", "{}", "best_step"),
        ("result", '{"best_step": "2"}', "number"),
        ("config", "[1]", "list"),
    ],
)
def test_error_names_a_malformed_file(tmp_path, name, content, word):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    (tmp_path / f"{name}.json").write_text(content)
    with pytest.raises(ValueError, match=f"{name}.json.*{word}"):
        open_run(tmp_path, max_len=100)


@pytest.mark.slow(minutes=0.1)
def test_data_may_be_in_another_folder(tmp_path):
    folder, moved = write_run(tmp_path / "run", small_config()), tmp_path / "moved"
    before = open_run(folder, max_len=100).task
    moved.mkdir()
    for split, name in listops.FILES.items():
        (moved / name).write_bytes(tsv(before.splits[split]))
    after = open_run(folder, data_dir=str(moved), max_len=100).task
    assert after.sha256 == before.sha256
    assert after.folder != before.folder
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_run(folder, data_dir=str(tmp_path / "nowhere"), max_len=100)


@pytest.mark.slow(minutes=0.1)
def test_rejects_a_folder_that_is_not_a_complete_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run"):
        open_run(tmp_path, max_len=100)
    folder = write_run(tmp_path / "run", small_config("softmax"))
    with pytest.raises(ValueError, match="59 tokens"):
        open_run(folder, max_len=58)
    (folder / "result.json").write_text(json.dumps({"best_step": 4}))
    with pytest.raises(FileNotFoundError, match="lacks step 4"):
        open_run(folder, max_len=59)
    (folder / "result.json").unlink()
    (folder / "checkpoints").rename(folder / "moved")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        open_run(folder, max_len=59)
    (folder / "config.json").write_text('{"data": {}, "init": {}}')
    with pytest.raises(ValueError, match="language model"):
        open_run(folder)


@pytest.mark.parametrize("name", ["reformer", "none"])
def test_rejects_attention_without_keys(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(small_config(name)))
    with pytest.raises(ValueError, match=f"{name} attention has no separate queries"):
        open_run(tmp_path, max_len=100)
