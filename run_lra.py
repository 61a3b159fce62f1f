"""Trains on a task of the Long Range Arena: `python run_lra.py --config=configs/listops.py`."""

import sys
from collections.abc import Sequence

from cli import commands, configs, training
from launch import huge_pages

MODES = {
    "train": "trains, or resumes a run",
    "eval": training.EVAL,
    "check": training.CHECK,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains or evaluates models, or validates the config; returns the exit code."""
    return training.run_to_end("run_lra.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = training.parser_of("run_lra.py", __doc__, MODES)
    training.add_seeds(parser)
    text = "evaluate the test set at the end; the same command with it does so after --notest"
    commands.add_switch(parser, "test", True, text)
    flags = configs.parse(
        parser,
        arguments,
        "configs/TASK.py, or configs/TASK.py:ATTENTION[,option=value …]",
        "configs/listops.py",
        lambda name: name not in configs.LANGUAGE_CONFIGS,
    )
    if flags.seeds > 1:
        training.require_config(flags)
        return training.run_jobs(
            flags.config,
            training.seeds_of(flags.workdir, flags.config, flags.seeds),
            training.run_folder(flags.workdir, flags.config, "-seeds", alone=True),
            flags,
            *([] if flags.test else ["--notest"]),
        )
    training.initialize(flags)
    from dataprep import cache
    from lra import data, train
    from nystromformer_jax.training import (
        check_folder,
        enable_compilation_cache,
        is_primary,
        sync_errors,
        warn_if_too_large,
    )

    folder = training.folder_of_run(flags.workdir, flags.config)
    run = train.prepare(training.read_config(flags.config, folder, flags.mode))
    if flags.mode == "check":
        warn_if_too_large(train.make_spec(run))
        if is_primary():
            print(training.CHECKED)
        return 0
    evaluates = flags.mode == "eval"
    check_folder(folder, run.config, paths=train.PATHS, finished=evaluates)
    enable_compilation_cache(cache.cache_dir() / "xla")
    with sync_errors():
        task = data.load(run.data)
    act = train.evaluate_checkpoint if evaluates else train.train
    return training.run_one(
        folder,
        run,
        lambda workdir: act(run, task, workdir, test=flags.test),
        train.describe_result,
        paths=train.PATHS,
        evaluates=evaluates,
    )


if __name__ == "__main__":
    huge_pages.restart()  # on Linux, executes the program again, once, with huge pages of malloc
    sys.exit(main())
