"""Shared parts of all commands: parser, one-line errors, exit codes, SIGTERM."""

import argparse
import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the flags of `python -m MODULE`; its help keeps the lines of `description`."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_to_end(
    name: str, act: Callable[[], int | None], flags: Mapping[str, str] | None = None
) -> int:
    """Runs `act`, a command with parsed flags; returns its exit code, or that of its exception.

    Args:
      name: The command, for error messages.
      act: Returns the exit code; None for 0.
      flags: The command's flag for each config key, such as {"data.dir": "--dir"}, for error messages.
    """
    try:
        with ends_on_sigterm(), flushed_stdout():
            return act() or 0
    except BrokenPipeError:  # the reader, for example `head`, has exited
        return 1
    except (ValueError, OSError, ImportError) as error:
        message = " ".join(message_of(error).split())
        print(f"{name}: {rename_keys(message, flags or {})}", file=sys.stderr)
        if not isinstance(error, OSError):
            return 2
        from nystromformer_jax.training.errors import exit_code_of  # needs the extra `lra`

        return exit_code_of(error) or 2
    except KeyboardInterrupt:
        print(f"{name}: stopped by Ctrl-C", file=sys.stderr)
        return 130


def rename_keys(message: str, flags: Mapping[str, str]) -> str:
    """Replaces config keys in a message, with or without `--config.`, with their `flags`."""
    key = r"(?<![\w./-])(?:--config\.)?(\w+\.\w+)\b"  # not inside a path
    return re.sub(key, lambda match: flags.get(match[1], match[0]), message)


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


@contextlib.contextmanager
def ends_on_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM ends the program with exit code 143. The handler stays after the block.

    Python ignores exceptions in callbacks of weak references, such as those of imports. If SIGTERM or Ctrl-C
    arrives during one, it is raised again 0.1 s later.
    """
    previous = sys.unraisablehook

    def raise_again(ignored: Any) -> None:
        error = ignored.exc_value
        is_sigterm = isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM
        if is_sigterm or isinstance(error, KeyboardInterrupt):
            number = signal.SIGTERM if is_sigterm else signal.SIGINT
            signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        else:
            previous(ignored)

    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        sys.unraisablehook = previous


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
