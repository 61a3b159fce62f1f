"""Fine-tunes a language model on GLUE or IMDb: `python run_glue.py --config=configs/glue.py:sst2 …`."""

import itertools
from pathlib import Path
from typing import Any

from absl import flags

import cli
from cli import exit_with_error

CONFIG = cli.define_config(
    "configs/glue.py:TASK[,attention=NAME][,option=value …]", lambda name: name == "glue"
)
HOSTS = cli.define_hosts()
WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "The run's folder; default runs/<config>-<argument>-seed<k>. With --search the folder of all its"
    " runs; default runs/<config>-<argument>-search.",
)
SEEDS = flags.DEFINE_integer(
    "seeds", 1, "Number of seeds to run, from train.seed, each in its own folder.", 1, 1000
)
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "export", "check"],
    "eval evaluates a finished run's best checkpoint; export writes it as one file that needs only jax;"
    " check only validates the config.",
)
SEARCH = flags.DEFINE_bool(
    "search",
    False,
    "Run all --batch_sizes × --learning_rates and name the best on validation.",
)
BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["8", "16", "32"], "For --search.")
LEARNING_RATES = flags.DEFINE_list(
    "learning_rates", ["2e-5", "3e-5", "4e-5", "5e-5"], "For --search."
)


def main(argv: list[str]) -> int:
    """Trains, evaluates or exports models, or validates the config; returns the exit code."""
    if wrong := cli.check_arguments(argv, CONFIG, "configs/glue.py:sst2"):
        return exit_with_error(wrong)
    cli.initialize(HOSTS())
    from dataprep import cache
    from language import finetune, glue
    from nystromformer_jax import training

    runs = {folder: finetune.prepare(config) for folder, config in _configs().items()}
    if MODE.value == "check":
        for run in runs.values():
            finetune.open_tokenizer(run)
        if training.is_primary():
            print(cli.CHECKED)
        return 0
    if missing := [folder for folder in runs if MODE.value != "train" and not folder.is_dir()]:
        return exit_with_error(
            f"--mode={MODE.value} needs a finished run; folder {missing[0]} does not exist"
        )
    evaluates = MODE.value == "eval"
    for folder, run in runs.items():
        training.check_folder(folder, run.config, paths=finetune.PATHS, finished=evaluates)
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    if MODE.value == "export":
        for folder, run in runs.items():
            with (
                training.detect_lost_process(),
                training.Workdir(folder, run.config, paths=finetune.PATHS) as workdir,
            ):
                file = finetune.write_export(run, workdir)
            if training.is_primary():
                print(f"Wrote {file}.", flush=True)
        return 0
    first = next(iter(runs.values()))  # runs differ only in seed, batch size and learning rate
    tokens = finetune.open_tokenizer(first)
    data = glue.load(first.data, tokens)

    def act(run: Any, workdir: Any) -> dict[str, Any]:
        if evaluates:
            return finetune.evaluate_checkpoint(run, data, workdir)
        return finetune.train(run, data, tokens, workdir)

    results = cli.run_all(runs, act, finetune.sentence, paths=finetune.PATHS, evaluates=evaluates)
    if SEARCH.value and results and training.is_primary():
        print(finetune.best_of(results))
    return 0 if len(results) == len(runs) else 1


def _configs() -> dict[Path, dict[str, Any]]:
    """Returns the configs by run folder: one run, one per seed, or one per batch size and rate."""
    config = CONFIG.value.to_dict()
    first = config["train"]["seed"]
    if SEARCH.value:
        if SEEDS.value > 1:
            raise ValueError(
                "--search uses one seed: leave --seeds out, or set --config.train.seed."
            )
        base = cli.run_folder(WORKDIR.value, "-search", alone=True)
        return {
            base / f"batch{batch_size}-rate{rate}-seed{first}": {
                **config,
                "train": {**config["train"], "batch_size": _number("batch_sizes", batch_size, int)},
                "optimizer": {
                    **config["optimizer"],
                    "learning_rate": _number("learning_rates", rate, float),
                },
            }
            for batch_size, rate in itertools.product(BATCH_SIZES.value, LEARNING_RATES.value)
        }
    alone = SEEDS.value == 1
    return {
        cli.run_folder(WORKDIR.value, f"-seed{seed}", alone=alone): cli.with_seed(
            CONFIG.value, seed
        )
        for seed in range(first, first + SEEDS.value)
    }


def _number(flag: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{flag} needs numbers separated by commas, got {text!r}") from None


if __name__ == "__main__":
    cli.run(main)
