"""Runs one task of the Long Range Arena: `python run_lra.py --config=configs/listops.py`."""

import difflib
import logging
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

CONFIG = config_flags.DEFINE_config_file(
    "config", help_string="configs/TASK.py, or configs/TASK.py:ATTENTION[,option=value …]"
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "The run's folder; default runs/<config>-<argument>-seed<k>."
)
SEEDS = flags.DEFINE_integer(
    "seeds", 1, "How many seeds to run, from train.seed on, each in a folder of its own.", 1
)
MODE = flags.DEFINE_enum(
    "mode", "train", ["train", "eval"], "eval scores a finished run's best checkpoint again."
)


def main(argv: list[str]) -> int:
    """Trains or scores; returns the exit code."""
    if len(argv) > 1:
        return _refuse(f"unexpected argument {argv[1]!r}; flags look like --config.train.seed=1")
    if CONFIG.value is None:
        return _refuse("pass --config=configs/listops.py, or another file under configs/")
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    for chatty in ("absl", "jax", "orbax", "grain"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    from lra import data, report, train  # here: a wrong flag is answered without loading jax
    from lra.data import cache
    from nystromformer_jax import training

    first = CONFIG.value.train.seed
    configs = {seed: _with_seed(seed) for seed in range(first, first + SEEDS.value)}
    results = []
    try:
        runs = {seed: train.prepare(config) for seed, config in configs.items()}
        folders = {seed: _workdir(seed) for seed in configs}
        if MODE.value == "eval":
            for folder in folders.values():
                if not folder.is_dir():
                    return _refuse(f"--mode=eval needs a finished run; there is no folder {folder}")
        training.enable_compilation_cache(cache.cache_dir() / "xla")
        task = data.load(runs[first].data)
        for seed, run in runs.items():
            with training.Workdir(folders[seed], configs[seed]) as workdir:
                if MODE.value == "eval":
                    results.append(train.score_again(run, task, workdir))
                    end = ""
                elif workdir.result is not None:
                    results.append(workdir.result)
                    end = f" It had finished before; nothing was trained. See {folders[seed]}."
                else:
                    results.append(train.train(run, task, workdir))
                    end = f" Everything is in {folders[seed]}."
            print(report.sentence(results[-1]) + end, flush=True)
    except training.Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    except training.LossNotFinite as error:
        print(f"run_lra.py: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError, training.WorkdirBusy) as error:
        return _refuse(str(error))
    if SEEDS.value > 1:
        print(report.sentence_over_seeds(results))
    return 0


def _with_seed(seed: int) -> dict[str, Any]:
    config: dict[str, Any] = CONFIG.value.to_dict()
    return {**config, "train": {**config["train"], "seed": seed}}


def _workdir(seed: int) -> Path:
    """`--workdir`, or `runs/<config file>-<its argument, slugged>`; with `-seed<k>` where needed."""
    if WORKDIR.value and SEEDS.value == 1:
        return Path(WORKDIR.value)
    path, _, argument = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    slug = re.sub(r"[^A-Za-z0-9]+", "-", argument).strip("-")
    default = f"runs/{Path(path).stem}{'-' + slug if slug else ''}"
    return Path(f"{WORKDIR.value or default}-seed{seed}")


def _refuse(message: str) -> int:
    """One line, exit code 2."""
    print(f"run_lra.py: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parse(argv: list[str]) -> list[str]:
    """Reads the flags; a wrong one is one line, not a traceback."""
    try:
        if unknown := _unknown_key(argv):
            sys.exit(_refuse(unknown))
        return flags.FLAGS(argv)
    except Exception as error:  # whatever ml-collections and a config file raise
        text = str(error)
        if "Error whilst parsing config file" in text:  # a whole traceback, as text
            text = text.rstrip().rpartition("\n")[2].partition(": ")[2]
        sys.exit(_refuse(text))


def _unknown_key(argv: list[str]) -> str | None:
    """A sentence about a config file or key that is not there; ml-collections' own is a KeyError."""
    given = " ".join(argv)
    config_flag = re.search(r"--?config[= ]([^:\s]+)(?::(\S*))?", given)
    if config_flag is None:
        return None
    path, argument = config_flag.groups()
    if not Path(path).is_file():
        known = sorted(
            str(file) for file in Path("configs").glob("[!_]*.py") if file.stem != "common"
        )
        return f"there is no config file {path}{_nearest(path, known)}"
    arguments = () if argument is None else (argument,)
    try:
        config = runpy.run_path(path)["get_config"](*arguments)
    except Exception:  # the file's own error is the better sentence
        return None
    known = _keys(config.to_dict())
    for key in re.findall(r"--?(?:no)?config\.([\w.]+)", given):
        if key not in known:
            return f"there is no --config.{key}{_nearest(key, known)}"
    return None


def _keys(config: dict[str, object], prefix: str = "") -> list[str]:
    """All dotted keys, those of sections included."""
    keys = []
    for name, value in config.items():
        keys.append(prefix + name)
        if isinstance(value, dict):
            keys += _keys(value, f"{prefix}{name}.")
    return keys


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=2)
    return f"; did you mean {' or '.join(close)}?" if close else f"; known: {', '.join(known)}."


if __name__ == "__main__":
    app.run(lambda argv: sys.exit(main(argv)), flags_parser=_parse)
