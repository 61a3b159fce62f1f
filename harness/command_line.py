"""What every `run_*.py` shares: flags from a config file, errors in one line, signals, folders.

A runner defines its flags by `define_config` and its own, and ends in `run(main)`. A wrong flag is
answered before `main`, so without loading jax if `main` imports it.
"""

import logging
import os
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from harness import huge_pages
from harness.spelling import nearest

CONFIGS = Path(__file__).parents[1] / "configs"
# What --mode=check says of a config that a run would take.
CHECKED = "Every value is good. No data were looked for, and nothing was trained."

_is_ours: Callable[[str], bool] = bool  # of the name of a config file
# What `leave_by` was told.
_leave: Callable[[int], object] | None = None
_exit_code_of: Callable[[Exception], int | None]
_at_once: type[Exception]


def define_config(form: str, is_ours: Callable[[str], bool]) -> Any:
    """Defines `--config`.

    Args:
      form: What may stand there, for `--help`.
      is_ours: Whether the runner reads the config file of a name; only such ones are proposed.
    """
    global _is_ours
    _is_ours = is_ours
    return config_flags.DEFINE_config_file("config", help_string=form)


def define_hosts() -> Callable[[], dict[str, Any]]:
    """Defines the flags of a run of several processes; gives a function for their values."""
    known = [
        flags.DEFINE_boolean(
            "distributed", False, "Join the processes that a TPU pod, SLURM or Open MPI started."
        ),
        flags.DEFINE_string("coordinator", "", "HOST:PORT of the first of several processes."),
        flags.DEFINE_integer("num_processes", None, "How many there are, with --coordinator.", 1),
        flags.DEFINE_integer("process_id", None, "Which this is, from 0, with --coordinator.", 0),
    ]
    return lambda: {flag.name: flag.value for flag in known}


def run(main: Callable[[list[str]], int]) -> None:
    """Parses the flags, calls `main` with what is left, and exits with the code it returns."""
    huge_pages.restart()
    app.run(lambda argv: _run(main, argv), flags_parser=_parse)


def refuse(message: str, exit_code: int = 2) -> int:
    """Prints one line, whatever the message holds; returns the exit code."""
    print(f"{_program()}: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def leave_by(
    leave: Callable[[int], object],
    exit_code_of: Callable[[Exception], int | None],
    *,
    at_once: type[Exception],
) -> None:
    """From here on an exception of `main` is a sentence and an exit code.

    Args:
      leave: ends a process that failed, where Python's own end would not do; takes the exit code.
      exit_code_of: what exit code an exception stands for; None for a fault of ours, with its traceback.
      at_once: after this exception nothing is waited for.
    """
    global _leave, _exit_code_of, _at_once
    _leave, _exit_code_of, _at_once = leave, exit_code_of, at_once


def check_arguments(argv: list[str], config: Any, example: str) -> str | None:
    """A sentence about an argument that is no flag or a missing `--config`, or None."""
    if len(argv) > 1:
        return f"unexpected argument {argv[1]!r}; flags look like --config.train.seed=1"
    if config.value is None:
        return f"pass --config={example}, or another file under configs/"
    return None


def start_logging(*, quiet: bool = False) -> None:
    """Our own messages as plain lines, of others' (and if `quiet` of our own) only warnings."""
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(message)s", force=True)
    for chatty in ("jax", "orbax", "grain"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # Errors that Orbax raises as well, with tracebacks: by absl, and by asyncio those of its other writes.
    for logger in ("absl", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)


def with_seed(config: ConfigDict, seed: int) -> dict[str, Any]:
    """The config as plain sections, with another `train.seed`."""
    plain: dict[str, Any] = config.to_dict()
    return {**plain, "train": {**plain["train"], "seed": seed}}


def default_folder() -> str:
    """`runs/<config file>-<its argument, slugged>`."""
    path, _, argument = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    slug = re.sub(r"[^A-Za-z0-9]+", "-", argument).strip("-")
    return f"runs/{Path(path).stem}{'-' + slug if slug else ''}"


def run_folder(flag: str | None, seed: int, *, alone: bool) -> Path:
    """A run's folder: what `--workdir` says, with `-seed<k>` behind it where runs of other seeds share it.

    Args:
      flag: `--workdir`; without it the default, which always has the seed.
      seed: k.
      alone: whether there is one run.

    Raises:
      ValueError: As `folder_behind`.
    """
    from harness.cache import user_path  # here: numpy is not needed for a wrong flag

    return user_path(flag) if flag and alone else folder_behind(flag, f"-seed{seed}")


def folder_behind(flag: str | None, ending: str) -> Path:
    """`--workdir` or the default, its name with an ending.

    Raises:
      ValueError: A home that nobody has, or a folder without a name.
    """
    from harness.cache import user_path

    folder = user_path(flag or default_folder())
    if folder.name in ("", ".."):
        raise ValueError(
            f"--workdir={flag} has no name to put {ending} behind: pass one, such as {folder / 'run'}."
        )
    return folder.with_name(f"{folder.name}{ending}")


def _program() -> str:
    return Path(sys.argv[0]).name


def _parse(argv: list[str]) -> list[str]:
    """Reads the flags; a wrong one is one line, not a traceback."""
    try:
        if unknown := _unknown_key(argv):
            sys.exit(refuse(unknown))
        return flags.FLAGS(argv)
    except Exception as error:  # whatever ml-collections and a config file raise
        text = str(error)
        if "Error whilst parsing config file" in text:  # a whole traceback, as text
            text = text.rstrip().rpartition("\n")[2].partition(": ")[2]
        sys.exit(refuse(text))


def _unknown_key(argv: list[str]) -> str | None:
    """A sentence about a config file or key that is not there; ml-collections' own is a KeyError."""
    place = next((i for i, item in enumerate(argv) if re.match(r"--?config(=|$)", item)), None)
    if place is None:
        return None
    _, equals, value = argv[place].partition("=")
    if not equals:
        value = " ".join(argv[place + 1 : place + 2])
    path, colon, argument = value.partition(":")
    if not Path(path).is_file():
        known = [
            f"configs/{file.name}"
            for file in CONFIGS.glob("[!_]*.py")
            if _is_ours(file.stem) and "\ndef get_config(" in file.read_text(encoding="utf-8")
        ]
        return f"there is no config file {path!r} in {Path.cwd()}{nearest(path, known)}"
    try:
        get_config = runpy.run_path(path)["get_config"]
        config = get_config(*([argument] if colon else []))
    except KeyError:
        return f"{path} has no function get_config, which a config file needs."
    except Exception:  # the file's own error is the better sentence
        return None
    if not isinstance(config, ConfigDict):
        return f"get_config in {path} must return a ConfigDict, not a {type(config).__name__}."
    keys = _keys(config.to_dict())
    for item in argv:
        key = re.match(r"--?(?:no)?config\.([^=]*)", item)
        if key and key[1] not in keys:
            return f"there is no --config.{key[1]}{nearest(key[1], keys)}"
    return None


def _keys(config: dict[str, object], prefix: str = "") -> list[str]:
    """All dotted keys, those of sections included."""
    keys = []
    for name, value in config.items():
        keys.append(prefix + name)
        if isinstance(value, dict):
            keys += _keys(value, f"{prefix}{name}.")
    return keys


def _answer(error: Exception) -> int:
    """Says why `main` ended; returns its exit code."""
    code = _exit_code_of(error)
    if code is None:
        traceback.print_exception(error)
        return 1
    if code >= 128:  # a signal is no fault
        print(error, file=sys.stderr)
        return code
    refuse(_sentence(error))
    if isinstance(error, _at_once):
        sys.stdout.flush()
        os._exit(code)
    return code


def _sentence(error: Exception) -> str:
    """What an error says, without the system's number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _mention(unraisable: Any) -> None:
    """Passes over what callbacks raise of a save that has failed by then.

    A full disk makes a page of such tracebacks around the one sentence that says it all.
    """
    if not isinstance(unraisable.exc_value, OSError | ValueError | RuntimeError):  # a fault of ours
        sys.__unraisablehook__(unraisable)
        return
    logging.getLogger(__name__).debug("%s", unraisable.err_msg, exc_info=unraisable.exc_value)


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _run(main: Callable[[list[str]], int], argv: list[str]) -> None:
    # The loop has handlers of its own, which save; these serve before and after it.
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _mention
    try:
        code = main(argv)
    except KeyboardInterrupt:
        code = refuse("stopped by Ctrl-C; the same command starts again", exit_code=130)
    except Exception as error:
        if _leave is None:
            raise
        code = _answer(error)
    if _leave is not None and 0 < code < 128:  # those that a signal stops end together
        _leave(code)
    sys.exit(code)
