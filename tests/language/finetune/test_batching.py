"""How batches are grouped and padded, and that older runs keep their way."""

import dataclasses
import json

import pytest

from cli import configs, training
from language.finetune.data import NOTES, load
from language.finetune.glue import GlueConfig
from language.finetune.run import read_sections
from nystromformer_jax.support.durable import read_json
from nystromformer_jax.support.predictions import padded_len
from nystromformer_jax.training import Workdir
from nystromformer_jax.training.errors import ConfigDiffers
from tests.language.finetune.glue_fakes import Words, write_task

CONFIG = "configs/glue.py:mrpc"


def data_of(folder, **texts):
    """The section "data" of a command in the folder of a run."""
    values = {f"data.{name}": text for name, text in texts.items()}
    given = configs.read(CONFIG, values, "run_finetune.py", CONFIG)
    config = training.read_config(given, folder, "train")
    if (folder / "config.json").exists():
        Workdir(folder, config, read_only=True)
    return read_sections(config)["data"]


def test_older_runs_keep_their_batches(tmp_path):
    new = data_of(tmp_path / "none")
    assert (new.group_by_length, new.base_len) == (True, 16)
    given = configs.read(CONFIG, {}, "run_finetune.py", CONFIG)
    config = training.read_config(given, tmp_path, "train")
    for recorded, expected in (
        ({}, (False, 0)),
        ({"group_by_length": True}, (True, 0)),
        ({"group_by_length": False, "base_len": 32}, (False, 32)),
    ):
        kept = ("group_by_length", "base_len")
        rest = {name: x for name, x in config["data"].items() if name not in kept}
        content = {**config, "data": {**rest, **recorded}}
        (tmp_path / "config.json").write_text(json.dumps(content))
        found = data_of(tmp_path)
        assert (found.group_by_length, found.base_len) == expected
    with pytest.raises(ConfigDiffers, match="base_len"):
        data_of(tmp_path, base_len="64")


def test_padded_lengths_are_few():
    lengths = {padded_len(longest, 500, 16) for longest in range(1, 501)}
    assert lengths == {16, 32, 64, 128, 256, 500}
    with pytest.raises(ValueError, match="base_len"):
        GlueConfig(task="mrpc", base_len=-1)


def test_a_share_of_glues_training_examples_can_be_the_validation_set(tmp_path):
    write_task(tmp_path, "mrpc")
    config = GlueConfig(task="mrpc", dir=str(tmp_path))
    whole = load(config, Words())
    held = load(dataclasses.replace(config, valid_share=0.25), Words())
    counts = {name: len(split) for name, split in held.splits.items()}
    total = len(whole.splits["train"])
    assert counts == {"train": total - total // 4, "valid": total // 4}
    assert held.sha256 != whole.sha256
    notes = read_json(held.folder / NOTES)
    assert notes["different"].keys() == counts.keys()
    assert notes["shared"] == {"train/valid": 0}
    with pytest.raises(ValueError, match="valid_share"):
        GlueConfig(task="imdb", valid_share=0.1)
