"""Gradient accumulation that follows the device, and evaluation batches that follow it."""

import json

import hypothesis
import jax
import pytest
from hypothesis import strategies as st

from configs import image
from lra import train
from nystromformer_jax.training import ConfigDiffers, Workdir, accumulation, keep_accumulation
from nystromformer_jax.training.config import num_parts


@pytest.mark.parametrize(
    ("platform", "memory", "expected"),
    [
        ("cpu", None, False),
        ("cpu", {"bytes_limit": 10**12}, False),
        ("gpu", {"bytes_limit": 6 * 10**9}, False),
        ("gpu", {"bytes_limit": 12 * 10**9}, True),
        ("tpu", {"bytes_in_use": 0}, True),
        ("tpu", None, True),
    ],
)
def test_devices_that_take_a_whole_batch(platform, memory, expected):
    assert accumulation.is_large(platform, memory) == expected


@pytest.mark.parametrize(("large", "given", "parts"), [(True, 0, 1), (False, 0, 2), (True, 4, 4)])
def test_accumulation_follows_the_device_unless_it_is_set(monkeypatch, large, given, parts):
    monkeypatch.setattr(accumulation, "is_large", lambda platform, memory: large)
    assert train.prepare(config(accumulation=given)).fit.train.accumulation == parts


@pytest.mark.parametrize(("batch_size", "parts"), [(16, 8), (20, 4), (17, 1)])
def test_the_accumulation_of_a_cpu_divides_any_batch(batch_size, parts):
    values = config(batch_size=batch_size, cpu_accumulation=8)
    assert train.prepare(values, jax.devices()[:1]).fit.train.accumulation == parts


def config(**train):
    values = image.get_config().to_dict()
    return {**values, "train": {**values["train"], **train}}


def test_runs_of_other_devices_resume_with_their_accumulation(tmp_path):
    elsewhere = train.prepare(config(accumulation=1)).config
    with Workdir(tmp_path, elsewhere) as run:
        known = run.config_sha256
    # A run of an older version has no cpu_accumulation.
    older = {k: v for k, v in elsewhere["train"].items() if k != "cpu_accumulation"}
    (tmp_path / "config.json").write_text(json.dumps({**elsewhere, "train": older}))
    kept = train.prepare(keep_accumulation(config(), tmp_path))
    assert kept.fit.train.accumulation == 1
    with Workdir(tmp_path, kept.config) as run:
        assert run.config_sha256 == known
    with Workdir(tmp_path, config()):  # not prepared, so it is still 0
        pass
    smaller = train.prepare(keep_accumulation(config(batch_size=8), tmp_path)).config
    with pytest.raises(ConfigDiffers, match=r"train.batch_size: .* in the run, 8 now"):
        Workdir(tmp_path, smaller)
    changed = keep_accumulation(config(accumulation=4), tmp_path)
    with pytest.raises(ConfigDiffers, match=r"train.accumulation: 1 in the run, 4 now"):
        Workdir(tmp_path, changed)


def test_new_runs_record_the_accumulation_of_their_device(tmp_path):
    run = train.prepare(keep_accumulation(config(), tmp_path))
    assert run.config["train"]["accumulation"] == run.fit.train.accumulation == 2


def test_accumulation_is_kept_only_if_both_configs_have_it(tmp_path):
    without = {"train": {"batch_size": 4}}
    assert keep_accumulation(without, tmp_path) == without
    (tmp_path / "config.json").write_text('{"seed": 1}')  # of another command
    for values in (without, config()):
        assert keep_accumulation(values, tmp_path) == values


@pytest.mark.parametrize(
    ("batch", "accumulation", "given", "shards", "rows"),
    [(16, 1, 0, 1, 16), (16, 2, 0, 1, 16), (16, 8, 0, 1, 8), (16, 8, 3, 1, 3), (16, 8, 0, 16, 16)],
)
def test_evaluation_batches_have_four_parts(batch, accumulation, given, shards, rows):
    values = config(batch_size=batch, accumulation=accumulation)
    values["eval"]["batch_size"] = given
    assert train.prepare(values, jax.devices()[:1]).fit.eval_batch_size(shards) == rows


@hypothesis.given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_a_device_has_at_most_as_many_examples_at_once_as_a_single_one(a, b, shards, finer):
    batch_size, accumulation = a * b * shards, a * b if finer else a
    parts = num_parts(accumulation, batch_size, shards)
    assert accumulation % parts == 0
    assert batch_size % (parts * shards) == 0
    assert batch_size // (parts * shards) <= batch_size // accumulation
