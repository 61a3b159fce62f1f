"""Labels contain only what differs, and are unique within a task."""

import importlib
import itertools
import random

import pytest

from configs import common, fast
from lra.report.labels import (
    PRESETS,
    RECIPES,
    config_values,
    default_setting,
    label_differences,
    label_settings,
    preset_of,
    setting_of,
    track_of,
)

CONFIGS = {
    "listops": "listops",
    "text": "text",
    "retrieval": "retrieval",
    "image": "image",
    "pathfinder": "pathfinder32",
    "pathx": "pathfinder128",
}


def config(argument, task="listops", **sections):
    values = importlib.import_module(f"configs.{task}").get_config(argument).to_dict()
    for section, changes in sections.items():
        values[section].update(changes)
    return values


def setting(argument, task="listops", **sections):
    return setting_of(config(argument, task, **sections), CONFIGS[task])


def labels(*settings, weights=None):
    budgets = [5000 if setting["data.task"] == "listops" else 20_000 for setting in settings]
    weights = weights or [1] * len(settings)
    return [label for _, label in label_settings(settings, weights, budgets)]


def test_setting_excludes_seeds_paths_and_machines():
    here = setting("nystrom")
    there = setting(
        "nystrom",
        data={"dir": "/elsewhere", "workers": 5, "source": "tfds"},
        train={"seed": 7, "remat": True, "cpu_accumulation": 4, "accumulation": 1},
        mesh={"data": 8},
        checkpoint={"every_steps": 11},
        log={"every_steps": 3},
        eval={"batch_size": 64},
    )
    assert here == there
    assert here != setting("nystrom", optimizer={"learning_rate": 2e-4})
    assert here != setting("nystrom,num_landmarks=32")


def test_an_older_config_without_a_key_is_the_same_setting():
    old = config("nystrom")
    for section, key in (
        ("data", "padded_len"),
        ("model", "pooling"),
        ("optimizer", "cycle_beta1"),
    ):
        del old[section][key]
    assert setting_of(old, "listops") == setting("nystrom")


def test_a_run_that_is_older_than_a_key_of_its_recipe_differs_from_newer_runs():
    old = config("nystrom,recipe=fast")
    del old["data"]["curriculum"]
    found = setting_of(old, "listops", config_argument="configs/listops.py:nystrom,recipe=fast")
    assert label_differences(found) == {"data.curriculum": 0}
    assert labels(found, setting("nystrom,recipe=fast")) == [
        "nystrom-32, no curriculum, recipe=fast",
        "nystrom-32, recipe=fast",
    ]


@pytest.mark.parametrize("task", CONFIGS)
@pytest.mark.parametrize("attention", ["nystrom", "softmax"])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_recognized_on_every_task(task, attention, preset):
    found = setting(",".join(filter(None, [attention, preset])), task)
    assert preset_of(found) == preset
    assert label_differences(found) == {}


def test_a_preset_without_the_task_is_not_recognized(monkeypatch):
    config_values.cache_clear()
    monkeypatch.delitem(fast.TASKS, "image")
    try:
        assert default_setting("image", "softmax", "recipe=fast") == {}
        changed = setting("softmax", "image", optimizer={"learning_rate": 0.5})
        assert preset_of(changed) == ""
    finally:
        config_values.cache_clear()
    assert preset_of({"data.task": "new", "attention.name": "softmax"}) == ""


@pytest.mark.parametrize(
    ("argument", "sections", "track"),
    [
        ("nystrom", {}, "paper"),
        ("softmax,conv_kernel_size=35", {}, "paper"),
        ("nystrom", {"train": {"total_steps": 50}, "optimizer": {"warmup_steps": 5}}, "paper"),
        ("nystrom", {"train": {"accumulation": 4}, "eval": {"every_steps": 100}}, "paper"),
        ("nystrom", {"optimizer": {"warmup_steps": 0}}, "other"),
        ("nystrom,recipe=fast", {}, "fast"),
        ("linear,recipe=fast", {}, "fast"),
        ("nystrom,recipe=fast,num_landmarks=256", {"train": {"seed": 7}}, "fast"),
        ("nystrom,quirks=mlpen", {}, "other"),
        ("softmax,quirks=google", {}, "other"),
        ("nystrom", {"optimizer": {"learning_rate": 2e-3}}, "other"),
        ("nystrom,recipe=fast", {"optimizer": {"learning_rate": 1e-4}}, "other"),
        ("nystrom,recipe=fast", {"model": {"num_layers": 4}}, "other"),
        ("nystrom,recipe=fast", {"data": {"max_len": 1000}}, "other"),
        ("nystrom,recipe=fast", {"train": {"batch_size": 8}}, "other"),
        ("nystrom,recipe=fast", {"train": {"total_steps": 50_000}}, "other"),
    ],
)
def test_track_is_a_recipe_with_any_attention_options(argument, sections, track):
    assert track_of(setting(argument, **sections)) == track


def test_an_option_alone_is_not_a_recipe():
    old = {"data": {"task": "listops"}, "attention": {"name": "nystrom", "num_landmarks": 32}}
    assert preset_of(setting_of(old, "listops")) == ""


def test_labels_contain_options_that_differ_from_the_paper():
    assert labels(
        setting("nystrom"),
        setting("nystrom,num_landmarks=32"),
        setting("nystrom,pinv_iters=2"),
        setting("nystrom,conv_kernel_size=0"),
        setting("softmax"),
        setting("nystrom,quirks=mlpen"),
        setting("nystrom,pinv_iters=2,quirks=mlpen"),
        setting("softmax,quirks=google"),
        setting("nystrom,recipe=fast"),
        setting("nystrom,recipe=fast,num_landmarks=256"),
        setting("nystrom,recipe=fast", model={"dtype": "bfloat16"}),
        setting("nystrom", model={"dtype": "bfloat16", "num_layers": 4}),
        setting("nystrom", data={"examples": 1000}),
    ) == [
        "nystrom-64",
        "nystrom-32",
        "nystrom-64, 2 iterations",
        "nystrom-64, no convolution",
        "softmax",
        "nystrom-64, quirks=mlpen",
        "nystrom-64, 2 iterations, quirks=mlpen",
        "softmax, quirks=google",
        "nystrom-32, recipe=fast",
        "nystrom-256, recipe=fast",
        "nystrom-32, bfloat16, recipe=fast",
        "nystrom-64, bfloat16, 4 layers",
        "nystrom-64, examples 1000",
    ]


def test_labels_omit_options_that_differ_by_task():
    assert labels(*(setting("nystrom", task) for task in CONFIGS)) == ["nystrom-64"] * len(CONFIGS)


def test_label_of_a_shorter_run_contains_its_steps():
    short = setting("nystrom", train={"total_steps": 500}, optimizer={"warmup_steps": 100})
    assert labels(setting("nystrom"), short) == ["nystrom-64", "nystrom-64, 500 steps"]
    # A single setting of its task has the short label and is in the row of the others.
    assert labels(setting("nystrom", "text"), short) == ["nystrom-64", "nystrom-64"]


def test_labels_contain_the_warm_up():
    slow = setting("nystrom", optimizer={"warmup_steps": 2000})
    assert labels(setting("nystrom"), slow) == ["nystrom-64", "nystrom-64, warm-up 2000"]
    short = [
        setting("nystrom", train={"total_steps": 500}, optimizer={"warmup_steps": steps})
        for steps in (50, 100)
    ]
    assert labels(*short) == ["nystrom-64, warm-up 50", "nystrom-64, warm-up 100"]


@pytest.mark.parametrize(
    ("argument", "sections", "label"),
    [
        ("softmax,quirks=google", {"model": {"num_layers": 1}}, "softmax, 1 layer, quirks=google"),
        (
            "softmax,quirks=google",
            {"model": {"dtype": "bfloat16"}, "data": {"max_len": 500, "seed": 3}},
            "softmax, max len 500, data seed 3, bfloat16, quirks=google",
        ),
        ("nystrom", {"optimizer": {"learning_rate": 1e-2}}, "nystrom-64, rate 0.01"),
        ("nystrom", {"train": {"total_steps": 50_000}}, "nystrom-64, 50,000 steps"),
        (
            "nystrom",
            {"data": {"max_len": 128}, "train": {"batch_size": 8}},
            "nystrom-64, max len 128, batch 8",
        ),
        ("nystrom", {"optimizer": {"clip_norm": 1.0}}, "nystrom-64, clip norm 1.0"),
        # An own attention may have an option of the same name and another type.
        ("nystrom", {"attention": {"pinv_iters": [2, 6]}}, "nystrom-64, iterations (2, 6)"),
        (
            "nystrom",
            {"train": {"total_steps": 10, "budget_steps": 10}},
            "nystrom-64, budget of steps 10",
        ),
        ("nystrom", {"data": {"seed": 1}}, "nystrom-64, data seed 1"),
    ],
)
def test_label_of_a_single_run_contains_its_changes(argument, sections, label):
    changed = setting(argument, **sections)
    assert label_settings([changed], [1], [5000]) == [(label, label)]


def test_other_data_are_a_different_setting():
    settings = [setting_of(config("softmax"), "listops", sha) for sha in ("a" * 64, "b" * 64)]
    assert labels(*settings) == ["softmax, data aaaaaaaa", "softmax, data bbbbbbbb"]


def test_a_zero_that_means_all_is_not_labelled_as_none():
    some = {"data.examples": 9, "data.padded_len": 9, "data.seed": 1, "eval.max_examples": 5}
    own = {**setting("softmax"), "data.task": "own"}  # a task without a config file
    named = labels(own | some, own | dict.fromkeys(some, 0), weights=[2, 1])
    assert named == [
        "softmax",
        "softmax, all examples, padded to max len, data seed 0, evaluated on all",
    ]


def test_presets_are_the_recipes_and_quirks_of_the_configs():
    paper, *recipes = common.RECIPES
    quirks = [name for name in common.QUIRKS if name != "none"]
    assert paper == RECIPES[0]
    assert {*PRESETS} == {
        "",
        *(f"recipe={name}" for name in recipes),
        *(f"quirks={name}" for name in quirks),
    }


def test_labels_contain_differing_options_of_unknown_attentions():
    def unknown(**options):
        return {**setting("softmax"), "attention.name": "new", "attention.width": 5} | options

    assert labels(unknown(), setting("softmax")) == ["new", "softmax"]
    settings = [unknown(), unknown(**{"attention.width": 7}), unknown(**{"attention.gate": True})]
    assert labels(*settings, weights=[2, 1, 1]) == ["new", "new, width 7", "new, gate"]


def test_labels_of_a_task_are_unique():
    rng = random.Random(0)
    values = {
        "attention.num_landmarks": [16, 64, 256],
        "attention.pinv_iters": [2, 6],
        "attention.conv_kernel_size": [0, 35],
        "attention.pinv_start": ["exact", "batch_max"],
        "model.dtype": ["float32", "bfloat16"],
        "model.dropout_rate": [0.0, 0.1],
        "optimizer.learning_rate": [1e-4, 1e-3],
        "optimizer.warmup_steps": [100, 1000],
        "train.total_steps": [500, 5000],
        "data.sha256": ["", "a" * 64, "b" * 64],
        "data.task": ["listops", "text"],
    }
    everything = list(itertools.product(*values.values()))
    for _ in range(30):
        settings = [
            {**setting("nystrom"), **dict(zip(values, chosen, strict=True))}
            for chosen in rng.sample(everything, 20)
        ]
        found = labels(*settings, weights=[rng.randint(1, 3) for _ in settings])
        named = [(one["data.task"], label) for one, label in zip(settings, found, strict=True)]
        assert len(set(named)) == len(named)
