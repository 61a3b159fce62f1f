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
from typing import Any, NoReturn

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from harness import huge_pages
from harness.spelling import nearest

CONFIGS = Path(__file__).parents[1] / "configs"
# What --mode=check says of a config that a run would take.
CHECKED = "Every value is good. No data were looked for, and nothing was trained."

_is_ours: Callable[[str], bool] = bool  # of the name of a config file
# Ends with an exit code where Python's own end would not do.
_leave: Callable[[int], object] | None = None


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


def leave_by(leave: Callable[[int], object]) -> None:
    """From here on a process that fails ends by `leave`, which takes its exit code."""
    global _leave
    _leave = leave


def end_now(message: str) -> NoReturn:
    """Prints one line and ends with exit code 1, without waiting for other processes of the run."""
    refuse(message)
    sys.stdout.flush()
    os._exit(1)


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
    # Orbax logs by absl, with tracebacks, the errors that it raises as well.
    logging.getLogger("absl").setLevel(logging.CRITICAL)


def with_seed(config: ConfigDict, seed: int) -> dict[str, Any]:
    """The config as plain sections, with another `train.seed`."""
    plain: dict[str, Any] = config.to_dict()
    return {**plain, "train": {**plain["train"], "seed": seed}}


def default_folder() -> str:
    """`runs/<config file>-<its argument, slugged>`."""
    path, _, argument = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    slug = re.sub(r"[^A-Za-z0-9]+", "-", argument).strip("-")
    return f"runs/{Path(path).stem}{'-' + slug if slug else ''}"


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


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _run(main: Callable[[list[str]], int], argv: list[str]) -> None:
    # The loop has handlers of its own, which save; these serve before and after it.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = main(argv)
    except KeyboardInterrupt:
        code = refuse("stopped by Ctrl-C; the same command starts again", exit_code=130)
    except Exception:
        if _leave is None:
            raise
        traceback.print_exc()
        code = 1
    if _leave is not None and 0 < code < 128:  # those that a signal stops end together
        _leave(code)
    sys.exit(code)
