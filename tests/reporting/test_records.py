"""Labels name what a user has changed; settings ignore what cannot change results."""

import pytest

from configs import glue, listops
from reporting.records import SIZES, label_of, setting_of


def config(argument, **sections):
    values = listops.get_config(argument).to_dict()
    for section, changes in sections.items():
        values[section] |= changes
    return values


@pytest.mark.parametrize(
    ("argument", "sections", "label"),
    [
        ("nystrom", {}, "nystrom-64"),
        ("nystrom", {"attention": {"num_landmarks": 32}}, "nystrom-32"),
        ("softmax", {"attention": {"dropout_rate": 0.3}}, "softmax, dropout_rate=0.3"),
        ("nystrom,recipe=fast", {"data": {"curriculum": 0}}, "nystrom-32, curriculum=0"),
        ("nystrom", {"train": {"total_steps": 9, "seed": 4}}, "nystrom-64"),
        ("nystrom", {"data": {"dir": "/x"}, "mesh": {"data": 2}}, "nystrom-64"),
        ("none", {"model": {"stem": (3,)}}, "none, stem=(3,)"),
        ("softmax", {"model": {"dropout_rate": 0.3}}, "softmax, model.dropout_rate=0.3"),
        ("nystrom", {"data": {"seed": 2}}, "nystrom-64, data.seed=2"),
    ],
)
def test_label_has_the_attention_its_size_and_the_changes(argument, sections, label):
    assert label_of(config(argument, **sections), config(argument)) == label


def test_labels_of_other_packages_and_of_fine_tuning():
    """They name the class, and the checkpoint."""
    values = config("softmax", attention={"name": "package.module:Wide"})
    assert label_of(values, values) == "Wide"
    values = glue.get_config("sst2").to_dict()
    values["init"]["checkpoint"] = "runs/wikipedia/model"
    assert label_of(values, values) == "wikipedia"
    values["attention"] = {"name": "nystrom", "num_landmarks": 16}
    assert label_of(values, values) == "nystrom-16 from wikipedia"
    for name, option in SIZES.items():
        assert option in config(name)["attention"]


def test_setting_ignores_seeds_paths_and_machines():
    here = setting_of(config("nystrom"))
    neutral = {
        "data": {"dir": "/elsewhere", "workers": 5, "source": "tfds"},
        "attention": {"implementation": "xla"},
        "train": {"seed": 7, "remat": True, "accumulation": 3},
        "mesh": {"data": 8},
        "checkpoint": {"every_steps": 11},
        "log": {"every_steps": 3},
        "eval": {"batch_size": 64},
    }
    assert setting_of(config("nystrom", **neutral) | {"label": "a", "command": "b"}) == here
    assert setting_of(config("nystrom", optimizer={"learning_rate": 2e-4})) != here
    for option in ("num_landmarks=32", "mask_conv=False"):
        assert setting_of(config(f"nystrom,{option}")) != here


def test_an_older_config_without_a_newer_option_at_its_default_is_the_same_setting():
    old = config("nystrom")
    keys = (("data", "padded_len"), ("model", "stem"), ("optimizer", "cycle_beta1"))
    for section, key in (*keys, ("attention", "pinv"), ("attention", "mask_conv")):
        del old[section][key]
    assert setting_of(old) == setting_of(config("nystrom"))
