"""run_pretrain.py and run_finetune.py as processes: from text to predictions, and their errors."""

import json

import pytest

from language import pretrain
from tests import programs
from tests.language import runs, texts
from tests.language.finetune import fakes as files
from tests.language.finetune import glue_fakes as fakes


def flags(sections):
    return [
        f"--config.{section}.{key}={value}"
        for section, values in sections.items()
        for key, value in values.items()
    ]


def call(program, *arguments, cache):
    return programs.finish(programs.start(program, *arguments, NYSTROMFORMER_JAX_CACHE=cache))


def pretraining(*arguments, argument="demo", sections=runs.PRETRAIN):
    return [f"--config=configs/pretrain.py:{argument}", *flags(sections), *arguments]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The outcome of one command on a text."""
    folder = tmp_path_factory.mktemp("pretrained")
    text = texts.in_form("blank_line", texts.documents(80, most_lines=5), folder)
    arguments = pretraining(f"--config.data.dir={text}", f"--workdir={folder / 'run'}")
    code, output, errors = call("run_pretrain.py", *arguments, cache=folder / "cache")
    assert (code, "Traceback" in errors) == (0, False), errors
    return folder, output


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The folder of a tiny model with a vocabulary, written without training."""
    return files.checkpoint(tmp_path_factory.mktemp("model"))


def refusal(program, *arguments):
    """The last line of a call in this process, the only one that does not report progress."""
    answer = programs.call(program, *arguments)
    assert (answer.code, "Traceback" in answer.errors) == (2, False), answer
    line = answer.errors.rstrip().splitlines()[-1]
    assert line.startswith(f"{program}.py: ")
    return line


def test_pretraining_gets_the_config_and_the_corpus(in_repository, monkeypatch, tmp_path):
    text = texts.in_form("blank_line", texts.documents(80, most_lines=5), tmp_path)
    valid = {"mlm_accuracy": 0.25, "mlm_loss": 2.5, "perplexity": 12.2, "order_accuracy": 0.5}

    def train(run, data, workdir):
        assert run.fit.train.total_steps == runs.PRETRAIN["train"]["total_steps"]
        assert len(data.splits["train"]) > len(data.splits["valid"]) > 0
        return {"valid": valid, "valid_examples": 20, "best_step": 3, "baselines": valid}

    monkeypatch.setattr(pretrain, "train", train)
    arguments = pretraining(f"--config.data.dir={text}", f"--workdir={tmp_path / 'run'}")
    answer = programs.call("run_pretrain", *arguments)
    assert answer.code == 0, answer
    assert answer.output.startswith("Predicted 25")
    assert f"the model in {tmp_path / 'run/model'}" in answer.output


@pytest.mark.slow(minutes=0.2)
def test_one_command_pretrains_and_prints_the_folder(pretrained):
    folder, output = pretrained
    assert output.startswith("Predicted ")
    assert f"the model in {folder / 'run/model'}" in output
    assert {file.name for file in (folder / "run/model").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    config = json.loads((folder / "run/model/config.json").read_text())
    assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (0, 2, 3)
    tokens = json.loads((folder / "run/model/tokenizer_config.json").read_text())
    assert tokens["model_max_length"] == 29
    assert "token_type_ids" in tokens["model_input_names"]


@pytest.mark.slow(minutes=0.4)
def test_fine_tunes_and_exports_the_pretrained_model(pretrained, tmp_path):
    folder, _ = pretrained
    arguments = [
        "--config=configs/glue.py:sst2,max_len=19",
        f"--config.data.dir={fakes.write_task(tmp_path, 'sst2')}",
        f"--config.init.checkpoint={folder / 'run/model'}",
        "--config.train.epochs=1",
        f"--workdir={tmp_path / 'run'}",
    ]
    code, output, errors = call("run_finetune.py", *arguments, cache=tmp_path / "cache")
    assert (code, "Traceback" in errors) == (0, False), errors
    assert output.startswith("sst2: valid accuracy ")
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["task"], result["valid_examples"]) == ("sst2", 7)
    code, output, errors = call(
        "run_finetune.py", *arguments, "--mode=export", cache=tmp_path / "cache"
    )
    assert (code, output) == (0, f"Wrote {tmp_path / 'run/model.jax_export'}.\n"), errors


@pytest.mark.slow(minutes=0.2)
def test_a_sweep_reports_failed_runs_and_the_best(pretrained, tmp_path):
    folder, _ = pretrained
    code, output, errors = call(
        "run_sweep.py",
        "--configs=configs/glue.py:mrpc,max_len=19",
        f"--set=data.dir={fakes.write_task(tmp_path, 'mrpc')}",
        f"--set=init.checkpoint={folder / 'run/model'}",
        "--set=train.total_steps=3",
        "--set=train.batch_size=4",
        "--set=optimizer.learning_rate=1e-5,1e38,2e-5",
        f"--workdir={tmp_path / 'run'}",
        cache=tmp_path / "cache",
    )
    assert (code, "Traceback" in errors) == (0, False), (output, errors)
    assert "learning_rate=1e38-seed0: diverged at step" in output
    assert "became NaN or infinite" in output
    results = [json.loads(path.read_text()) for path in (tmp_path / "run").glob("*/result.json")]
    assert [result.get("state") for result in results].count("diverged") == 1
    assert len(results) == 3
    assert "done      validation f1 " in output
    assert "best by validation: glue-mrpc-max_len=19-learning_rate=" in output


CHECKPOINT = "--config.init.checkpoint="
SST2 = f"--config=configs/glue.py:sst2,max_len=19 {CHECKPOINT}"
PRETRAIN, DIR = "--config=configs/pretrain.py", "--config.data.dir="


@pytest.fixture
def invalid(tmp_path, checkpoint):
    """A folder with an empty text, a task with a row without its label, and incomplete checkpoints."""
    texts.write(tmp_path / "empty.txt", "")
    fakes.write_task(tmp_path / "good", "sst2")
    task = fakes.write_task(tmp_path, "sst2")
    rows = (task / "train.tsv").read_text().splitlines(keepends=True)
    (task / "train.tsv").write_text("".join([*rows[:4], "a row without its label\n", *rows[4:]]))
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        content = (checkpoint / name).read_bytes()
        for folder in ("vocabless", "truncated"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_bytes(content)
    (tmp_path / "vocabless" / "vocab.txt").unlink()
    (tmp_path / "truncated" / name).write_bytes(content[: len(content) // 2])
    return tmp_path


@pytest.mark.parametrize(
    ("program", "flags", "words"),
    [
        ("pretrain", f"{PRETRAIN}:demo {DIR}A/empty.txt --workdir=A/run", "no text"),
        ("finetune", f"{SST2}A/vocabless --mode=check", "A/vocabless contains no tokenizer"),
        ("finetune", f"{SST2}MODEL {DIR}A/SST-2 --workdir=A/run", "train.tsv, line 5"),
        ("finetune", f"{SST2}A/truncated {DIR}A/good/SST-2 --workdir=A/run", "model.safetensors"),
        ("pretrain", f"{PRETRAIN}:checkpoint", "init.checkpoint"),
        ("pretrain", f"{PRETRAIN}:demo --config.attention.name=softmax", "attention=softmax"),
    ],
)
def test_an_invalid_call_ends_with_one_line(
    in_repository, invalid, checkpoint, program, flags, words
):
    place = lambda text: text.replace("A/", f"{invalid}/").replace("MODEL", str(checkpoint))
    assert place(words) in refusal(f"run_{program}", *place(flags).split())
    assert not (invalid / "run").exists()
