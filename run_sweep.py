"""Trains many runs of the Long Range Arena: tasks × attentions × values × seeds, here or on a cluster.

    python run_sweep.py --tasks=listops,text --attentions=nystrom,softmax --seeds=5 --workdir=runs/table
    python run_sweep.py --workdir=runs/table --status

The commands of the runs are written to `jobs.txt` in the folder, and may be edited. The same command resumes:
finished runs are skipped, interrupted runs resume, and failed runs are tried again. Exit codes: 0 all runs
are done or diverged, or were submitted; 1 a run failed, or the disk is full; 2 the command is invalid; 130
or 143 a signal stopped the sweep; with --status, 3 some runs are not finished.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli import commands, configs
from dataprep.cache import user_path
from launch import cluster, grid, jobs, runner, status
from lra.data import DataConfig, check_task
from nystromformer_jax.support.spelling import nearest
from nystromformer_jax.training.config import SECTIONS, from_mapping

SCHEMAS: Mapping[str, type] = {**SECTIONS, "data": DataConfig}
CLUSTER_PARAMETER = re.compile(r"--(slurm|local)\.(\w+)=(.*)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, submits or lists the jobs of a sweep; returns the exit code."""
    return commands.run_to_end("run_sweep.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    flags, parameters = parse(arguments)
    folder = user_path(flags.workdir)
    found = jobs.read_jobs(folder) if (folder / "jobs.txt").is_file() else []
    if flags.status:
        if not found:
            raise ValueError(f"{folder} has no jobs.txt: pass the --workdir of a sweep.")
        text, code = status.table(folder, found)
        print(text)
        return code
    if not Path("run_lra.py").is_file():
        raise ValueError(
            "run_sweep.py must be started in the folder of run_lra.py; the current folder is"
            f" {Path.cwd()}: change to that folder."
        )
    if flags.tasks:
        names = [
            f"{name if name.endswith('.py') else f'configs/{name}.py'}:{attention}{comma}{options}"
            + (f",recipe={flags.recipe}" if flags.recipe else "")
            for name, comma, options in (x.partition(",") for x in grid.split_names(flags.tasks))
            for attention in grid.split_names(flags.attentions)
        ]
        values = grid.split_values(flags.set)
        for name in names:
            check_config(name, values)
        new = grid.expand(folder, names, values, flags.seeds, flags.data_dir)
        jobs.require_unique(new, "The grid")
        merged = jobs.merge(found, new, folder)
        if merged != found:
            jobs.write_jobs(folder, merged)
        found = merged
    if not found:
        raise ValueError(
            f"{folder} has no jobs.txt: pass --tasks=listops and --attentions=nystrom."
        )
    todo = jobs.unfinished(found)
    print(f"Jobs in {folder / 'jobs.txt'}: {len(found)}, {len(todo)} of them to run.", flush=True)
    if flags.plan:
        return 0
    if flags.submit and todo:
        print(cluster.submit(folder, todo, flags.submit, flags.workers, parameters))
        return 0
    return runner.run_all(folder, found, runner.environments(flags.workers), "run_sweep.py")


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, str]]:
    """Returns the flags, and the parameters `--CLUSTER.KEY=VALUE` as `CLUSTER_KEY`."""
    parser = commands.parser_of("run_sweep.py", __doc__)
    add = parser.add_argument
    add("--workdir", required=True, help="folder of the sweep, with jobs.txt, logs/ and the runs")
    add(
        "--tasks",
        default="",
        help="files in configs/ such as listops,text, or paths of your own, with options",
    )
    add(
        "--attentions",
        default="nystrom",
        help="attentions as after the colon of --config: nystrom,num_landmarks=32,softmax",
    )
    add("--seeds", type=commands.number(int, 1), default=1, help="number of seeds, from 0")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE[,VALUE …]",
        help="config values; with several, only the one with the highest validation accuracy is evaluated on"
        " the test set",
    )
    add("--recipe", default="", help="recipe=… of all configs, such as fast")
    add("--data_dir", default="", help="folder with the files of text, retrieval and image")
    add(
        "--workers",
        type=commands.number(int, 1),
        default=0,
        help="number of runs at once; by default one per accelerator, or one on a CPU",
    )
    add(
        "--submit",
        default="",
        choices=["slurm", "local"],
        help="submit arrays of jobs through submitit, with parameters such as --slurm.partition=gpu",
    )
    commands.add_switch(parser, "plan", False, "only write jobs.txt")
    text = "print the state of all jobs, also while they run"
    commands.add_switch(parser, "status", False, text)
    flags, others = parser.parse_known_args(arguments)
    of_grid = ("attentions", "seeds", "set", "recipe", "data_dir")
    given = [f"--{name}" for name in of_grid if getattr(flags, name) != parser.get_default(name)]
    if given and not flags.tasks:
        raise ValueError(
            f"{', '.join(given)}: needs --tasks. Without it, the jobs of jobs.txt run."
        )
    parameters = {}
    for word in others:
        match = CLUSTER_PARAMETER.fullmatch(word)
        if not match:
            name = word.partition("=")[0]
            if re.match(r"--(slurm|local)\.", word):
                raise ValueError(f"{name} needs a value: write {name}=VALUE")
            if "." in name:
                key = word.removeprefix("--").removeprefix("config.")
                raise ValueError(f"unknown flag {name}; values of a config are --set={key}")
            raise ValueError(parser.unknown(word))
        parameters[f"{match[1]}_{match[2]}"] = match[3]
    if parameters and not flags.submit:
        raise ValueError(f"{others[0]} needs --submit={others[0][2:].partition('.')[0]}.")
    return flags, parameters


def check_config(config: str, values: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError unless the task, the attention and the keys and types of `values` are valid.

    Values of the sections in `SCHEMAS` are validated; the runs validate the others, which needs jax.
    """
    path, _, argument = config.partition(":")
    known = configs.config_files(lambda name: name not in configs.LANGUAGE_CONFIGS)
    file = Path(path).resolve()
    is_own = file.is_file() and not file.is_relative_to(configs.CONFIGS.resolve())
    if not is_own and file not in [configs.CONFIGS.resolve() / Path(name).name for name in known]:
        tasks = [Path(name).stem for name in known]
        raise ValueError(
            f"--tasks: {Path(path).stem!r} is unknown{nearest(Path(path).stem, tasks)}"
        )
    own = configs.load_file(path)(argument)
    types = own.to_dict()
    keys = configs.keys_of(types)
    for key in ("data.task", "train.seed"):  # each job sets its seed
        if key not in keys:
            raise ValueError(f"{path}: {key} is missing.")
    check_task(own.data.task)
    for key in values:
        configs.require_settable(key, types, "--set=", "--attentions=ATTENTION")
        if "." not in key:
            raise ValueError(f"--set={key} is invalid: only values in sections can be set.")
    for setting in itertools.product(*values.values()):
        for key, item in zip(values, setting, strict=True):
            configs.set_value(own, key, item, f"--set={key}={item}")
        for section in sorted({key.partition(".")[0] for key in values} & SCHEMAS.keys()):
            from_mapping(SCHEMAS[section], own[section].to_dict(), section)


if __name__ == "__main__":
    sys.exit(main())
