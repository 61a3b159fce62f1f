"""transformers' model beside ours on the same batches: the same losses, and the tables of both."""

import argparse
import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks import finetune
from benchmarks.steps import step_call
from configs import language
from nystromformer_jax.models import NystromformerForSequenceClassification
from nystromformer_jax.pretrained import save_pretrained
from tests.language.finetune import fakes, glue_fakes
from tests.pretrained import tiny

pytest.importorskip("transformers", reason="needs the extra `peers`")
pytest.importorskip("torch", reason="needs the extra `peers`")
pytestmark = pytest.mark.peers

LEARNING_RATE = 1e-2


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Arguments for a tiny BERT with a head, without dropout, and a small SST-2."""
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    monkeypatch.setattr(language, "MODEL", language.MODEL | rates)
    folder = fakes.checkpoint(tmp_path / "model", max_len=64)
    words = len((folder / "vocab.txt").read_text().split())
    model = NystromformerForSequenceClassification(
        dataclasses.replace(
            tiny.CONFIG,
            vocab_size=words,
            max_len=64,
            attention="softmax",
            conv_kernel_size=0,
            num_labels=2,
            **rates,
        )
    )
    init = jax.jit(lambda key: model.init(key, jnp.ones((1, 5), jnp.int32), deterministic=True))
    save_pretrained(folder, model, init(jax.random.key(0)))
    glue_fakes.write_task(tmp_path, "sst2")
    return argparse.Namespace(
        model=str(folder), dir=str(tmp_path), learning_rate=LEARNING_RATE, epochs=4, examples=0
    )


def test_losses_after_updates_on_the_same_batches_agree(given):
    run, data, spec = finetune.open_task(given, "sst2", "softmax")
    batches = finetune.first_batches(run, data, spec, 4)
    peer = finetune.Peer(given.model, spec)
    theirs = [peer.step(batch) for batch in batches]
    for count in (1, 4):
        ours = step_call(spec, batches[:count], spec.make_train_step())()
        assert float(ours) == pytest.approx(theirs[count - 1], rel=1e-4)
    assert theirs[-1] < theirs[0] - 1e-3


def test_times_and_scores_are_written(given, tmp_path):
    arguments = ["--model", given.model, "--dir", given.dir, "--tasks", "sst2"]
    times, scores = tmp_path / "times", tmp_path / "scores"
    assert finetune.main([*arguments, "--batches=1", "--rounds=1", f"--out={times}"]) == 0
    rows = json.loads(times.with_suffix(".json").read_text())["rows"]
    assert [row["model"] for row in rows] == list(finetune.MODELS)
    assert all(row["seconds"]["median"] > 0 for row in rows)
    assert "softmax, s per step" in times.with_suffix(".md").read_text()
    assert finetune.main([*arguments, "--seeds=2", "--epochs=2", f"--out={scores}"]) == 0
    rows = json.loads(scores.with_suffix(".json").read_text())["rows"]
    assert [len(row["evaluations"]) for row in rows] == [2, 2]
    assert all(row["valid"] in row["evaluations"] for row in rows)
    assert "| SST-2 | accuracy | 2 |" in scores.with_suffix(".md").read_text()
