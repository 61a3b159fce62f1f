"""Trains on a task of the Long Range Arena: `python run_lra.py --config=configs/listops.py`."""

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
    if SEEDS.value > 1:
        return cli.run_jobs(
            cli.seeds_of(WORKDIR.value, cli.first_seed(CONFIG.value), SEEDS.value),
            cli.run_folder(WORKDIR.value, "-seeds", alone=True),
            HOSTS(),
            MODE.value,
            *([] if TEST.value else ["--notest"]),
        )
    cli.initialize(HOSTS())
    from dataprep import cache
    from lra import data, train
    from nystromformer_jax import training

    folder = cli.run_folder(WORKDIR.value, cli.seed_suffix(CONFIG.value), alone=True)
    run = train.prepare(cli.read_config(CONFIG.value, folder, evaluates=evaluates))
    if MODE.value == "check":
        training.warn_if_too_large(train.make_spec(run))
        if training.is_primary():
            print(cli.CHECKED)
        return 0
    training.check_folder(folder, run.config, paths=train.PATHS, finished=evaluates)
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    with training.sync_errors():
        task = data.load(run.data)
    act = train.evaluate_checkpoint if evaluates else train.train
    return cli.run_one(
        folder,
        run,
        lambda workdir: act(run, task, workdir, test=TEST.value),
        train.describe_result,
        paths=train.PATHS,
        evaluates=evaluates,
    )


if __name__ == "__main__":
    cli.run(main)
