"""Parts of a batch that follow the device, and evaluation batches that follow them."""

import json
import math

import hypothesis
import jax
import pytest
from hypothesis import strategies as st

from cli.training import keep_stored
from configs import image, listops, retrieval
from configs import pretrain as pretrain_config
from language import pretrain
from lra import train
from nystromformer_jax.training import (
    ConfigDiffers,
    EvalConfig,
    FitConfig,
    OptimizerConfig,
    TrainConfig,
    Workdir,
    accumulation,
)
from nystromformer_jax.training.config import num_parts


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setenv("NPROC", "2")


def prepare(config):
    return train.prepare(config, jax.devices()[:1])


def config(**train):
    values = image.get_config().to_dict()
    return {**values, "train": {**values["train"], **train}}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (listops.get_config("softmax"), 16),
        (retrieval.get_config(), 32),  # a pair has two sequences
        (image.get_config("nystrom,quirks=mlpen"), 2),  # the authors' parts
        (listops.get_config("nystrom,pinv_start=batch_max"), 1),
    ],
)
def test_parts_on_two_cores(values, parts):
    assert prepare(values.to_dict()).fit.train.accumulation == parts


def test_language_models_follow_the_same_rule():
    """A sequence of the small model has 4 MiB, so a part has one sequence per core."""
    values = pretrain_config.get_config("small").to_dict()
    run = pretrain.prepare(values, jax.devices()[:1])
    assert run.fit.train.accumulation == run.fit.train.batch_size // 2 == 128


def test_devices_divide_their_own_rows_and_a_given_number_is_kept():
    run = train.prepare(config(), jax.devices()[:4])
    assert run.fit.train.accumulation == 16  # 64 rows per device, 4 rows of half a MiB per part
    assert prepare(config(accumulation=4)).fit.train.accumulation == 4


@pytest.mark.parametrize(("cores", "parts"), [(1, 64), (2, 64), (8, 16), (1024, 1)])
def test_more_cores_get_larger_parts(monkeypatch, cores, parts):
    monkeypatch.setenv("NPROC", str(cores))
    assert prepare(config()).fit.train.accumulation == parts


@pytest.mark.parametrize(
    ("memory", "limit"),
    [
        ({"bytes_limit": 6 * 10**9}, 64 * 2**20),
        ({"bytes_limit": 12 * 10**9}, math.inf),
        ({"bytes_in_use": 0}, math.inf),
        (None, math.inf),
    ],
)
def test_only_small_accelerators_have_a_limit(memory, limit):
    assert accumulation.part_bytes(memory) == limit


@hypothesis.given(
    st.integers(1, 96), st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 8)
)
def test_parts_divide_the_batch_and_are_as_large_as_the_limit_allows(rows, size, limit, at_least):
    parts = accumulation.smallest_parts(rows, size, limit, at_least)
    assert rows % parts == 0
    assert rows // parts >= min(at_least, rows)
    fewer = [p for p in range(1, parts) if rows % p == 0]
    assert all(rows // p * size > limit for p in fewer)


def test_runs_of_other_devices_resume_with_their_accumulation(tmp_path):
    elsewhere = prepare(config(accumulation=1)).config
    with Workdir(tmp_path, elsewhere) as run:
        known = run.config_sha256
    for given in ({}, {"train.accumulation": 0}):
        kept = prepare(keep_stored(config(), given, tmp_path))
        assert kept.fit.train.accumulation == 1
        with Workdir(tmp_path, kept.config) as run:
            assert run.config_sha256 == known
    smaller = prepare(keep_stored(config(batch_size=8), {}, tmp_path)).config
    with pytest.raises(ConfigDiffers, match=r"train.batch_size: .* in the run, 8 now"):
        Workdir(tmp_path, smaller)
    changed = keep_stored(config(accumulation=4), {}, tmp_path)  # set in the config file
    with pytest.raises(ConfigDiffers, match=r"train.accumulation: 1 in the run, 4 now"):
        Workdir(tmp_path, changed)


def test_runs_of_0_2_0_resume_with_their_parts(tmp_path):
    older = prepare(config(accumulation=2)).config
    older = {**older, "train": {**older["train"], "cpu_accumulation": 2}}
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert prepare(older).fit.train.accumulation == 2  # for --mode=eval
    resumed = prepare(keep_stored(config(), {}, tmp_path))
    assert resumed.fit.train.accumulation == 2
    with Workdir(tmp_path, resumed.config):
        pass


@pytest.mark.parametrize(
    ("batch", "accumulation", "given", "shards", "rows"),
    [(16, 1, 0, 1, 16), (16, 2, 0, 1, 16), (16, 8, 0, 1, 8), (16, 8, 3, 1, 3), (16, 8, 0, 16, 16)],
)
def test_evaluation_batches_have_four_parts(batch, accumulation, given, shards, rows):
    fit = FitConfig(
        train=TrainConfig(total_steps=1, batch_size=batch, accumulation=accumulation),
        optimizer=OptimizerConfig(learning_rate=1.0, warmup_steps=0),
        eval=EvalConfig(batch_size=given),
    )
    assert fit.eval_batch_size(shards) == rows


@hypothesis.given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_a_device_has_at_most_as_many_examples_at_once_as_a_single_one(a, b, shards, finer):
    batch_size, accumulation = a * b * shards, a * b if finer else a
    parts = num_parts(accumulation, batch_size, shards)
    assert accumulation % parts == 0
    assert batch_size % (parts * shards) == 0
    assert batch_size // (parts * shards) <= batch_size // accumulation
