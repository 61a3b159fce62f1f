"""The grid of a sweep: configs × values × seeds, as jobs."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.jobs import NO_TEST, Job, require_unique
from nystromformer_jax.support.spelling import split_commas

FROM_FILES = ("text", "retrieval", "image")  # tasks whose data are not generated


def split_values(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parses the values of `--set`: `KEY=VALUE[,VALUE …]`."""
    values: dict[str, list[str]] = {}
    for text in texts:
        key, _, items = text.partition("=")
        if not _split(items):
            raise ValueError(f"--set needs KEY=VALUE[,VALUE …], got {text!r}.")
        flags = {"train.seed": "--seeds", "attention.name": "--configs", "data.task": "--configs"}
        if key in flags:
            raise ValueError(f"--set={key} is invalid: pass {flags[key]} instead.")
        if key in values:
            raise ValueError(f"--set={key} is invalid: pass all its values at once.")
        values[key] = _split(items)
    return values


def _split(text: str) -> list[str]:
    """Splits at commas outside brackets, without empty items."""
    return [item.strip() for item in split_commas(text) if item.strip()]


def expand(
    folder: Path,
    configs: Sequence[tuple[str, str]],
    values: Mapping[str, Sequence[str]],
    seeds: int,
    data_dir: str = "",
) -> list[Job]:
    """Returns a job per config, combination of `values` and seed.

    `configs` are programs with values of `--config`. With several combinations of `values`, runs of the
    benchmark do not evaluate the test set. `data_dir` is passed to the tasks of `FROM_FILES`.

    Raises:
      ValueError: No task takes `data_dir`, `values` has it, too, or two jobs have the same name.
    """
    tasks = [Path(config.partition(":")[0]).stem for _, config in configs]
    if data_dir and {*tasks}.isdisjoint(FROM_FILES):
        raise ValueError(
            f"--data_dir is for text, retrieval and image: pass --set=data.dir={data_dir}."
        )
    if data_dir and "data.dir" in values:
        raise ValueError("--data_dir and --set=data.dir are two values of one key.")
    jobs = []
    settings = [
        dict(zip(values, items, strict=True)) for items in itertools.product(*values.values())
    ]
    for (task, (program, config)), setting, seed in itertools.product(
        zip(tasks, configs, strict=True), settings, range(seeds)
    ):
        varied = [
            f"{key.rpartition('.')[2]}={item}"
            for key, item in setting.items()
            if len(values[key]) > 1
        ]
        words = [task, config.partition(":")[2], *varied, f"seed{seed}"]
        name = re.sub(r"[^\w.=-]+", "-", "-".join(filter(None, words)))
        data = {"data.dir": data_dir} if data_dir and task in FROM_FILES else {}
        command = (
            *("python", program, f"--config={config}"),
            *(f"--config.{key}={item}" for key, item in {**data, **setting}.items()),
            f"--config.train.seed={seed}",
            *([NO_TEST] if program == "run_lra.py" and len(settings) > 1 else []),
            f"--workdir={folder / name}",
        )
        jobs.append(Job(folder, command))
    require_unique(jobs, "The grid")
    return jobs
