"""run_pretrain.py and run_glue.py as processes: the way from text to predictions, and every wrong turn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.language import runs, texts
from tests.language.glue import fakes

ROOT = Path(__file__).parent.parent


def flags(sections):
    return [
        f"--config.{section}.{key}={value}"
        for section, values in sections.items()
        for key, value in values.items()
    ]


def call(program, *arguments, cache=None):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")
    }
    if cache is not None:
        environment["NYSTROMFORMER_JAX_CACHE"] = str(cache)
    done = subprocess.run(
        [sys.executable, program, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def pretrain(folder, *arguments, argument="demo", sections=runs.PRETRAIN):
    config = f"--config=configs/pretrain.py:{argument}"
    return call("run_pretrain.py", config, *flags(sections), *arguments, cache=folder / "cache")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """What one command leaves of a text."""
    folder = tmp_path_factory.mktemp("pretrained")
    text = texts.in_form("blank_line", texts.documents(80, most_lines=5), folder)
    code, output, errors = pretrain(
        folder, f"--config.data.dir={text}", f"--workdir={folder / 'run'}"
    )
    assert (code, "Traceback" in errors) == (0, False), errors
    return folder, output


def one_line(errors, program):
    """The last line, which is the only one that is no progress."""
    assert "Traceback" not in errors
    line = errors.rstrip().splitlines()[-1]
    assert line.startswith(f"{program}: ")
    return line


def test_one_command_pretrains_and_says_where(pretrained):
    folder, output = pretrained
    assert output.startswith("Guessed ")
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


def test_the_next_one_fine_tunes_and_a_third_exports(pretrained, tmp_path):
    folder, _ = pretrained
    arguments = [
        "--config=configs/glue.py:sst2,max_len=19",
        f"--config.data.dir={fakes.write_task(tmp_path, 'sst2')}",
        f"--config.init.checkpoint={folder / 'run/model'}",
        "--config.train.epochs=1",
        f"--workdir={tmp_path / 'run'}",
    ]
    code, output, errors = call("run_glue.py", *arguments, cache=tmp_path / "cache")
    assert (code, "Traceback" in errors) == (0, False), errors
    assert output.startswith("sst2: valid accuracy ")
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["task"], result["valid_examples"]) == ("sst2", 7)
    code, output, errors = call(
        "run_glue.py", *arguments, "--mode=export", cache=tmp_path / "cache"
    )
    assert (code, output) == (0, f"Wrote {tmp_path / 'run/model.jax_export'}.\n"), errors


@pytest.mark.slow(minutes=0.2)
def test_a_search_tries_all_says_which_broke_and_names_the_best(pretrained, tmp_path):
    folder, _ = pretrained
    code, output, errors = call(
        "run_glue.py",
        "--config=configs/glue.py:mrpc,max_len=19",
        f"--config.data.dir={fakes.write_task(tmp_path, 'mrpc')}",
        f"--config.init.checkpoint={folder / 'run/model'}",
        "--config.train.total_steps=3",
        "--search",
        "--batch_sizes=4",
        "--learning_rates=1e-5,1e38,2e-5",
        f"--workdir={tmp_path / 'run'}",
        cache=tmp_path / "cache",
    )
    assert (code, "Traceback" in errors) == (1, False), errors
    assert "batch4-rate1e38-seed0: " in errors
    assert "became NaN or infinite" in errors
    assert len(list((tmp_path / "run-search").glob("*/result.json"))) == 2
    assert "Best of 2 by validation f1: batch 4, rate " in output


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "no text"),
        ("One sentence alone stands here.", "sentence"),
    ],
)
def test_a_corpus_without_pairs_is_one_sentence(tmp_path, content, sentence):
    file = texts.write(tmp_path / "corpus.txt", content)
    workdir = f"--workdir={tmp_path / 'run'}"
    code, _, errors = pretrain(tmp_path, f"--config.data.dir={file}", workdir)
    assert code == 2
    assert sentence in one_line(errors, "run_pretrain.py")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_of_another_model_is_one_sentence(pretrained, tmp_path):
    folder, _ = pretrained
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *texts.WORDS, "."]
    vocabulary = "\n".join([*words, *(f"word{i}" for i in range(90))])
    tokens = texts.write(tmp_path / "vocab.txt", vocabulary)
    text = texts.in_form("blank_line", texts.documents(80, most_lines=5), tmp_path)
    code, _, errors = pretrain(
        tmp_path,
        f"--config.data.dir={text}",
        f"--config.data.tokenizer={tokens}",
        f"--config.init.checkpoint={folder / 'run/model'}",
        f"--workdir={tmp_path / 'run'}",
        argument="checkpoint",
        sections={"data": {"max_len": 29, "held_out": 0.2}, "train": {"batch_size": 8}},
    )
    assert code == 2
    line = one_line(errors, "run_pretrain.py")
    assert "The tokenizer has 109 tokens and the model 60: they do not belong together." in line


def test_a_broken_row_is_one_sentence(pretrained, tmp_path):
    folder, _ = pretrained
    task = fakes.write_task(tmp_path, "sst2")
    rows = (task / "train.tsv").read_text().splitlines(keepends=True)
    (task / "train.tsv").write_text("".join([*rows[:4], "a row without its label\n", *rows[4:]]))
    code, _, errors = call(
        "run_glue.py",
        "--config=configs/glue.py:sst2,max_len=19",
        f"--config.data.dir={task}",
        f"--config.init.checkpoint={folder / 'run/model'}",
        f"--workdir={tmp_path / 'run'}",
        cache=tmp_path / "cache",
    )
    assert code == 2
    assert "train.tsv, line 5" in one_line(errors, "run_glue.py")


def test_a_truncated_checkpoint_is_one_sentence(pretrained, tmp_path):
    folder, _ = pretrained
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        content = (folder / "run/model" / name).read_bytes()
        cut = len(content) // 2 if name.endswith("safetensors") else len(content)
        (tmp_path / name).write_bytes(content[:cut])
    code, _, errors = call(
        "run_glue.py",
        "--config=configs/glue.py:sst2,max_len=19",
        f"--config.data.dir={fakes.write_task(tmp_path / 'glue', 'sst2')}",
        f"--config.init.checkpoint={tmp_path}",
        f"--workdir={tmp_path / 'run'}",
        cache=tmp_path / "cache",
    )
    assert code == 2
    assert "model.safetensors" in one_line(errors, "run_glue.py")


@pytest.mark.parametrize(
    ("program", "arguments", "sentence"),
    [
        ("run_pretrain.py", [], "pass --config=configs/pretrain.py"),
        ("run_pretrain.py", ["--config=configs/pretrain.py:smal"], "did you mean small?"),
        (
            "run_pretrain.py",
            ["--config=configs/pretrain.py:demo,attention=nystrm"],
            "did you mean nystrom?",
        ),
        (
            "run_pretrain.py",
            ["--config=configs/pretrain.py", "--config.train.step=3"],
            "there is no --config.train.step; did you mean train.",
        ),
        ("run_pretrain.py", ["--config=configs/pretrain.py:checkpoint"], "init.checkpoint"),
        ("run_glue.py", ["--config=configs/glue.py:sst3"], "did you mean sst2?"),
        ("run_glue.py", ["--config=configs/glue.py:sst2"], "init.checkpoint: needs the folder"),
        (
            "run_glue.py",
            ["--config=configs/glue.py:mrpc", "--search", "--learning_rates=fast"],
            "--learning_rates needs numbers with commas between them, got 'fast'",
        ),
    ],
)
def test_wrong_flags_are_one_sentence(tmp_path, program, arguments, sentence):
    code, _, errors = call(program, *arguments, cache=tmp_path)
    assert code == 2
    assert sentence in one_line(errors, program)
