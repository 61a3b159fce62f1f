"""Runs one task of the Long Range Arena: `python run_lra.py --config=configs/listops.py`."""

import logging
import re
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from configs.common import nearest

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
    try:
        runs = {seed: train.prepare(config) for seed, config in configs.items()}
        folders = {seed: _workdir(seed) for seed in configs}
        if MODE.value == "eval":
            for folder in folders.values():
                if not folder.is_dir():
                    return _refuse(f"--mode=eval needs a finished run; there is no folder {folder}")
        training.enable_compilation_cache(cache.cache_dir() / "xla")
        task = data.load(runs[first].data)
    except (ValueError, OSError) as error:
        return _refuse(str(error))

    results = []
    for seed, run in runs.items():
        try:
            with training.Workdir(folders[seed], configs[seed]) as workdir:
                finished = workdir.result is not None
                score = train.score_again if MODE.value == "eval" else train.train
                results.append(score(run, task, workdir))
        except training.Interrupted as stop:
            print(stop, file=sys.stderr)
            return stop.exit_code
        except (training.ConfigDiffers, training.WorkdirBusy, train.NotFinished) as error:
            return _refuse(str(error))
        except (training.LossNotFinite, OSError) as error:
            return _refuse(str(error), exit_code=1)
        end = f"Everything is in {folders[seed]}."
        if finished and MODE.value == "train":
            end = f"It had finished before; nothing was trained. See {folders[seed]}."
        print(f"{report.sentence(results[-1])} {end}", flush=True)
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


def _refuse(message: str, exit_code: int = 2) -> int:
    """One line, whatever the message holds."""
    print(f"run_lra.py: {' '.join(message.split())}", file=sys.stderr)
    return exit_code


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
    place = next((i for i, item in enumerate(argv) if re.match(r"--?config(=|$)", item)), None)
    if place is None:
        return None
    _, equals, value = argv[place].partition("=")
    if not equals:
        value = " ".join(argv[place + 1 : place + 2])
    path, colon, argument = value.partition(":")
    if not Path(path).is_file():
        here, values = Path(__file__).parent / "configs", ("common", "official")
        known = [
            f"configs/{file.name}" for file in here.glob("[!_]*.py") if file.stem not in values
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
        key = re.match(r"--?(?:no)?config\.([\w.]+)", item)
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


def _run(argv: list[str]) -> None:
    # The loop has handlers of its own, which save; these serve before and after it.
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main(argv))
    except KeyboardInterrupt:
        sys.exit(_refuse("stopped by Ctrl-C; the same command starts again", exit_code=130))


if __name__ == "__main__":
    app.run(_run, flags_parser=_parse)
