"""Trains on a task of the Long Range Arena: `python run_lra.py --config=configs/listops.py`."""

from typing import Any

from absl import flags

import cli
from cli import print_error

CONFIG = cli.define_config(
    "configs/TASK.py, or configs/TASK.py:ATTENTION[,option=value …]",
    lambda name: name not in cli.LANGUAGE_CONFIGS,
)
HOSTS = cli.define_hosts()
WORKDIR = flags.DEFINE_string(
    "workdir", None, "The run's folder; default runs/<config>-<argument>-seed<k>."
)
SEEDS = flags.DEFINE_integer(
    "seeds", 1, "Number of seeds to run, from train.seed, each in its own folder.", 1, 1000
)
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "check"],
    "eval evaluates the best checkpoint of a finished run, and needs only --workdir, which has its config;"
    " check only validates the config.",
)
TEST = flags.DEFINE_bool(
    "test",
    True,
    "Evaluate the test set at the end. --notest skips it; the same command without --notest evaluates it.",
)


def main(argv: list[str]) -> int:
    """Trains or evaluates models, or validates the config; returns the exit code."""
    evaluates = MODE.value == "eval"
    own_config = evaluates and bool(WORKDIR.value) and CONFIG.value is None
    if wrong := cli.check_arguments(argv, CONFIG, "configs/listops.py", own_config=own_config):
        return print_error(wrong)
    cli.initialize(HOSTS())
    from dataprep import cache
    from lra import data, train
    from nystromformer_jax import training

    first = 0 if own_config else cli.first_seed(CONFIG.value)
    seeds, alone = range(first, first + SEEDS.value), SEEDS.value == 1
    folders = {cli.run_folder(WORKDIR.value, f"-seed{seed}", alone=alone): seed for seed in seeds}
    if evaluates:
        configs = {folder: cli.config_of_run(folder, seed) for folder, seed in folders.items()}
    else:
        configs = {
            folder: training.keep_accumulation(
                cli.config_of(CONFIG.value, {"train.seed": seed}), folder
            )
            for folder, seed in folders.items()
        }
    runs = {folder: train.prepare(config) for folder, config in configs.items()}
    if MODE.value == "check":
        training.warn_if_too_large(train.make_spec(next(iter(runs.values()))))
        if training.is_primary():
            print(cli.CHECKED)
        return 0
    cli.check_folders(runs, paths=train.PATHS, finished=evaluates)
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    with training.sync_errors():
        task = data.load(next(iter(runs.values())).data)

    def act(run: train.Run, workdir: training.Workdir) -> dict[str, Any]:
        if evaluates:
            return train.evaluate_checkpoint(run, task, workdir, test=TEST.value)
        return train.train(run, task, workdir, test=TEST.value)

    results = cli.run_all(
        runs,
        act,
        train.describe_result,
        paths=train.PATHS,
        evaluates=evaluates,
    )
    diverged = len(runs) - len(results)
    if len(results) > 1 and training.is_primary():
        print(train.describe_seeds(list(results.values()), diverged))
    return 1 if diverged else 0


if __name__ == "__main__":
    cli.run(main)
