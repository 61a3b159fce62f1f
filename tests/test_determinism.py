"""The same seed gives the same bits for every task and trainer; another seed gives other bits.

Runs of one seed share nothing but the machine: each prepares its data anew, in a cache of its own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from language import pretrain
from language.finetune import trainer as finetune
from lra import train
from nystromformer_jax import training
from nystromformer_jax.training import Workdir
from tests.language import runs
from tests.language.finetune import fakes as files
from tests.lra.data import fakes
from tests.lra.small import NYSTROM, random_params, small_config
from tests.programs import finish, start

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
# One argument for each source of randomness: hashes, features, dropout.
SAMPLING = ("reformer,chunk_len=8,num_hashes=2", "performer,num_features=8,redraw=True", "softmax")


def source(task, folder):
    """The sources of a task's data, in its `data` section."""
    if task in ("text", "image", "retrieval"):
        fakes.write_folder(folder / fakes.FOLDERS[task], fakes.files(task))
        return {"dir": str(folder)}
    return {"workers": 1}


def small(task, argument=NYSTROM, *, seed=0, **sources):
    """A config of `configs/` on 17 examples of 37 tokens; images keep their size."""
    values = {"data__examples": 17, "train__total_steps": 4, "train__seed": seed}
    values |= {f"data__{key}": value for key, value in sources.items()}
    if not task.startswith("path"):
        values |= {"data__max_len": 37, "data__padded_len": 0}
    return small_config(task, argument, optimizer__learning_rate=1e-2, **values)


def lra_run(task, argument, folder, monkeypatch, **options):
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(folder / "cache"))
    config = small(task, argument, **source(task, folder / "source"), **options)
    run = train.prepare(config)
    with Workdir(folder / "run", config) as workdir:
        result = train.train(run, fakes.load_config(run.data).first(17), workdir)
        params = training.load_params(
            workdir.checkpoints, result["best_step"], train.make_params(run), run.mesh
        )
    same = {key: result[key] for key in ("test_accuracy", "valid_accuracy", "data_sha256")}
    return (folder / "run/metrics.jsonl").read_bytes(), same, bytes_of(params)


def bytes_of(tree):
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize(
    ("task", "argument"),
    [
        ("text", SAMPLING[0]),
        ("retrieval", SAMPLING[1]),
        *(
            pytest.param(task, argument, marks=pytest.mark.slow(minutes=0.2))
            for task, argument in (
                *((task, NYSTROM) for task in TASKS),
                *(("listops", argument) for argument in SAMPLING),
            )
        ),
    ],
)
def test_a_benchmark_run_is_deterministic(task, argument, tmp_path, monkeypatch):
    for name in ("one", "other"):
        (tmp_path / name / "source").mkdir(parents=True)
    one = lra_run(task, argument, tmp_path / "one", monkeypatch)
    assert lra_run(task, argument, tmp_path / "other", monkeypatch) == one


@pytest.mark.slow(minutes=0.1)
def test_another_seed_changes_hashes_and_features():
    """Each option alone, with everything else unchanged."""
    for argument in ("reformer,chunk_len=8,redraw=False", "performer,num_features=8"):
        drawn = [loss_of(argument, seed) for seed in (0, 0, 1)]
        assert drawn[0] == drawn[1] != drawn[2], argument


def loss_of(argument, seed):
    """The loss of a model with the same parameters, on the same batch."""
    run = train.prepare(small("listops", argument, seed=seed))
    params = random_params(run, scale=1.0)
    batch = {
        "inputs": jnp.asarray(np.random.default_rng(0).integers(1, 16, (8, 37), np.int32)),
        "mask": jnp.ones((8, 37), bool),
        "labels": jnp.zeros(8, jnp.int32),
        "weights": jnp.ones(8),
    }
    return float(jax.jit(train.make_loss(run.model))(params, batch, None)[0])


def lra_spec(folder, seed):
    return train.make_spec(train.prepare(small("listops", seed=seed)))


def pretraining_spec(folder, seed):
    sections = runs.pretrain_sections(folder, train={"seed": seed})
    return pretrain.make_spec(pretrain.prepare(sections))


def fine_tuning_spec(folder, seed):
    config = runs.glue_sections("mrpc", folder, files.checkpoint(folder), train={"seed": seed})
    return finetune.make_spec(finetune.prepare(config), examples=40)


@pytest.mark.slow_except("lra_spec")
@pytest.mark.parametrize("make_spec", [lra_spec, pretraining_spec, fine_tuning_spec])
def test_another_seed_changes_the_initial_parameters(make_spec, tmp_path):
    specs = [make_spec(tmp_path / str(seed), seed) for seed in (0, 1)]
    one, other = (bytes_of(jax.jit(spec.make_params)()) for spec in specs)
    kernels = [path for path in one if path.endswith("['kernel']")]
    assert len(kernels) > 5
    assert not any(one[path] == other[path] for path in kernels)


@pytest.mark.slow(minutes=0.5)
def test_results_do_not_depend_on_the_string_hash_seed(tmp_path):
    """The order of a Python set differs between processes and must not matter."""
    left = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        text = runs.texts.in_form("blank_line", runs.texts.documents(80, most_lines=5), folder)
        sections = runs.merged(runs.PRETRAIN, {"data": {"dir": text}})
        flags = [
            f"--config.{section}.{key}={value}"
            for section, values in sections.items()
            for key, value in values.items()
        ]
        command = ("run_pretrain.py", "--config=configs/pretrain.py:demo", *flags)
        environment = {"PYTHONHASHSEED": seed, "NYSTROMFORMER_JAX_CACHE": folder / "cache"}
        answer = finish(start(*command, f"--workdir={folder / 'run'}", **environment))
        assert answer.code == 0, answer.errors
        files = ("metrics.jsonl", "model/tokenizer.json", "model/model.safetensors")
        left.append([(folder / "run" / file).read_bytes() for file in files])
    assert left[0] == left[1]
