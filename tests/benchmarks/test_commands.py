"""Invalid arguments of a benchmark end it with exit code 2 and write nothing."""

import importlib.util

import pytest

from tests.programs import call

INVALID = [
    ("__main__", "--config=glue", "--config"),
    ("__main__", "--rounds=0", "--rounds"),
    ("__main__", "--lengths=0", "--lengths"),
    ("__main__", "--lengths=1000", "--lengths"),
    ("efficiency", "--attentions=softmx", "softmax"),
    ("efficiency", "--lengths=0", "--lengths"),
    ("efficiency", "--memory_limit=-1", "--memory_limit"),
    ("finetune", "--config=configs/text.py", "run_lra.py"),
    ("finetune", "--config=configs/glue.py:mrpc", "init.checkpoint"),
    ("plans", "", "pip install"),
    ("plans", "--topologies=v5e", "such as v5e:1x1"),
]


@pytest.mark.parametrize(("program", "argument", "word"), INVALID)
@pytest.mark.usefixtures("in_repository")
def test_invalid_arguments_are_an_error(tmp_path, monkeypatch, program, argument, word):
    if program == "plans":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # nor a TPU's compiler
    answer = call(f"benchmarks.{program}", *argument.split(), f"--out={tmp_path}/out/x")
    assert answer.code == 2, answer
    assert word in answer.errors
    assert list(tmp_path.iterdir()) == []
