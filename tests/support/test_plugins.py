"""An attention and a task of another package, as in docs/extend.md: every command, errors, report."""

import importlib
import json
import re
import shlex
import sys

import jax
import jax.numpy as jnp
import pytest

from configs import common, listops
from lra import data, train
from lra.data.task import DataConfig
from lra.figures.__main__ import main as figures
from lra.report.groups import group, read
from lra.report.page import make
from nystromformer_jax import attention_fn
from nystromformer_jax.support.durable import read_json
from nystromformer_jax.support.plugins import load_plugin, source_sha256
from tests.lra.report.runs import write_run
from tests.programs import ROOT, call, finish, start

COSFORMER = "my_package.attention:CosFormer"
RESULT = {
    "task": "majority",
    "attention": COSFORMER,
    "test_accuracy": 0.7,
    "test_examples": 128,
    "valid_accuracy": 0.7,
    "best_step": 20,
    "total_steps": 20,
}

STATEFUL = """
import flax.linen as nn
import jax

class Normalized(nn.Module):
    @nn.compact
    def __call__(self, query, key, value, mask=None, query_mask=None, *, deterministic):
        return nn.BatchNorm(deterministic)(value)

class Noisy(nn.Module):
    @nn.compact
    def __call__(self, query, key, value, mask=None, query_mask=None, *, deterministic):
        if deterministic:
            return value
        return value + jax.random.normal(self.make_rng("noise"), value.shape)

class Biased(nn.Module):
    @nn.compact
    def __call__(self, query, key, value, mask=None, query_mask=None, *, deterministic):
        bias = self.param("bias", nn.initializers.zeros_init(), value.shape[1:2])
        return value + bias[None, :, None, None]
"""


@pytest.mark.usefixtures("my_project")
@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("my_package.attention:CosFormr", "CosFormr"),
        ("my_package.atention:CosFormer", r"my_package\.atention"),
        ("mypackage.attention:CosFormer", "PYTHONPATH"),
        ("my_package.attention:jnp", r"flax\.linen\.Module"),
        ("my_package.attention:Path:x", "Path:x"),
        ("my_package.majority:Task", r"flax\.linen\.Module"),
        (f"{COSFORMER},maxlen=3", "did you mean max_len"),
    ],
)
def test_an_unknown_attention_is_one_sentence(argument, words):
    with pytest.raises((ImportError, ValueError), match=words) as found:
        common.base(argument)
    assert "\n" not in str(found.value)


@pytest.mark.usefixtures("my_project")
def test_an_unknown_task_or_option_type_is_an_error():
    with pytest.raises(ImportError, match="MAJORTY"):
        data.describe("my_package.majority:MAJORTY")
    with pytest.raises(ValueError, match=r"lra\.data\.TaskInfo"):
        data.load(DataConfig(task="my_package.majority:load", max_len=64))
    with pytest.raises(ValueError, match=r"attention\.max_len: needs an int"):
        train.prepare(listops.get_config(f"{COSFORMER},max_len=long").to_dict())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import jax\nx = undefined", r"NameError: .*__init__\.py, line 2"),
        ("def f(:", "SyntaxError: .*line 1"),
        ("import no_such_module_anywhere", r"no_such_mod.*__init__\.py, line 1\)$"),
        ("import math\n\nmath.bogus", r"AttributeError: .*bogus.*__init__\.py, line 3"),
    ],
)
def test_an_error_of_the_module_is_shown(my_project, code, words):
    (my_project / "my_broken").mkdir()
    (my_project / "my_broken" / "__init__.py").write_text(code)
    with pytest.raises(ImportError, match=words):
        load_plugin("my_broken.mine:Mine", type, "a class")


@pytest.mark.usefixtures("my_project")
def test_options_are_the_fields_of_the_class_which_flax_modules_may_use():
    config = common.base(f"{COSFORMER},epsilon=1e-3")
    assert config.attention.to_dict() == {"name": COSFORMER, "max_len": 0, "epsilon": 1e-3}
    x = jnp.ones((2, 7, 3, 4))
    assert jax.eval_shape(attention_fn(COSFORMER, max_len=7), x, x, x).shape == x.shape
    fast = listops.get_config(f"{COSFORMER},recipe=fast").attention.to_dict()
    assert fast.keys() == {"name", "max_len", "epsilon"}


TUPLES = """
import flax.linen as nn

class Value(nn.Module):
    pairs: tuple[tuple[int, int], ...] = ((1, 2), (3, 4))
    plain: tuple = ((1, 2),)
    other: object = ()

    @nn.compact
    def __call__(self, query, key, value, mask=None, query_mask=None, *, deterministic):
        return value
"""


def test_tuples_are_the_same_options_after_a_round_trip_through_config_json(my_project):
    (my_project / "my_package" / "tuples.py").write_text(TUPLES)
    config = listops.get_config("my_package.tuples:Value,pairs=((5,6),(7,8)),other=((9,),)")
    config.data.max_len = config.model.max_len = 8
    written = json.loads(json.dumps(config.to_dict()))
    model, read_back = (train.prepare(one).model for one in (config.to_dict(), written))
    assert dict(model.make_core.options)["pairs"] == ((5, 6), (7, 8))
    assert (read_back, hash(read_back)) == (model, hash(model))


@pytest.mark.parametrize(
    ("name", "words"),
    [("Normalized", '"batch_stats"'), ("Noisy", 'PRNG for "noise"')],
)
def test_state_and_other_random_streams_are_rejected_before_training(my_project, name, words):
    (my_project / "my_package" / "stateful.py").write_text(STATEFUL)
    config = listops.get_config(f"my_package.stateful:{name}")
    config.data.max_len = config.model.max_len = 8
    with pytest.raises(ValueError, match=f"attention.name: .*no variables but parameters.*{words}"):
        train.prepare(config.to_dict())


@pytest.mark.parametrize(("max_len", "multiple"), [(8, 2), (13, 5)])
def test_parameters_for_one_length_need_batches_of_one_length(my_project, max_len, multiple):
    (my_project / "my_package" / "stateful.py").write_text(STATEFUL)
    config = listops.get_config("my_package.stateful:Biased")
    config.data.max_len = config.model.max_len = max_len
    train.prepare(config.to_dict())
    config.data.pad_to_multiple_of = multiple
    with pytest.raises(ValueError, match=r"depend on the length.*data\.pad_to_multiple_of=0"):
        train.prepare(config.to_dict())


def test_the_hash_of_a_plugin_covers_its_package_whatever_is_imported(my_project):
    helpers = my_project / "my_package" / "helpers.py"
    helpers.write_text("ONE = 1\n")
    before = source_sha256(COSFORMER)
    importlib.import_module("my_package.helpers")
    assert source_sha256(COSFORMER) == before
    helpers.write_text("ONE = 2\n")
    assert source_sha256(COSFORMER) != before
    (my_project / "alone.py").write_text("class Core: pass\n")
    alone = source_sha256("alone:Core")
    (my_project / "beside.py").write_text("")
    assert source_sha256("alone:Core") == alone


@pytest.fixture
def checked(in_repository, monkeypatch):
    """Configs that the programs prepare; a run writes a result without training or data."""
    configs = []
    prepare = train.prepare

    def keep(config, *arguments):
        configs.append(json.loads(json.dumps(config)))
        return prepare(config, *arguments)

    def write(run, task, workdir, **options):
        (workdir.path / "metrics.jsonl").write_text('{"step": 20, "valid/accuracy": 0.7}\n')
        workdir.write_result({**RESULT, "partial": False})
        return RESULT

    monkeypatch.setattr(train, "prepare", keep)
    monkeypatch.setattr(train, "train", write)
    monkeypatch.setattr(data, "load", lambda config: None)
    return configs


def test_the_recorded_command_passes_its_check(my_project, checked, tmp_path):
    config = f"--config={my_project}/majority.py:{COSFORMER}"
    flags = ["--config.attention.epsilon=0.5", "--config.data.max_len=33", "--config.data.dir=X"]
    answer = call("run_lra", config, *flags, f"--workdir={tmp_path}/run")
    assert answer.code == 0, answer
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert recorded["label"] == "CosFormer, epsilon=0.5, data.max_len=33"
    python, program, *arguments = shlex.split(recorded["command"])
    assert (python, program) == ("python", "run_lra.py")
    answer = call("run_lra", *arguments, "--mode=check")
    assert answer.code == 0, answer
    original, again = checked
    assert again == original


def test_the_report_does_not_execute_code_of_other_packages(my_project, tmp_path):
    runs = {
        "task": {"task": "my_package.majority:MAJORITY", "attention": {"name": "softmax"}},
        "cos": {"attention": {"name": COSFORMER, "max_len": 0}},
        "other": {"attention": {"name": "other_package:CosFormer", "max_len": 0}},
    }
    for name, options in runs.items():
        write_run(tmp_path / "runs" / name, **options)
    found, left_out = read([tmp_path / "runs"])
    page = make(found, left_out, tmp_path / "report")["md"]
    assert not [name for name in sys.modules if name.startswith("my_package")]
    assert list(group(found)["name"]) == [COSFORMER, "other_package:CosFormer", "softmax"]
    assert "\n## MAJORITY\n" in page
    assert (tmp_path / "report-curves-my_package-majority-MAJORITY.png").is_file()
    assert list(group(found)["budget_steps"]) == [5000, 5000, 20]


@pytest.mark.slow(minutes=1)
def test_a_run_is_evaluated_reported_and_drawn(my_project, tmp_path):
    path = f"{ROOT}:{my_project}"
    folder = tmp_path / "runs" / "mine"
    words = [
        "run_lra.py",
        f"--config={my_project}/majority.py:{COSFORMER}",
        "--config.train.total_steps=20",
        f"--workdir={folder}",
    ]
    trained = finish(start(*words, PYTHONPATH=path))
    assert "majority with my_package.attention:CosFormer attention" in trained.output
    evaluated = finish(start("run_lra.py", "--mode=eval", f"--workdir={folder}", PYTHONPATH=path))
    accuracy = re.search(r"test accuracy \S+", trained.output)[0]
    assert accuracy in evaluated.output
    described = finish(start("run_lra.py", "--mode=data", words[1], PYTHONPATH=path)).output
    assert "| train | 512 | 512 |" in described
    finish(start("-m", "lra.report", tmp_path / "runs", "--out", tmp_path / "report"))
    table = (tmp_path / "report.runs.csv").read_text()
    assert f"--config={my_project}/majority.py:{COSFORMER}" in table
    assert figures([str(folder), "--num_landmarks=4", "--out", str(tmp_path / "figures")]) == 0
    assert read_json(tmp_path / "figures.json")["attention"] == COSFORMER


@pytest.mark.slow(minutes=1)
def test_the_contract_and_the_table_of_cost_accept_a_class(my_project, tmp_path):
    path = f"{ROOT}:{my_project}"
    words = ["-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "tests/cores/test_contract.py"]
    found = finish(start(*words, f"--core={COSFORMER}", PYTHONPATH=path))
    assert "7 passed, 2 skipped" in found.output
    sizes = ["--lengths", "64", "128", "--batch", "1", "--heads", "2", "--head_dim", "8"]
    rows = ["--attentions", "softmax", f"{COSFORMER},epsilon=0.5", "--repeats", "1"]
    out = ["--out", str(tmp_path / "cost")]
    answer = finish(start("-m", "benchmarks.efficiency", *rows, *sizes, *out, PYTHONPATH=path))
    assert f"{COSFORMER},epsilon=0.5" in answer.output
