"""transformers' BERT beside ours on the same batches: equal losses and outputs, and the tables of both."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import finetune
from benchmarks.steps import step_call
from configs.glue import get_config
from nystromformer_jax.models import NystromformerForSequenceClassification
from nystromformer_jax.pretrained import save_pretrained
from tests.helpers import OTHER_FRAMEWORK, assert_close
from tests.language.finetune import fakes, glue_fakes
from tests.pretrained import tiny

pytest.importorskip("transformers", reason="needs the extra `peers`")
pytest.importorskip("torch", reason="needs the extra `peers`")
pytestmark = pytest.mark.peers


@pytest.fixture
def bert(tmp_path):
    """The folder of a tiny BERT with a head for two classes, beside a small MRPC and MNLI."""
    folder = fakes.checkpoint(tmp_path / "model", max_len=64)
    sizes = {"vocab_size": len((folder / "vocab.txt").read_text().split()), "max_len": 64}
    softmax = {"attention": "softmax", "conv_kernel_size": 0, "num_labels": 2}
    config = dataclasses.replace(tiny.CONFIG, **sizes, **softmax)
    model = NystromformerForSequenceClassification(config)
    init = jax.jit(lambda key: model.init(key, jnp.ones((1, 5), jnp.int32), deterministic=True))
    save_pretrained(folder, model, init(jax.random.key(0)))
    for task in ("mrpc", "mnli"):
        glue_fakes.write_task(tmp_path, task)
    return folder


def opened(bert, task="mrpc", dropout_rate=0.0, **optimizer):
    config = get_config(f"{task},max_len=64").to_dict() | {"label": "", "command": ""}
    config["data"]["dir"], config["init"]["checkpoint"] = str(bert.parent), str(bert)
    config["model"] |= {"dropout_rate": dropout_rate, "attention_dropout_rate": dropout_rate / 2}
    config["optimizer"] |= {"learning_rate": 1e-2, "warmup_share": 0.5, **optimizer}
    config["train"] |= {"epochs": 8.0, "batch_size": 16}
    return finetune.open_run(config)


@pytest.mark.parametrize(
    "flag", ["attention.name=nystrom", "optimizer.clip_norm=1", "eval.patience=2"]
)
def test_training_of_the_peer_refuses_what_it_does_not_use(bert, tmp_path, capsys, flag):
    arguments = ["--train", "--config=configs/glue.py:mrpc", f"--config.{flag}"]
    arguments += [f"--config.init.checkpoint={bert}", f"--config.data.dir={bert.parent}"]
    assert finetune.main([*arguments, f"--out={tmp_path / 'x'}"]) == 2
    assert flag.partition("=")[0] in capsys.readouterr().err


def test_losses_after_updates_are_equal(bert):
    # The folder has the parameters that the run initializes from seed 0. The decay is large enough to matter.
    run = opened(bert, weight_decay=10.0)
    batches = list(finetune.batches_of(run, 12))
    assert any(batch["types"].any() for batch in batches)
    peer = finetune.peer_of(run)
    theirs = [peer.step(peer.tensors(batch)) for batch in batches]
    for count in (1, 12):
        ours = step_call(run.spec, batches[:count], run.spec.make_train_step())()
        assert_close(np.float32(ours), np.float32(theirs[count - 1]), OTHER_FRAMEWORK)


def test_outputs_for_evaluation_are_equal(bert):
    run = opened(bert)
    (batch,) = finetune.batches_of(run, 1)
    params = jax.jit(run.spec.make_params)()
    ours, theirs = run.spec.eval_step(params, batch), finetune.peer_of(run).outputs(batch)
    assert_close(theirs["outputs"]["logits"], ours["outputs"]["logits"], OTHER_FRAMEWORK)
    assert_close(theirs["loss"], ours["loss"], OTHER_FRAMEWORK)


def test_classes_and_dropout_are_those_of_the_run(bert):
    import torch

    peer = finetune.peer_of(opened(bert, "mnli", dropout_rate=0.25))
    assert peer.model.classifier.out_features == 3
    modules = peer.model.named_modules()
    rates = {name: m.p for name, m in modules if isinstance(m, torch.nn.Dropout)}
    assert rates.pop("dropout") == 0.25
    assert {p for name, p in rates.items() if "self" in name} == {0.125}
    assert {p for name, p in rates.items() if "self" not in name} == {0.25}


def test_times_and_scores_are_written(bert, tmp_path):
    out = tmp_path / "out"
    arguments = ["--config=configs/glue.py:mrpc,max_len=64", f"--config.data.dir={tmp_path}"]
    arguments += [f"--config.init.checkpoint={bert}", f"--out={out}", "--batches=1", "--rounds=1"]
    arguments += ["--config.train.epochs=3", "--config.optimizer.learning_rate=0.05"]
    assert finetune.main(arguments) == 0
    for seed in (0, 1):
        assert finetune.main([*arguments, "--train", f"--config.train.seed={seed}"]) == 0
    results = json.loads(out.with_suffix(".json").read_text())
    assert [row["model"] for row in results["rows"]] == ["ours", "transformers"]
    assert [row["seed"] for row in results["scores"]] == [0, 1]
    for row in results["scores"]:
        assert [values["step"] for values in row["evaluations"]] == [1, 2, 3]
        best = max(row["evaluations"], key=lambda values: (values["f1"], -values["loss"]))
        assert row["valid"] == best
