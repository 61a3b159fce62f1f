"""Trains many runs of any program: configs × values × seeds, here or on a cluster.

    python run_sweep.py --configs configs/{listops,text}.py:{nystrom,softmax} --seeds=5 --workdir=runs/table
    python run_sweep.py --workdir=runs/table --status

The commands of the runs are written to `jobs.txt` in the folder, and may be edited. The same command resumes:
finished runs are skipped, interrupted runs resume, and failed runs are tried again. Exit codes: 0 all runs
are done or diverged, or were submitted; 1 a run failed, or the disk is full; 2 the command is invalid; 130
or 143 a signal stopped the sweep; with --status, 3 some runs are not finished.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cli import commands, configs
from dataprep.cache import user_path
from launch import cluster, grid, jobs, runner, status
from lra.data import DataConfig, check_task
from nystromformer_jax.training.config import SECTIONS, read_sections

CLUSTERS = ("slurm", "local")
EXAMPLE = "configs/listops.py"  # a value of --configs, for messages


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, submits or lists the jobs of a sweep; returns the exit code."""
    return commands.run_to_end("run_sweep.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    flags, parameters = parse(arguments)
    folder = user_path(flags.workdir)
    if not Path("run_lra.py").is_file():  # folders in jobs.txt may be relative to it
        raise ValueError(f"run_lra.py is missing in {Path.cwd()}: change to its folder.")
    found = jobs.read_jobs(folder) if (folder / "jobs.txt").is_file() else []
    if flags.status:
        if not found:
            raise ValueError(f"{folder} has no jobs.txt: pass the --workdir of a sweep.")
        text, code = status.table(found)
        print(text)
        return code
    if flags.configs:
        pairs = [(program_of(config), config) for config in flags.configs]
        values = grid.split_values(flags.set)
        new = grid.expand(folder, pairs, values, flags.seeds, flags.data_dir)
        for job in {job.setting: job for job in new}.values():
            check(job)
        merged = jobs.merge(found, new, folder)
        if merged != found:
            jobs.write_jobs(folder, merged)
        found = merged
    if not found:
        raise ValueError(
            f"{folder} has no jobs.txt: pass --configs, such as --configs configs/listops.py."
        )
    todo = jobs.unfinished(found)
    print(f"Jobs in {folder / 'jobs.txt'}: {len(found)}, {len(todo)} of them to run.", flush=True)
    if flags.plan:
        return 0
    if flags.submit and todo:
        print(cluster.submit(folder, todo, flags.submit, flags.workers, parameters))
        return 0
    return runner.run_all(folder, found, flags.workers)


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, str | None]]:
    """Returns the flags, and the parameters `--CLUSTER.KEY=VALUE` as `CLUSTER_KEY`."""
    parser = commands.parser_of("run_sweep.py", __doc__)
    add = parser.add_argument
    add("--workdir", required=True, help="folder of the sweep, with jobs.txt, logs/ and the runs")
    text = "values of --config of the programs, such as configs/listops.py:softmax"
    name = "FILE[:ARGUMENT]"
    add("--configs", action="extend", nargs="+", default=[], metavar=name, help=text)
    add("--seeds", type=commands.number(int, 1), default=1, help="number of seeds, from 0")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE[,VALUE …]",
        help="config values; with several, only the setting that is best on validation is evaluated on the"
        " test set of the benchmark",
    )
    add("--data_dir", default="", help="folder with the files of text, retrieval and image")
    add(
        "--workers",
        type=commands.number(int, 1),
        default=0,
        help="number of runs at once, of which a single one has all devices; by default one per accelerator,"
        " or one on a CPU",
    )
    add(
        "--submit",
        default="",
        choices=CLUSTERS,
        help="submit arrays of jobs through submitit, with parameters such as --slurm.partition=gpu",
    )
    commands.add_switch(parser, "plan", False, "only write jobs.txt")
    text = "print the state of all jobs, also while they run"
    commands.add_switch(parser, "status", False, text)
    words: Sequence[str] = sys.argv[1:] if arguments is None else arguments
    parameters: dict[str, str | None] = {}
    for name in CLUSTERS:
        words, texts = configs.split_dotted(words, name)
        parameters |= {f"{name}_{key}": text for key, text in texts.items()}
    flags = parser.parse_args(words)
    if parameters and not flags.submit:
        raise ValueError(f"Parameters of a cluster need --submit={' or --submit='.join(CLUSTERS)}.")
    of_grid = ("seeds", "set", "data_dir")
    given = [f"--{name}" for name in of_grid if getattr(flags, name) != parser.get_default(name)]
    if given and not flags.configs:
        raise ValueError(f"{', '.join(given)}: without --configs, the jobs of jobs.txt run.")
    return flags, parameters


def program_of(config: str) -> str:
    """Returns the program of a value of `--config`, by the sections of the config."""
    sections = configs.read(config, {}, "run_plan.py", EXAMPLE).sections
    if "objective" in sections:
        return "run_pretrain.py"
    return "run_finetune.py" if "init" in sections else "run_lra.py"


def check(job: jobs.Job) -> None:
    """Raises ValueError unless the config, the values and the task of a job are valid.

    Values of the model and the attention are validated by name and type. The runs validate the rest, which
    needs jax.
    """
    _, texts = configs.split_dotted(job.command, "config")
    config = configs.read(job.config, texts, "run_plan.py", EXAMPLE).sections
    read_sections(config, _schemas(job.command[1], config), plain=["model", "attention"])
    if job.command[1] == "run_lra.py":
        check_task(config["data"]["task"])


def _schemas(program: str, config: Mapping[str, Any]) -> dict[str, type]:
    """Returns the dataclass of each section of a program, but the model and the attention."""
    if program == "run_lra.py":
        return {**SECTIONS, "data": DataConfig}
    from language.config import FINETUNING, InitConfig, ObjectiveConfig

    if program == "run_pretrain.py":
        from language.corpus import CorpusConfig

        own = {"data": CorpusConfig, "objective": ObjectiveConfig, "init": InitConfig}
        return {**SECTIONS, **own}
    from language.finetune.files import FilesConfig
    from language.finetune.glue import GlueConfig

    return {**FINETUNING, "data": GlueConfig if "task" in config["data"] else FilesConfig}


if __name__ == "__main__":
    sys.exit(main())
