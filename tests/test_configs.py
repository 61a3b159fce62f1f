"""Sizes and budgets of the configs, and the argument after the colon."""

import importlib
import itertools

import jax
import pytest

from configs import common
from lra import data, train


def config_of(name, argument="nystrom"):
    return importlib.import_module(f"configs.{name}").get_config(argument)


def num_parameters(config):
    shapes = jax.eval_shape(train.make_params(train.prepare(config.to_dict())))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("name", "task", "length", "batch_size", "warmup_steps", "total_steps"),
    [  # Source: the authors' lra_config.py; Path-X: passes as theirs, batch of the official config
        ("listops", "listops", 2048, 32, 1000, 5_000),
        ("text", "text", 4096, 32, 8000, 20_000),
        ("retrieval", "retrieval", 4096, 32, 800, 30_000),
        ("image", "image", 1024, 256, 175, 35_000),
        ("pathfinder", "pathfinder32", 1024, 256, 312, 62_400),
        ("pathx", "pathfinder128", 16_384, 64, 1248, 249_600),
    ],
)
def test_lengths_and_budgets_of_the_paper(
    name, task, length, batch_size, warmup_steps, total_steps
):
    config = config_of(name)
    assert config.data.task == task
    assert (config.data.padded_len or config.data.max_len) == config.model.max_len == length
    assert (config.train.batch_size, config.train.total_steps) == (batch_size, total_steps)
    assert (config.optimizer.warmup_steps, config.optimizer.learning_rate) == (warmup_steps, 1e-4)
    assert data.describe(task).total_steps == total_steps


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("listops", "nystrom", 209_942),
        ("text", "nystrom", 370_702),
        ("retrieval", "nystrom", 395_278),
        ("retrieval", "softmax", 395_138),
        ("image", "nystrom", 175_126),
        ("pathfinder", "nystrom", 174_094),
        ("pathx", "nystrom", 174_094 + 64 * (16_384 - 1024)),
    ],
)
def test_parameter_counts_of_the_authors(name, argument, expected):
    # Retrieval, by hand:
    # Embeddings              512 · 64 + 4,096 · 64                                       = 294,912
    # Two layers, each        query, key, value, output   4 · (64 · 64 + 64)  = 16,640
    #                         MLP   64 · 128 + 128 + 128 · 64 + 64            = 16,576
    #                         two norms   2 · 2 · 64                          =    256    =  66,944
    # The norm at the end     2 · 64                                                      =     128
    # The head                x, y, x · y, x − y   4 · 64 · 128 + 128         = 32,896
    #                         128 · 2 + 2                                     =    258    =  33,154
    # Together 395,138; the convolutions of two layers of two heads add 2 · 2 · 35 = 140.
    assert num_parameters(config_of(name, argument)) == expected


@pytest.mark.parametrize(
    ("argument", "task", "length"),
    [
        ("nystrom,resolution=64", "pathfinder64", 4096),
        ("difficulty=easy", "pathfinder32-easy", 1024),
        ("softmax,difficulty=intermediate,resolution=256", "pathfinder256-intermediate", 65_536),
    ],
)
def test_pathfinder_accepts_a_resolution_and_a_difficulty(argument, task, length):
    config = config_of("pathfinder", argument)
    assert (config.data.task, config.data.max_len, config.model.max_len) == (task, length, length)
    assert data.describe(task).total_steps == config.train.total_steps
    passes = config.train.batch_size * config.train.total_steps / 160_000
    assert passes == pytest.approx(99.84)


@pytest.mark.parametrize(
    ("name", "argument", "word"),
    [
        ("pathfinder", "nystrom,resolution=48", "32, 64, 128, 256"),
        ("pathfinder", "nystrom,difficulty=esay", "hard"),
        ("pathfinder", "nystrom,resolution=64,resolution=32", "twice"),
        ("pathx", "nystrom,resolution=64", "128"),
        ("mqar", "softmax,pairs=few", "'few'"),
        ("mqar", "softmax,pairs=0", "'0'"),
        ("mqar", "nystrom,quirks=mlpen", "mqar-256-16"),
        ("text", "nystrom,resolution=64", "'resolution'"),
        ("text", "nystrom,num_landmarks=32,num_landmarks=64", "twice"),
        ("text", "nystrom,quirks=mlpen,quirks=google", "twice"),
        ("text", "nystrom,quirks=mlpn", "mlpen"),
        ("text", "nystrom,recipe=fast,quirks=mlpen", "combined"),
        ("text", "nystrom,recipe=papr", "paper"),
        ("text", "nystrom,recip=paper", "recipe"),
        ("glue", "sst2,num_landmarks=32", "attention=nystrom"),
        ("glue", "sst2,num_landmark=32", "num_landmarks"),
        ("pretrain", "checkpoint,conv_kernel_size=3", "attention=nystrom"),
    ],
)
def test_rejects_unknown_options(name, argument, word):
    with pytest.raises(ValueError, match=word):
        config_of(name, argument)


def test_a_recipe_that_was_renamed_is_accepted_with_a_warning(caplog):
    config = config_of("text", "nystrom,recipe=open_small")
    assert config == config_of("text", "nystrom,recipe=mega_small")
    assert [record.args for record in caplog.records] == [("open_small", "mega_small")]


def test_defaults_are_nystrom_attention_and_the_recipe_of_the_paper():
    for name in ("listops", "pathfinder", "pathx"):
        assert config_of(name, "num_landmarks=16") == config_of(name, "nystrom,num_landmarks=16")
        assert config_of(name, "softmax,recipe=paper") == config_of(name, "softmax")


@pytest.mark.parametrize("name", ["text", "retrieval", "image", "pathfinder", "pathx"])
def test_every_task_supports_the_quirks_of_the_authors(name):
    """Their layout needs a length divisible by the landmarks; their mask is `input_ids != 0`."""
    config = config_of(name, "nystrom,quirks=mlpen")
    assert config.data.zero_is_padding
    assert not config_of("image").data.zero_is_padding  # black pixels are no padding
    assert config.attention.landmark_layout == "mlpen"
    train.prepare(config.to_dict())


@pytest.mark.parametrize("name", ["listops", "text", "retrieval", "image", "pathfinder", "pathx"])
def test_every_task_has_recipes_with_moving_averages(name):
    for recipe in ("mega", "mega_small"):
        config = config_of(name, f"nystrom,recipe={recipe}")
        assert (config.model.block, config.model.positions) == ("gated_ema", "none")
        if name == "listops":
            train.prepare(config.to_dict(), jax.devices()[:1])


def test_an_option_can_be_a_tuple():
    arguments = common.core_arguments("mine:Mine,sizes=((3,5),(7,)),rank=2,modes=['a','b']")
    sizes = ((3, 5), (7,))
    assert arguments == {"name": "mine:Mine", "sizes": sizes, "rank": 2, "modes": ["a", "b"]}


def test_options_override_quirks_and_attentions_get_applicable_ones():
    config = config_of("text", "nystrom,landmark_layout=real,quirks=mlpen")
    assert config.attention.landmark_layout == "real"
    assert config.attention.pinv_start == "batch_max"
    config = config_of("text", "softmax,quirks=mlpen")
    assert config.model.pooling == "padded_mean"
    assert config.optimizer.cycle_beta1
    assert "landmark_layout" not in config.attention
    for argument in ("resolution=64", "resolution=256,difficulty=easy"):
        config = config_of("pathfinder", f"nystrom,quirks=google,{argument}")
        assert (config.model.num_layers, config.model.pooling) == (2, "cls")
        assert config.optimizer.clip_norm == 0
        assert config.data.zero_is_padding


@pytest.mark.parametrize(
    ("name", "parameters", "peak", "batch_size", "total_steps"),
    [  # Parameters: counted by hand from their layers; the rest stands in their config files.
        ("listops", 8_948_746, 1.581e-3, 32, 5_000),
        ("text", 3_486_722, 5.590e-4, 32, 20_000),
        ("retrieval", 1_087_618, 5.590e-4, 32, 5_000),
        ("image", 248_458, 5e-4, 256, 35_000),
        ("pathfinder", 26_530, 1e-3, 512, 62_400),
        ("pathx", 537_954, 1e-3, 64, 500_000),
    ],
)
def test_official_model_and_budget(name, parameters, peak, batch_size, total_steps):
    config = config_of(name, "softmax,quirks=google")
    assert num_parameters(config) == parameters
    assert config.optimizer.learning_rate == pytest.approx(peak, rel=1e-3)
    assert (config.train.batch_size, config.train.total_steps) == (batch_size, total_steps)
    assert config.train.budget_steps == total_steps
    assert (config.optimizer.beta2, config.optimizer.eps) == (0.98, 1e-9)


@pytest.mark.parametrize(
    ("name", "attention"),
    [  # One encoder, a pair, and the longest inputs for attentions whose parameters depend on the length.
        *itertools.product(
            ["listops", "retrieval"],
            [name for name in common.ATTENTIONS if name not in ("nystrom", "softmax")],
        ),
        ("pathx", "linformer"),
        ("pathx", "reformer"),
    ],
)
def test_every_attention_supports_every_kind_of_task(name, attention):
    run = train.prepare(config_of(name, attention).to_dict())
    assert run.attention == attention
