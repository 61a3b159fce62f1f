"""Runs one task of the Long Range Arena: `python run_lra.py --config=configs/listops.py`."""

from absl import flags

from harness import command_line
from harness.command_line import refuse

CONFIG = command_line.define_config(
    "configs/TASK.py, or configs/TASK.py:ATTENTION[,option=value …]",
    lambda name: name not in ("glue", "pretrain"),
)
HOSTS = command_line.define_hosts()
WORKDIR = flags.DEFINE_string(
    "workdir", None, "The run's folder; default runs/<config>-<argument>-seed<k>."
)
SEEDS = flags.DEFINE_integer(
    "seeds", 1, "How many seeds to run, from train.seed on, each in a folder of its own.", 1, 1000
)
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "check"],
    "eval scores a finished run's best checkpoint again; check tries every value, and does no more.",
)


def main(argv: list[str]) -> int:
    """Trains, scores or checks; returns the exit code."""
    if wrong := command_line.check_arguments(argv, CONFIG, "configs/listops.py"):
        return refuse(wrong)
    command_line.start_logging()
    from harness import cache
    from lra import data, report, train  # here: a wrong flag is answered without loading jax
    from nystromformer_jax import training

    command_line.leave_by(training.leave, training.exit_code_of, at_once=training.ProcessLost)
    training.join(training.HostsConfig(**HOSTS()))
    command_line.start_logging(quiet=not training.is_first())
    first = CONFIG.value.train.seed
    seeds = range(first, first + SEEDS.value)
    configs = {seed: command_line.with_seed(CONFIG.value, seed) for seed in seeds}
    runs = {seed: train.prepare(config) for seed, config in configs.items()}
    if MODE.value == "check":
        if training.is_first():
            print(command_line.CHECKED)
        return 0
    alone = SEEDS.value == 1
    folders = {seed: command_line.run_folder(WORKDIR.value, seed, alone=alone) for seed in seeds}
    if MODE.value == "eval":
        for folder in folders.values():
            if not folder.is_dir():
                return refuse(f"--mode=eval needs a finished run; there is no folder {folder}")
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    task = data.load(runs[first].data)

    results = []
    for seed, run in runs.items():
        folder = folders[seed]
        with (
            training.naming_the_lost(),
            training.Workdir(folder, configs[seed], paths=train.PATHS) as workdir,
        ):
            finished = workdir.result is not None
            score = train.score_again if MODE.value == "eval" else train.train
            results.append(score(run, task, workdir))
        end = f"Everything is in {folder}."
        if finished and MODE.value == "train":
            end = f"It had finished before; nothing was trained. See {folder}."
        if training.is_first():
            print(f"{report.sentence(results[-1])} {end}", flush=True)
    if not alone and training.is_first():
        print(report.sentence_over_seeds(results))
    return 0


if __name__ == "__main__":
    command_line.run(main)
