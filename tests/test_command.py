import errno
import io
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from cli.commands import add_switch, flushed_stdout, number, parser_of, run_to_end
from nystromformer_jax.training import CannotWrite, CheckpointDamaged, WorkdirBusy

DEV_FULL = pathlib.Path("/dev/full")
COMMAND = "import sys; from cli import commands; sys.exit(commands.run_to_end('name', lambda: print('text')))"


def raising(error):
    def act():
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("two\n  lines"), 2, "name: two lines"),
        (ImportError("no numba"), 2, "name: no numba"),
        (FileNotFoundError(2, "No such file", "here"), 2, "name: here: No such file"),
        (FileNotFoundError("missing"), 2, "name: missing"),
        (WorkdirBusy("taken"), 2, "name: taken"),
        (OSError(errno.ENOSPC, "No space left", "here"), 1, "name: here: No space left"),
        (OSError(errno.EIO, "Input/output error", "here"), 1, "name: here: Input/output error"),
        (CheckpointDamaged("step 30"), 1, "name: step 30"),
        (CannotWrite("a full disk"), 1, "name: a full disk"),
        (KeyboardInterrupt(), 130, "name: stopped by Ctrl-C"),
    ],
)
def test_exceptions_become_one_sentence_and_an_exit_code(capsys, error, code, sentence):
    assert run_to_end("name", raising(error)) == code
    assert capsys.readouterr().err == sentence + "\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_within_a_callback_ends_the_program(number):
    """Python ignores exceptions in such callbacks, also the one that would end the program."""
    script = f"""
import os, sys, time, weakref
from cli.commands import run_to_end

class Module: pass

def callback(_):
    os.kill(os.getpid(), {number:d})
    time.sleep(0.01)

def act():
    module = Module()
    reference = weakref.ref(module, callback)
    del module
    time.sleep(20)

sys.exit(run_to_end("name", act))
"""
    done = print_to(subprocess.PIPE, script)
    assert done.returncode == 128 + number
    assert "Traceback" not in done.stderr


def print_to(stdout, script):
    """Runs a program that prints a line, which Python writes when the program ends."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=pathlib.Path(__file__).parents[1],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_reader_that_has_exited_ends_the_program_without_a_message():
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        ended = print_to(pipe, COMMAND)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.skipif(not DEV_FULL.exists(), reason="the system has no /dev/full")
def test_a_full_disk_under_the_output_is_one_sentence():
    with DEV_FULL.open("w") as full:
        ended = print_to(full, COMMAND)
    assert (ended.returncode, ended.stderr) == (1, "name: No space left on device\n")


def test_a_closed_stdout_is_no_error():
    closed = f"import sys; sys.stdout = None; {COMMAND}"
    assert print_to(subprocess.DEVNULL, closed).returncode == 0


def test_config_keys_in_errors_are_renamed_to_flags(capsys):
    message = "data.seed is 1: pass --config.data.dir, not data.other or a/data.seed/b"
    flags = {"data.dir": "--dir", "data.seed": "--seed"}
    assert run_to_end("name", raising(ValueError(message)), flags) == 2
    assert capsys.readouterr().err == (
        "name: --seed is 1: pass --dir, not data.other or a/data.seed/b\n"
    )


def test_returns_the_exit_code_of_the_command():
    assert run_to_end("name", lambda: 3) == 3


def test_sigterm_returns_143():
    with pytest.raises(SystemExit) as ended:
        run_to_end("name", lambda: signal.raise_signal(signal.SIGTERM))
    assert ended.value.code == 128 + signal.SIGTERM


def test_internal_errors_keep_their_traceback(capsys):
    assert run_to_end("name", raising(AssertionError("ours"))) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--outt=a", "more"], "unrecognized arguments: --outt=a more"),
        (["--count=0"], "--count: needs a whole number from 1 to 9, got '0'"),
        (["--test=maybe"], "--test: needs true or false, got 'maybe'"),
    ],
)
def test_invalid_flags_are_one_sentence(capsys, arguments, sentence):
    parser = parser_of("lra.report", "Reports.")
    parser.add_argument("--out")
    parser.add_argument("--count", type=number(int, 1, 9))
    add_switch(parser, "test", True, "Test.")
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"lra.report: {sentence}\n"


def test_a_switch_has_three_forms():
    parser = parser_of("lra.report", "Reports.")
    add_switch(parser, "test", True, "Test.")
    for argument, value in (("--test", True), ("--notest", False), ("--test=false", False)):
        assert parser.parse_args([argument]).test == value
    assert parser.parse_args([]).test


def test_a_character_that_stdout_lacks_is_a_question_mark(monkeypatch):
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding="ascii"))
    with flushed_stdout():
        print("36.2 ± 0.4 %")
    assert output.getvalue() == b"36.2 ? 0.4 %\n"
