"""The jobs of a sweep: expansion of a grid, and the file `jobs.txt`.

    python run_lra.py --config=configs/listops.py:softmax --config.train.seed=0 --workdir=runs/a/softmax-seed0

Each line of the file is the command of one run. Lines may be edited, added and removed.
"""

import dataclasses
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep.archives import decode
from nystromformer_jax.durable import read_json, write_bytes
from nystromformer_jax.spelling import split_commas
from reporting.runs import check_numbers

FROM_FILES = ("text", "retrieval", "image")  # tasks whose data are not generated
NO_TEST = "--notest"
HEADER = (
    "# The jobs of a sweep, one command per line. Lines may be edited, added and removed.\n"
    "# The same run_sweep.py command, or `python run_sweep.py --workdir=FOLDER`, runs the unfinished ones.\n"
)


@dataclasses.dataclass(frozen=True)
class Job:
    """Command of one run of the benchmark; `--workdir` is the run's folder."""

    command: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(os.path.expanduser(self._flag("workdir")))  # keeps unknown users

    @property
    def name(self) -> str:
        """Name of the folder, which is unique in the sweep."""
        return self.folder.name

    @property
    def config(self) -> str:
        """Value of `--config`: the task and the attention."""
        return self._flag("config")

    @property
    def setting(self) -> tuple[str, ...]:
        """The command without the seed and the folder; equal for the seeds of a setting."""
        varying = ("--config.train.seed=", "--workdir=")
        return tuple(word for word in self.command if not word.startswith(varying))

    @property
    def is_candidate(self) -> bool:
        """True if the run does not evaluate the test set unless its setting is chosen."""
        return NO_TEST in self.command

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of `result.json`, or None if the run is not finished.

        Raises:
          ValueError: The file is invalid.
        """
        file = self.folder / "result.json"
        if not file.is_file():
            return None
        result = read_json(file)
        if is_diverged(result):
            check_numbers(file, result, "step")
        else:
            check_numbers(file, result, "valid_accuracy", *{"test_accuracy"} & result.keys())
        return result

    @property
    def is_finished(self) -> bool:
        """True if the command has nothing left to do."""
        result = self.result
        return result is not None and (
            self.is_candidate or "test_accuracy" in result or is_diverged(result)
        )

    def with_test(self) -> "Job":
        """Returns the job that also evaluates the test set."""
        return Job(tuple(word for word in self.command if word != NO_TEST))

    def _flag(self, name: str) -> str:
        prefix = f"--{name}="
        return next(
            (word.removeprefix(prefix) for word in self.command if word.startswith(prefix)), ""
        )


def is_diverged(result: Mapping[str, Any]) -> bool:
    """Returns True for the `result.json` of a run that diverged."""
    return result.get("state") == "diverged"


def split_list(text: str) -> list[str]:
    """Returns the items of `split_commas` without white space around them, and without empty items."""
    return [item.strip() for item in split_commas(text) if item.strip()]


def split_names(text: str) -> list[str]:
    """Splits a list of tasks or attentions: an item with "=" is an option of the name before it.

    `nystrom,num_landmarks=32,softmax` has the items `nystrom,num_landmarks=32` and `softmax`.
    """
    items: list[str] = []
    for item in split_list(text):
        if "=" not in item:
            items.append(item)
        elif items:
            items[-1] += f",{item}"
        else:
            raise ValueError(
                f"{item} is an option: put it after the name of a task or an attention."
            )
    return items


def split_values(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parses the values of `--set`: `KEY=VALUE[,VALUE …]`."""
    values: dict[str, list[str]] = {}
    for text in texts:
        key, equals, items = text.partition("=")
        if not (equals and split_list(items)):
            raise ValueError(f"--set needs KEY=VALUE[,VALUE …], got {text!r}.")
        flags = {"train.seed": "--seeds", "attention.name": "--attentions", "data.task": "--tasks"}
        instead = flags.get(key)
        if key in values or instead:
            reason = f"pass {instead} instead" if instead else "pass all its values at once"
            raise ValueError(f"--set={key} is invalid: {reason}.")
        values[key] = split_list(items)
    return values


def expand(
    folder: Path,
    configs: Sequence[str],
    values: Mapping[str, Sequence[str]],
    seeds: int,
    data_dir: str = "",
) -> list[Job]:
    """Returns a job per config, combination of `values` and seed.

    `configs` are values of `--config`. With several combinations of `values`, the jobs do not evaluate the
    test set. `data_dir` is passed to the tasks of `FROM_FILES`.

    Raises:
      ValueError: No task takes `data_dir`, or `values` has it, too.
    """
    tasks = {Path(config.partition(":")[0]).stem for config in configs}
    if data_dir and tasks.isdisjoint(FROM_FILES):
        raise ValueError(
            f"--data_dir is for {', '.join(FROM_FILES)}: pass --set=data.dir={data_dir} for other tasks."
        )
    if data_dir and "data.dir" in values:
        raise ValueError(
            "--data_dir and --set=data.dir are two values of one key: pass one of them."
        )
    jobs = []
    settings = list(itertools.product(*values.values()))
    for config, setting, seed in itertools.product(configs, settings, range(seeds)):
        task = Path(config.partition(":")[0]).stem
        given = dict(zip(values, setting, strict=True))
        varied = [
            f"{key.rpartition('.')[2]}={item}"
            for key, item in given.items()
            if len(values[key]) > 1
        ]
        words = "-".join([f"{task}-{config.partition(':')[2]}", *varied, f"seed{seed}"])
        name = re.sub(r"[^\w.=-]+", "-", words)
        if data_dir and task in FROM_FILES:
            given = {"data.dir": data_dir, **given}
        jobs.append(
            Job(
                (
                    *("python", "run_lra.py", f"--config={config}"),
                    *(f"--config.{key}={item}" for key, item in given.items()),
                    f"--config.train.seed={seed}",
                    *([NO_TEST] if len(settings) > 1 else []),
                    f"--workdir={folder / name}",
                )
            )
        )
    return jobs


def read_jobs(folder: Path) -> list[Job]:
    """Reads `jobs.txt`; raises ValueError if a line is not a command with `--workdir` and `--config`."""
    file, jobs = folder / "jobs.txt", []
    text = decode(file.read_bytes(), str(file), "Save it as UTF-8.")
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}.") from None
        if words:
            job = Job(tuple(words))
            if not (job.name and job.config):
                raise ValueError(
                    f"{file}, line {number}: a job is a command with --config=… and --workdir=…"
                )
            jobs.append(job)
    require_unique(jobs, file)
    return jobs


def write_jobs(folder: Path, jobs: Iterable[Job]) -> None:
    """Writes `jobs.txt`."""
    lines = "".join(f"{shlex.join(job.command)}\n" for job in jobs)
    write_bytes(folder / "jobs.txt", (HEADER + lines).encode())


def require_unique(jobs: Sequence[Job], where: object) -> None:
    """Raises ValueError if two jobs have the same folder name."""
    names = [job.name for job in jobs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"{where}: two jobs have the folder name {twice}; folder names must differ."
        )
