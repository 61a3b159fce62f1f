"""Shared parts of the training programs: their flags, the run folder, and one run.

Flags are validated before jax is loaded.
"""

import argparse
import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cli import commands, configs
from cli.configs import Given, seed_of

# The output of --mode=check for a valid config.
CHECKED = "Config is valid; no data loaded, nothing trained."
EVAL = "evaluates a finished run's best checkpoint, and needs only --workdir, which has its config"
CHECK = "only validates the config"
DATA = "prepares and describes the data, and trains nothing"
# Keys of how batches are computed. A resumed run keeps its own value if the config has this one, with which
# the program chooses; None: if the command line does not set the key.
KEPT = {"train.accumulation": 0, "data.group_by_length": None, "data.base_len": None}
EVERYTHING = "Everything is in {folder}."
MODES = {"train": "trains, or resumes a run", "eval": EVAL, "check": CHECK, "data": DATA}


def parser_of(program: str, description: str | None, modes: Mapping[str, str]) -> commands.Parser:
    """Returns a parser of the flags of a training program; `modes` says what each value of --mode does."""
    parser = commands.parser_of(program, description)
    add = parser.add_argument
    add("--workdir", help="the run's folder; default runs/<config>-<argument>-seed<k>")
    does = "; ".join(f"{mode} {what}" for mode, what in modes.items())
    add("--mode", choices=list(modes), default="train", help=does)
    text = "connect to the processes that a TPU pod, SLURM or Open MPI started"
    commands.add_switch(parser, "distributed", False, text)
    add("--coordinator", default="", help="HOST:PORT of the first process of the run")
    text = "number of processes; needs --coordinator"
    add("--num_processes", type=commands.number(int, 1), help=text)
    text = "index of this process, from 0; needs --coordinator"
    add("--process_id", type=commands.number(int, 0), help=text)
    return parser


def hosts_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Returns the flags of multi-process runs."""
    names = ("distributed", "coordinator", "num_processes", "process_id")
    return {name: getattr(flags, name) for name in names}


def has_hosts(flags: argparse.Namespace) -> bool:
    """Returns True if a flag of multi-process runs is set."""
    return any(x not in (None, "") and x is not False for x in hosts_of(flags).values())


def initialize(flags: argparse.Namespace) -> None:
    """Starts logging, and connects to the other processes of the run."""
    start_logging()
    from nystromformer_jax import training

    training.initialize(training.HostsConfig(**hosts_of(flags)))
    start_logging(quiet=not training.is_primary())


def run(
    flags: argparse.Namespace,
    trainer: Any,
    load: Callable[[Any], Any],
    make_spec: Callable[[Any], Any],
    where: str = EVERYTHING,
    **options: bool,
) -> int:
    """Does what --mode says for the run of the flags, after `initialize`; returns the exit code.

    A sentence about the result is printed. An evaluated run must be finished, and its folder is only read.

    Args:
      flags: Parsed flags.
      trainer: Module with `prepare`, `train`, `evaluate_checkpoint`, `describe_result` and
        `describe_data`.
      load: Returns the data of a prepared run.
      make_spec: Returns its `TrainSpec`, for --mode=check.
      where: Sentence about the folder.
      **options: Keyword arguments of `train` and `evaluate_checkpoint`.
    """
    from dataprep import cache
    from nystromformer_jax import training

    folder = folder_of_run(flags.workdir, flags.config)
    prepared = trainer.prepare(read_config(flags.config, folder, flags.mode))
    if flags.mode == "check":
        training.warn_if_too_large(make_spec(prepared))
        if training.is_primary():
            print(CHECKED)
        return 0
    evaluates = flags.mode == "eval"
    if flags.mode != "data":  # raises errors before a long preparation of the data
        opened = training.Workdir(folder, prepared.config, read_only=True)
        if evaluates:
            opened.require_result()
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    with training.sync_errors():
        data = load(prepared)
    if flags.mode == "data":
        if training.is_primary():
            print(trainer.describe_data(prepared, data))
        return 0
    act = trainer.evaluate_checkpoint if evaluates else trainer.train
    with (
        training.detect_lost_process(),
        training.Workdir(folder, prepared.config, read_only=evaluates) as workdir,
    ):
        had_finished = workdir.result is not None and not evaluates
        advice = (
            "split batches with --config.train.accumulation=PARTS, in another --workdir if the run has"
            " begun. run_plan.py --topology=DEVICE prints what fits."
        )
        if evaluates:
            advice = "pass a smaller --config.eval.batch_size, together with --config."
        with explain_out_of_memory(advice):
            result = act(prepared, data, workdir, **options)
    if had_finished:
        where = "It had finished before; nothing was trained. See {folder}."
    if training.is_primary():
        print(f"{trainer.describe_result(result)} {where.format(folder=folder)}", flush=True)
    return 0


@contextlib.contextmanager
def explain_out_of_memory(advice: str) -> Iterator[None]:
    """Raises ValueError with `advice` if the memory of the device is too small for the `with` block."""
    import jax

    from nystromformer_jax.training.errors import is_out_of_memory

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = f"{str(error).splitlines()[0]:.200}"
        message = f"The memory of the device is too small ({reason}): {advice}"
        raise ValueError(message) from error


def read_config(given: Given | None, folder: Path, mode: str) -> dict[str, Any]:
    """Returns the config of the run in `folder`, whose own is needed for the modes of finished runs.

    Raises:
      ValueError: The folder has no config, or `--config` has another task or attention.
    """
    from nystromformer_jax.support import durable

    if given is not None and mode not in configs.FROM_FOLDER:
        record = given.record({"train.seed": seed_of(given.sections)})
        return keep_stored(record, given.overrides, folder)
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(
            f"--mode={mode} needs a finished run, and {file} does not exist: pass the run's --workdir."
        )
    own = durable.read_config(folder)
    if given is None:
        return own
    if (here := _subject(given.sections)) != (there := _subject(own)):
        raise ValueError(f"{folder} is a run of {there}, but --config is for {here}: leave it out.")
    return configs.with_values(own, given.overrides)


def keep_stored(
    config: dict[str, Any], overrides: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Returns `config` with the keys `KEPT` of an existing run in `folder`, except those that are set.

    A key that the run does not have is left out, and its schema has the value of older runs. Nothing is kept
    of a run of another task, attention or batch size, which does not resume.
    """
    from nystromformer_jax.support import durable

    if not (folder / "config.json").is_file():
        return config
    own = {"data": {}, "train": {}, **durable.read_config(folder)}
    now, then = ((_subject(one), one["train"].get("batch_size")) for one in (config, own))
    if now != then:
        return config
    for key, value in KEPT.items():
        section, _, name = key.partition(".")
        given = overrides.get(key) if value is None else config[section].get(name, value)
        if given == value:
            kept = {name: own[section][name]} if name in own[section] else {}
            rest = {other: x for other, x in config[section].items() if other != name}
            config = {**config, section: rest | kept}
    return config


def _subject(config: Any) -> str:
    """Returns a text with the task and the attention of a config, for messages."""
    data = config.get("data") or {}
    task = data.get("task") or data.get("kind") or "pretraining"
    return f"{task} with {(config.get('attention') or {}).get('name')} attention"


def start_logging(*, quiet: bool = False) -> None:
    """Configures logging of plain lines. Libraries, or all code if `quiet`, log only warnings and errors."""
    level = logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(message)s", force=True)
    for chatty in ("jax", "orbax", "grain"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # absl and asyncio would log tracebacks of errors that Orbax also raises.
    for logger in ("absl", "asyncio"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)


def folder_of_run(workdir: str | None, given: Given | None) -> Path:
    """Returns the folder of a run: `--workdir`, or `runs/<config file>-<argument>-seed<k>`.

    Special characters of the argument are replaced.

    Raises:
      ValueError: The user of `~user` does not exist.
    """
    from dataprep.cache import user_path  # imported late, because it loads numpy

    if workdir:
        return user_path(workdir)
    assert given is not None  # the flags need --config or --workdir
    slug = re.sub(r"[^A-Za-z0-9]+", "-", given.argument).strip("-")
    name = f"{Path(given.path).stem}-{slug}".removesuffix("-")
    return Path("runs", f"{name}-seed{seed_of(given.sections)}")
