"""The command prints a task's statistics and examples, or a one-line error."""

import pytest

from language.glue import main
from tests.language.finetune.glue_fakes import write_task
from tests.language.texts import write_vocabulary


@pytest.mark.parametrize("name", ["sst2", "mnli"])
def test_without_a_tokenizer_words_are_counted(name, tmp_path, capsys):
    write_task(tmp_path, name)
    assert main([name, f"--dir={tmp_path}"]) == 0
    page = capsys.readouterr().out
    assert "| words: 5 %, 50 %, 95 %, longest |" in page
    assert "| train | 31 | 31 |" in page
    assert page.count("Training example") == 2
    assert '"train 0 a' in page


def test_with_a_tokenizer_the_data_are_prepared(tmp_path, capsys):
    write_task(tmp_path, "rte")
    vocabulary = write_vocabulary(tmp_path, "train", "film", '"', "a", "b")
    flags = [f"--dir={tmp_path}", f"--tokenizer={vocabulary}", "--max_len=16"]
    assert main(["rte", *flags, "--show=0"]) == 0
    page = capsys.readouterr().out
    assert "all hashes match" in page
    assert "truncated at 16 |" in page
    assert "distinct examples that two splits share, ignoring labels: train/valid 0, " in page
    assert "Training example" not in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sst-2"], "The task 'sst-2' is unknown; did you mean sst2"),
        (["rte"], "train.tsv is missing in"),
        (["rte"], "set --dir to its folder"),
        (["imdb"], "neither aclImdb nor"),
        (["wnli", "--tokenizer=none.json"], "none.json does not exist"),
    ],
)
def test_errors_are_one_line(arguments, words, tmp_path, capsys):
    write_task(tmp_path, "wnli")
    assert main([*arguments, f"--dir={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("language.glue: ")
    assert words in error
    assert error.count("\n") == 1
