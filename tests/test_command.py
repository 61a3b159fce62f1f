import errno
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from cli.commands import add_switch, number, parser_of, run_to_end
from nystromformer_jax.training import CannotWrite
from tests.programs import finish, start

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
        (FileNotFoundError(2, "No such file", "here"), 2, "name: here: No such file"),
        (FileNotFoundError("missing"), 2, "name: missing"),
        (OSError(errno.ENOSPC, "No space left", "here"), 1, "name: here: No space left"),
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
    done = finish(start("-c", script))
    assert done.code == 128 + number
    assert "Traceback" not in done.errors


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


def test_output_that_cannot_be_written(tmp_path):
    """Its reader has exited, the disk is full, or it is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        ended = print_to(pipe, COMMAND)
    assert (ended.returncode, ended.stderr) == (1, "")
    if DEV_FULL.exists():
        with DEV_FULL.open("w") as full:
            ended = print_to(full, COMMAND)
        assert (ended.returncode, ended.stderr) == (1, "name: No space left on device\n")
    closed = f"import sys; sys.stdout = None; {COMMAND}"
    assert print_to(subprocess.DEVNULL, closed).returncode == 0


def test_other_ends_of_a_command(capsys):
    assert run_to_end("name", lambda: 3) == 3
    with pytest.raises(SystemExit) as ended:
        run_to_end("name", lambda: signal.raise_signal(signal.SIGTERM))
    assert ended.value.code == 128 + signal.SIGTERM
    assert run_to_end("name", raising(AssertionError("ours"))) == 1
    assert "Traceback" in capsys.readouterr().err


def parser():
    parser = parser_of("lra.report", "Reports.")
    parser.add_argument("--out")
    parser.add_argument("--count", type=number(int, 1, 9))
    add_switch(parser, "test", True, "Test.")
    return parser


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--outt=a", "more"], "--outt=a more"),
        (["--count=0"], "--count: .* 1 to 9, .*'0'"),
        (["--count=10"], "--count"),
        (["--test=maybe"], "--test: .*'maybe'"),
    ],
)
def test_invalid_flags_are_one_sentence(capsys, arguments, word):
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(arguments)
    assert stopped.value.code == 2
    assert re.fullmatch(f"lra.report: .*{word}.*\n", capsys.readouterr().err)


def test_a_switch_has_three_forms():
    forms = {"--test": True, "--notest": False, "--test=false": False, "--count=9": True}
    assert {argument: parser().parse_args([argument]).test for argument in forms} == forms
