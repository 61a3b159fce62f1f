"""Shared parts of all commands: parser, one-line errors, exit codes, SIGTERM."""

import argparse
import contextlib
import io
import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        message = " ".join(message.removeprefix("argument ").split())
        self.exit(2, f"{self.prog.removeprefix('python -m ')}: {message}\n")


def parser_of(module: str, description: str | None) -> Parser:
    """Returns a parser of the flags of `python -m MODULE`; its help keeps the lines of `description`.

    `module` may also be the file of a program.
    """
    return Parser(
        prog=module if module.endswith(".py") else f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_switch(parser: argparse.ArgumentParser, name: str, default: bool, text: str) -> None:
    """Adds `--NAME`, `--NAME=false` and `--noNAME`."""

    def convert(value: str) -> bool:
        if value.lower() not in BOOLS:
            raise argparse.ArgumentTypeError(f"needs true or false, got {value!r}")
        return BOOLS[value.lower()]

    parser.add_argument(
        f"--{name}", type=convert, nargs="?", const=True, default=default, help=text
    )
    parser.add_argument(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def number(kind: type, least: float, most: float = math.inf) -> Callable[[str], Any]:
    """Returns a converter of flags to numbers of the type `kind` from `least` to `most`."""

    def convert(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        limit = f"from {least}" if most == math.inf else f"from {least} to {most}"
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"needs {what} {limit}, got {text!r}")

    return convert


def run_to_end(name: str, act: Callable[[], int | None]) -> int:
    """Runs `act`, a command with parsed flags; returns its exit code, or that of its exception.

    Args:
      name: The command, for error messages.
      act: Returns the exit code; None for 0.
    """
    is_interrupted = False
    # The training loop installs handlers that save. Before and after it, SIGTERM ends the program.
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _handle_unraisable
    try:
        with flushed_stdout():
            code = act() or 0
    except BrokenPipeError:  # the reader, for example `head`, has exited
        code = 1
    except KeyboardInterrupt:
        print(f"{name}: stopped by Ctrl-C", file=sys.stderr)
        code, is_interrupted = 130, True
    except Exception as error:
        code = _report(name, error)
    hosts = sys.modules.get("nystromformer_jax.training.hosts")
    if hosts and (is_interrupted or 0 < code < 128):  # after a signal, all processes end together
        # The other processes may run on, and a normal exit would wait for them.
        hosts.shutdown(code)
    return code


def _report(name: str, error: Exception) -> int:
    """Prints the message of an exception, or the traceback of a bug; returns the exit code."""
    code = _exit_code(error)
    if code is None:
        traceback.print_exception(error)
        return 1
    if code >= 128:  # stopped by a signal
        print(error, file=sys.stderr)
        return code
    print(f"{name}: {' '.join(message_of(error).split())}", file=sys.stderr)
    if type(error).__name__ == "ProcessLost":  # waiting for the other processes would hang
        sys.stdout.flush()
        os._exit(code)
    return code


def _exit_code(error: Exception) -> int | None:
    """Returns `exit_code_of(error)`, without importing it for errors of which it is known."""
    if "nystromformer_jax.training.errors" not in sys.modules:
        if isinstance(error, ValueError | ImportError):
            return 2
        if not isinstance(error, OSError):
            return None
    from nystromformer_jax.training.errors import exit_code_of  # needs the extra `lra`

    return exit_code_of(error)


@contextlib.contextmanager
def flushed_stdout() -> Iterator[None]:
    """Flushes stdout after the block; if that fails, the output is discarded, and exit does not retry it.

    A character that the encoding of stdout lacks, such as ± in ASCII, is printed as a question mark.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:  # None if stdout was closed before the start
                sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise


def message_of(error: Exception) -> str:
    """Returns the message of an error, without the error number of the operating system."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _handle_unraisable(ignored: Any) -> None:
    """Handles exceptions that Python ignores: those in callbacks of weak references, and in finalizers.

    SIGTERM or Ctrl-C during a callback, for example of an import, is raised again 0.1 s later. Errors of
    files are logged at debug level: each failed save on a full disk would otherwise print a traceback besides
    the message of the save, until Python exits.
    """
    error = ignored.exc_value
    is_sigterm = isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM
    if is_sigterm or isinstance(error, KeyboardInterrupt):
        number = signal.SIGTERM if is_sigterm else signal.SIGINT
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    elif isinstance(error, OSError | ValueError | RuntimeError):
        logging.getLogger(__name__).debug("%s", ignored.err_msg, exc_info=error)
    else:  # a bug
        sys.__unraisablehook__(ignored)
