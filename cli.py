"""Shared parts of the `run_*.py` programs: config flags, one-line errors, signals, run folders, training.

A program calls `define_config`, defines further flags, and calls `run(main)`. Flags are validated before
`main`. If only `main` imports jax, an invalid flag is reported without loading jax.
"""

import contextlib
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

try:
    from absl import app, flags
    from ml_collections import ConfigDict, config_flags
except ModuleNotFoundError as error:
    print(
        f"{Path(sys.argv[0]).name} needs {error.name}, not installed here. Install the extra:"
        " pip install -e '.[lra]', or '.[language]' for language models.",
        file=sys.stderr,
    )
    sys.exit(2)

from command import ends_on_sigterm, flushed_stdout, message_of
from launch import huge_pages
from nystromformer_jax.support.durable import read_config as read_config_of
from nystromformer_jax.support.spelling import nearest, split_commas

CONFIGS = Path(__file__).parent / "configs"
# Programs by the names of their config files; all other configs are of the benchmark.
LANGUAGE_CONFIGS = {name: f"run_{name}.py" for name in ("finetune", "glue", "pretrain")}
# The output of --mode=check for a valid config.
CHECKED = "Config is valid; no data loaded, nothing trained."

HELP = frozenset(("--help", "-help", "-h", "-?", "--helpshort", "--helpfull"))

# True for names of config files that the program supports.
_is_supported: Callable[[str], bool] = bool  # any name, until `define_config` sets it
_initialized = False  # True after `initialize`, which loads jax and the library


def define_config(help_text: str, is_supported: Callable[[str], bool]) -> Any:
    """Defines `--config` with `help_text`; errors suggest only config files with `is_supported(name)`."""
    global _is_supported
    _is_supported = is_supported
    return config_flags.DEFINE_config_file("config", help_string=help_text)


def define_hosts() -> Callable[[], dict[str, Any]]:
    """Defines the flags of multi-process runs; returns a function that reads their values."""
    known = [
        flags.DEFINE_boolean(
            "distributed",
            False,
            "Connect to the processes that a TPU pod, SLURM or Open MPI started.",
        ),
        flags.DEFINE_string("coordinator", "", "HOST:PORT of the first process of the run."),
        flags.DEFINE_integer("num_processes", None, "Number of processes; needs --coordinator.", 1),
        flags.DEFINE_integer(
            "process_id", None, "Index of this process, from 0; needs --coordinator.", 0
        ),
    ]
    return lambda: {flag.name: flag.value for flag in known}


def initialize(hosts: Mapping[str, Any]) -> None:
    """Connects to the other processes of the run; `hosts` are the values of the flags of `define_hosts`.

    Afterwards, an exception in `main` is reported as a one-line message and an exit code.
    """
    global _initialized
    start_logging()
    from nystromformer_jax import training

    _initialized = True
    training.initialize(training.HostsConfig(**hosts))
    start_logging(quiet=not training.is_primary())


def run_one(
    folder: Path,
    run: Any,
    act: Callable[[Any], dict[str, Any]],
    describe_result: Callable[[Mapping[str, Any]], str],
    *,
    paths: Iterable[str],
    evaluates: bool,
    where: str | None = None,
) -> int:
    """Trains, evaluates or exports a run and prints a sentence about it; returns the exit code.

    `act` handles the run in its `Workdir` and returns a result; `describe_result` describes it, and `where`
    the folder. `paths` are dotted keys of locations, which may change when a run is resumed. If `evaluates`
    is True, the run must be finished, and its folder is only read.
    """
    from nystromformer_jax import training

    with (
        training.detect_lost_process(),
        training.Workdir(folder, run.config, paths=paths, read_only=evaluates) as workdir,
        memory_advice(evaluates=evaluates),
    ):
        had_finished = workdir.result is not None and not evaluates
        result = act(workdir)
    end = f"Everything is in {folder}." if where is None else where
    if had_finished:
        end = f"It had finished before; nothing was trained. See {folder}."
    if training.is_primary():
        print(f"{describe_result(result)} {end}".rstrip(), flush=True)
    return 0


def run_jobs(
    settings: Mapping[Path, Mapping[str, Any]],
    folder: Path,
    hosts: Mapping[str, Any],
    mode: str,
    *flags_of_all: str,
    chooses: bool = False,
) -> int:
    """Trains several runs, one after the other, each in a process of its own; returns the exit code.

    The jobs and their logs are in `folder`, as those of run_sweep.py. This process does not load jax, because
    it would take the memory of the accelerator from the runs.

    Args:
      settings: For each run folder, values of its config by dotted key.
      folder: Of the jobs.
      hosts: Values of the flags of `define_hosts`, which must be unset.
      mode: The flag `--mode`, which must be train.
      flags_of_all: Further flags of the runs.
      chooses: Print which setting is best on the validation set.

    Raises:
      ValueError: There are several processes, or another mode.
    """
    from launch import jobs, runner

    if mode not in ("train", "check") or any(hosts.values()):
        raise ValueError(
            "--seeds and --search start one run after the other, on this machine and with --mode=train: give"
            " other modes and several hosts the command of one run, and its --workdir."
        )
    path, _, argument = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    own = [
        jobs.Job(
            (
                *_command(sys.argv[0], path, argument, {**overrides(), **values}),
                *flags_of_all,
                f"--workdir={run_folder}",
            )
        )
        for run_folder, values in settings.items()
    ]
    first = [sys.executable, *own[0].command[1:], "--mode=check"]
    quiet = None if mode == "check" else subprocess.DEVNULL
    code = subprocess.run(first, stdout=quiet, check=False).returncode
    if code or mode == "check":
        return code
    jobs.write_jobs(folder, own)
    return runner.run_all(folder, own, [{}], Path(sys.argv[0]).name, chooses=chooses)


@contextlib.contextmanager
def memory_advice(*, evaluates: bool) -> Iterator[None]:
    """Converts an error about too little memory to a ValueError that says what to change."""
    import jax

    from nystromformer_jax.training.errors import is_out_of_memory

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        advice = (
            "split batches with --config.train.accumulation=PARTS, in another --workdir if the run has"
            " begun. run_plan.py prints how many parts fit."
        )
        if evaluates:
            advice = "pass a smaller --config.eval.batch_size, together with --config."
        raise ValueError(
            f"The memory of the device is too small ({str(error).splitlines()[0]:.200}): {advice}"
        ) from error


def run(main: Callable[[list[str]], int]) -> None:
    """Parses the flags, calls `main` with the remaining arguments, and exits with the code it returns."""
    huge_pages.restart()  # on Linux, executes the program again, once, with huge pages of malloc
    try:
        app.run(lambda argv: _run(main, argv), flags_parser=_parse)
    except SystemExit:
        if HELP.isdisjoint(sys.argv[1:]):
            raise
        sys.exit(0)  # absl ends with 1 after it has printed the help


def print_error(message: str, exit_code: int = 2) -> int:
    """Prints an error message on one line; returns the exit code, so that `main` can return it."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


def check_arguments(
    argv: list[str], config: Any, example: str, *, own_config: bool = False
) -> str | None:
    """Returns an error message for an extra argument, a missing or unsupported `--config` or an invalid key.

    The result is None if all are valid; `example` is a value of `--config` for the messages. With
    `own_config`, `--config` may be missing, because the run's folder has it.
    """
    if len(argv) > 1:
        return f"unexpected argument {argv[1]!r}; flags look like --config.train.seed=1"
    if config.value is None and own_config:
        return None
    if config.value is None:
        return f"pass --config={example}, or another file under configs/"
    path, _, argument = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    name, is_own = Path(path).stem, Path(path).resolve().parent == CONFIGS.resolve()
    if is_own and not _is_supported(name):
        program = LANGUAGE_CONFIGS.get(name, "run_lra.py")
        return (
            f"{path} is a config of {program}: use that program, or pass a config such as {example}"
        )
    if attention := overrides().get("attention.name"):
        parts = [attention]
        if name in LANGUAGE_CONFIGS:
            given = split_commas(argument or example.partition(":")[2])
            kept = [part for part in given if not part.startswith("attention=")]
            parts = [*kept, f"attention={attention}"]
        return (
            "--config.attention.name changes the name and not the options of the attention: pass"
            f" --config={path}:{','.join(parts)}"
        )
    return None


def read_config(given: ConfigDict | None, folder: Path, *, evaluates: bool) -> dict[str, Any]:
    """Returns the config of the run in `folder`: for a finished run its own, otherwise that of `--config`."""
    from nystromformer_jax import training

    if evaluates or given is None:
        return config_of_run(folder)
    return training.keep_accumulation(config_of(given, {"train.seed": first_seed(given)}), folder)


def config_of_run(folder: Path) -> dict[str, Any]:
    """Returns the config of the run in `folder`, overridden by `--config.KEY=…`.

    Raises:
      ValueError: The folder has no config, or `--config` has another task or attention.
    """
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(
            f"--mode={flags.FLAGS.mode} needs a finished run, and {file} does not exist: pass the run's"
            " --workdir."
        )
    own = read_config_of(folder)
    given = flags.FLAGS["config"].value
    if given is None:
        return own
    if (here := _subject(given)) != (there := _subject(own)):
        raise ValueError(
            f"{folder} contains a run of {there}, but --config is for {here}: leave --config out, or pass"
            " the run's own."
        )
    return _with_values(own, overrides())


def overrides() -> dict[str, Any]:
    """Returns the values of `--config.KEY=…` flags on the command line, by dotted key."""
    values: dict[str, Any] = config_flags.get_override_values(flags.FLAGS["config"])
    return values


def _subject(config: Any) -> str:
    """Returns a text with the task and the attention of a config, for messages."""
    task = (config.get("data") or {}).get("task", "pretraining")
    attention = (config.get("attention") or {}).get("name")
    return f"{task} with {attention} attention"


def start_logging(*, quiet: bool = False) -> None:
    """Configures logging of plain lines. Libraries, or all code if `quiet`, log only warnings and errors."""
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(message)s", force=True)
    for chatty in ("jax", "orbax", "grain"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # absl and asyncio would log tracebacks of errors that Orbax also raises.
    for logger in ("absl", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)


def first_seed(config: ConfigDict) -> int:
    """Returns `train.seed` of a config that is not validated yet; by default that of `TrainConfig`.

    Raises:
      ValueError: The section is missing, or the seed is not a whole number.
    """
    from nystromformer_jax.training.config import TrainConfig  # needs the extra `lra`

    if "train" not in config:
        raise ValueError("train: this section is missing from the config.")
    seed = config.train.get("seed", TrainConfig.seed)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"train.seed: needs an int, got {seed!r} ({type(seed).__name__}).")
    return seed


def seed_suffix(config: ConfigDict | None) -> str:
    """Returns the end of the default folder's name; without a config, the folder has another name."""
    return "" if config is None else f"-seed{first_seed(config)}"


def seeds_of(workdir: str | None, first: int, count: int) -> dict[Path, dict[str, Any]]:
    """Returns the run folders of `count` seeds from `first`, with the config value of each."""
    return {
        run_folder(workdir, f"-seed{seed}", alone=False): {"train.seed": seed}
        for seed in range(first, first + count)
    }


def config_of(given: ConfigDict, values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a config to plain sections, with the `values` of one run by dotted key.

    The result also records how the run is started: its label, its recipe and its command. The path of the
    config file is relative to the repository, or absolute if the file is outside.
    """
    from reporting.records import label_of

    path, _, argument = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    config = _with_values(given.to_dict(), values)
    if "cpu_accumulation" in config["train"]:  # of version 0.2.0
        raise ValueError(
            "train.cpu_accumulation was removed: with train.accumulation=0 the program chooses the parts."
        )
    if "attention" not in config:
        raise ValueError("attention: this section is missing from the config.")
    options = split_commas(argument)
    others = [x for x in options if x.partition("=")[0] not in {**config["attention"], "name": ""}]
    default = load_config(path, *([",".join(others)] if others != [""] else [])).to_dict()
    changes = {key: value for key, value in overrides().items() if key not in values}
    file, root = Path(path).resolve(), CONFIGS.resolve().parent
    shown = str(file.relative_to(root) if file.is_relative_to(root) else file)
    recipes = [x.removeprefix("recipe=") for x in options if x.startswith(("recipe=", "quirks="))]
    recipes = [recipe for recipe in recipes if recipe not in ("paper", "quirks=none")]
    is_benchmark = file.parent == CONFIGS.resolve() and file.stem not in LANGUAGE_CONFIGS
    return {
        **config,
        "label": label_of(config, default),
        "recipe": ", ".join(recipes) or ("paper" if is_benchmark else ""),
        "command": shlex.join(
            _command(Path(sys.argv[0]).name, shown, argument, {**changes, **values})
        ),
    }


def _command(program: str, path: str, argument: str, values: Mapping[str, Any]) -> list[str]:
    config = f"--config={path}{':' if argument else ''}{argument}"
    return ["python", program, config, *(f"--config.{key}={x}" for key, x in values.items())]


def _with_values(config: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        section, _, name = key.partition(".")
        config = {**config, section: {**config.get(section, {}), name: value}}
    return config


def default_folder() -> str:
    """Returns `runs/<config file>-<argument>`, with special characters of the argument replaced."""
    path, _, argument = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    slug = re.sub(r"[^A-Za-z0-9]+", "-", argument).strip("-")
    return f"runs/{Path(path).stem}{'-' + slug if slug else ''}"


def run_folder(flag: str | None, suffix: str, *, alone: bool) -> Path:
    """Returns the run folder: `--workdir`, with a suffix unless `alone`; or the default with the suffix.

    Raises:
      ValueError: The user of `~user` does not exist, or the folder has no name.
    """
    from dataprep.cache import user_path  # imported late, because it loads numpy

    folder = user_path(flag or default_folder())
    if flag and alone:
        return folder
    if folder.name in ("", ".."):
        raise ValueError(
            f"--workdir={flag} has no folder name to which {suffix} can be added: pass a path such as"
            f" {folder / 'run'}."
        )
    return folder.with_name(f"{folder.name}{suffix}")


def _parse(argv: list[str]) -> list[str]:
    """Parses the flags; an invalid flag ends the program with a one-line message."""
    try:
        _check_config(argv)
        return flags.FLAGS(argv)
    except Exception as error:  # any error of ml-collections
        sys.exit(print_error(message_of(error)))


def _check_config(argv: list[str]) -> None:
    """Raises ValueError for a missing or invalid config file, or an unknown key.

    ml-collections would raise other errors, without similar names and with a traceback in the message.
    """
    places = [i for i, item in enumerate(argv) if re.match(r"--?config(=|$)", item)]
    if not places:
        for item in argv[1:]:
            if re.match(r"--?(no)?config\.", item):
                raise ValueError(
                    f"{item.partition('=')[0]} needs --config=FILE: pass both or neither."
                )
        return
    _, equals, value = argv[places[-1]].partition("=")
    if not equals:
        value = " ".join(argv[places[-1] + 1 : places[-1] + 2])
    path, colon, argument = value.partition(":")
    if not Path(path).is_file():
        known = config_files(_is_supported)
        raise ValueError(f"config file not found: {path!r} in {Path.cwd()}{nearest(path, known)}")
    sections = load_config(path, *([argument] if colon else [])).to_dict()
    for item in argv:
        if key := re.match(r"--?(?:no)?config\.([^=]*)", item):
            require_settable(key[1], sections, "--config.", "--config=FILE:ATTENTION")


def require_settable(key: str, sections: Mapping[str, Any], flag: str, attention: str) -> None:
    """Raises ValueError unless `flag`, followed by a key of a config and a value, can set the key.

    `attention` is the flag that takes the attention and its options, for a message.
    """
    keys = keys_of(sections)
    if key not in keys:
        raise ValueError(f"unknown config key {flag}{key}{nearest(key, keys)}")
    value: Any = sections
    for name in key.split("."):
        value = value[name]
    if isinstance(value, dict):
        example = next((one for one in keys if one.startswith(f"{key}.")), f"{key}.KEY")
        raise ValueError(
            f"{flag}{key} is a section: set each value, such as {flag}{example}=VALUE."
        )
    if value is None:  # ml-collections takes the type of a flag from the default
        raise ValueError(
            f"{flag}{key} cannot be set, because its default is None. Pass it after the attention:"
            f" {attention},{name}=VALUE."
        )


def load_config(path: str, *argument: str) -> ConfigDict:
    """Returns the config of a file, given the argument after the colon if there is one.

    Raises:
      ValueError: The file has no function `get_config`, or the function failed or did not return sections.
      ImportError: A module of the file or of its attention cannot be imported.
    """
    try:
        found = runpy.run_path(path)
        if "get_config" not in found:
            raise ValueError("a config file needs the function get_config.")
        config = found["get_config"](*argument)
    except ImportError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # a user's file may raise anything
        raise ValueError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(
            f"get_config in {path} must return a ConfigDict, not a {type(config).__name__}."
        )
    for name, section in config.items():
        if not isinstance(section, ConfigDict):
            raise ValueError(f"{path}: {name} must be a section (a ConfigDict), not {section!r}.")
    return config


def config_files(is_supported: Callable[[str], bool]) -> list[str]:
    """Returns the paths `configs/NAME.py` of the config files with `is_supported(NAME)`."""
    return [
        f"configs/{file.name}"
        for file in CONFIGS.glob("[!_]*.py")
        if is_supported(file.stem) and "\ndef get_config(" in file.read_text(encoding="utf-8")
    ]


def keys_of(config: Mapping[str, object], prefix: str = "") -> list[str]:
    """Returns all dotted keys of a config, including sections."""
    keys = []
    for name, value in config.items():
        keys.append(prefix + name)
        if isinstance(value, dict):
            keys += keys_of(value, f"{prefix}{name}.")
    return keys


def _report(error: Exception) -> int:
    """Prints the message of an exception raised by `main`; returns the exit code."""
    from nystromformer_jax import training

    code = training.exit_code_of(error)
    if code is None:
        traceback.print_exception(error)
        return 1
    if code >= 128:  # stopped by a signal
        print(error, file=sys.stderr)
        return code
    print_error(message_of(error))
    if isinstance(error, training.ProcessLost):  # waiting for the other processes would hang
        sys.stdout.flush()
        os._exit(code)
    return code


def _log_unraisable(unraisable: Any) -> None:
    """Logs errors in callbacks of a failed save, for example on a full disk, at debug level.

    Without this hook, each error prints a traceback in addition to the one-line message.
    """
    if not isinstance(unraisable.exc_value, OSError | ValueError | RuntimeError):  # a bug
        sys.__unraisablehook__(unraisable)
        return
    logging.getLogger(__name__).debug("%s", unraisable.err_msg, exc_info=unraisable.exc_value)


def _run(main: Callable[[list[str]], int], argv: list[str]) -> None:
    sys.unraisablehook = _log_unraisable  # which `ends_on_sigterm` calls
    try:
        # The training loop installs handlers that save. Before and after it, SIGTERM ends the program.
        with ends_on_sigterm(), flushed_stdout():
            code = main(argv)
    except BrokenPipeError:  # the reader, for example `head`, has exited
        code = 1
    except KeyboardInterrupt:
        code = print_error("stopped by Ctrl-C", exit_code=130)
        if _initialized:  # the other processes may run on, so a normal exit would wait for them
            from nystromformer_jax import training

            training.shutdown(code)
    except Exception as error:
        if not (_initialized or isinstance(error, OSError | ValueError)):
            raise
        code = _report(error)
    if _initialized and 0 < code < 128:  # after a signal, all processes end together
        from nystromformer_jax import training

        training.shutdown(code)
    sys.exit(code)
