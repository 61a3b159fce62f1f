import errno
import signal

import pytest

from command import run_to_end


def raising(error):
    def act():
        raise error

    return act


@pytest.fixture(autouse=True)
def _restored_handlers():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("two\n  lines"), 2, "name: two lines"),
        (FileNotFoundError(2, "No such file", "here"), 2, "name: here: No such file"),
        (OSError(errno.ENOSPC, "No space left", "here"), 1, "name: here: No space left"),
        (KeyboardInterrupt(), 130, "name: stopped by Ctrl-C; the same command starts again"),
    ],
)
def test_exceptions_become_one_sentence_and_an_exit_code(capsys, error, code, sentence):
    assert run_to_end("name", raising(error)) == code
    assert capsys.readouterr().err == sentence + "\n"


def test_a_successful_command_returns_0(capsys):
    assert run_to_end("name", lambda: print("done")) == 0
    assert capsys.readouterr() == ("done\n", "")


def test_config_keys_in_errors_are_renamed_to_flags(capsys):
    rename = lambda sentence: sentence.replace("--config.data.dir", "--dir")
    assert run_to_end("name", raising(ValueError("pass --config.data.dir")), rename) == 2
    assert capsys.readouterr().err == "name: pass --dir\n"


def test_sigterm_returns_143():
    with pytest.raises(SystemExit) as ended:
        run_to_end("name", lambda: signal.raise_signal(signal.SIGTERM))
    assert ended.value.code == 128 + signal.SIGTERM


def test_internal_errors_are_raised():
    with pytest.raises(AssertionError):
        run_to_end("name", raising(AssertionError()))
