"""Tiny corpora, models and runs of both trainers."""

import contextlib

import jax
import pytest

from configs import glue as glue_config
from configs import pretrain as pretrain_config
from language import corpus, pretrain
from nystromformer_jax.training import Workdir
from tests.language import texts

PRETRAIN = {
    "data": {"vocab_size": 60, "max_len": 29, "held_out": 0.2, "workers": 1},
    "model": {"num_layers": 1, "embed_dim": 8, "num_heads": 2, "mlp_dim": 12, "dropout_rate": 0.0},
    "attention": {"num_landmarks": 5, "conv_kernel_size": 3},
    "optimizer": {"warmup_steps": 2},
    "train": {"total_steps": 6, "batch_size": 8},
    "eval": {"every_steps": 3, "max_examples": 20},
    "checkpoint": {"every_steps": 3},
    "log": {"every_steps": 3, "events": False},
}


@contextlib.contextmanager
def cache_in(folder):
    """Sets the cache for fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NYSTROMFORMER_JAX_CACHE", str(folder / "cache"))
        yield


def changed(config, changes):
    """The config as plain sections, with changed values."""
    plain = config.to_dict()
    for section, values in changes.items():
        for key, value in values.items():
            assert key in plain[section], f"{section}.{key}"
            plain[section][key] = value
    return plain


def merged(*changes):
    """Merges sections; later changes override earlier ones."""
    sections = {}
    for part in changes:
        for name, values in part.items():
            sections[name] = {**sections.get(name, {}), **values}
    return sections


def pretrain_sections(folder, argument="demo", **changes):
    """A tiny pretraining config on a corpus that is written into `folder`."""
    text = texts.in_form("blank_line", texts.documents(80, most_lines=5), folder)
    config = pretrain_config.get_config(argument)
    defaults = {**PRETRAIN, "attention": {}} if "attention=" in argument else PRETRAIN
    return changed(config, merged(defaults, {"data": {"dir": str(text)}}, changes))


def pretrained(folder, workdir, argument="demo", **changes):
    """Runs pretraining on one device; returns the result and the corpus."""
    config = pretrain_sections(folder, argument, **changes)
    run = pretrain.prepare(config, jax.devices()[:1])
    data = corpus.load(run.data)
    with Workdir(workdir, config) as opened:
        return pretrain.train(run, data, opened), data


def glue_sections(task, data_dir, checkpoint, argument="", **changes):
    """A tiny fine-tuning config."""
    given = {
        "data": {"dir": str(data_dir), "max_len": 19},
        "init": {"checkpoint": str(checkpoint)},
        "train": {"epochs": 2.0, "batch_size": 8},
        "log": {"every_steps": 2, "events": False},
    }
    return changed(glue_config.get_config(f"{task}{argument}"), merged(given, changes))
