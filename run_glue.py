"""Fine-tunes on GLUE or IMDb: `python run_glue.py --config=configs/glue.py:sst2 …`."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from harness import command_line
from harness.command_line import refuse

if TYPE_CHECKING:
    from language.finetune import Run

CONFIG = command_line.define_config(
    "configs/glue.py:TASK[,attention=NAME][,option=value …]", lambda name: name == "glue"
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
    ["train", "eval", "export", "check"],
    "eval scores a finished run's best checkpoint again; export writes it as one file for jax alone;"
    " check tries every value, and does no more.",
)
SEARCH = flags.DEFINE_bool(
    "search",
    False,
    "Runs every --batch_sizes × --learning_rates, and names the best on validation.",
)
BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["8", "16", "32"], "Of --search.")
LEARNING_RATES = flags.DEFINE_list(
    "learning_rates", ["2e-5", "3e-5", "4e-5", "5e-5"], "Of --search."
)


def main(argv: list[str]) -> int:
    """Trains, scores, exports or checks; returns the exit code."""
    if wrong := command_line.check_arguments(argv, CONFIG, "configs/glue.py:sst2"):
        return refuse(wrong)
    command_line.start_logging()
    from harness import cache
    from language import finetune  # here: a wrong flag is answered without loading jax
    from nystromformer_jax import training

    command_line.leave_by(training.leave, training.exit_code_of, at_once=training.ProcessLost)
    training.join(training.HostsConfig(**HOSTS()))
    command_line.start_logging(quiet=not training.is_first())
    configs = _configs()
    runs = {folder: finetune.prepare(config) for folder, config in configs.items()}
    if MODE.value == "check":
        if training.is_first():
            print(command_line.CHECKED)
        return 0
    if missing := [folder for folder in runs if MODE.value != "train" and not folder.is_dir()]:
        return refuse(f"--mode={MODE.value} needs a finished run; there is no folder {missing[0]}")
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    if MODE.value == "export":
        for folder, run in runs.items():
            _export(run, folder)
        return 0
    results, failed = {}, 0
    for folder, run in runs.items():
        try:
            results[folder] = _train_or_score(run, folder)
        except training.LossNotFinite as error:
            if not SEARCH.value:
                raise
            failed = refuse(f"{folder}: {error}", exit_code=1)
    if SEARCH.value and results and training.is_first():
        print(finetune.best_of(results))
    return failed


def _export(run: "Run", folder: Path) -> None:
    from language import finetune
    from nystromformer_jax import training

    with (
        training.naming_the_lost(),
        training.Workdir(folder, run.config, paths=finetune.PATHS) as workdir,
    ):
        file = finetune.write_export(run, workdir)
    if training.is_first():
        print(f"Wrote {file}.", flush=True)


def _train_or_score(run: "Run", folder: Path) -> dict[str, Any]:
    """Gives the result, and says it in a sentence."""
    from language import finetune, glue, tokenizer
    from nystromformer_jax import training

    tokens = tokenizer.load_tokenizer(run.init.folder)
    data = glue.load(run.data, tokens)
    with (
        training.naming_the_lost(),
        training.Workdir(folder, run.config, paths=finetune.PATHS) as workdir,
    ):
        finished = workdir.result is not None
        if MODE.value == "eval":
            result = finetune.score_again(run, data, workdir)
        else:
            result = finetune.train(run, data, tokens, workdir)
    end = f"Everything is in {folder}."
    if finished and MODE.value == "train":
        end = f"It had finished before; nothing was trained. See {folder}."
    if training.is_first():
        print(f"{finetune.sentence(result)} {end}", flush=True)
    return result


def _configs() -> dict[Path, dict[str, Any]]:
    """Every run's folder and config: one, one a seed, or one a batch size and rate."""
    config = CONFIG.value.to_dict()
    first = config["train"]["seed"]
    if SEARCH.value:
        if SEEDS.value > 1:
            raise ValueError(
                "--search tries one seed; leave --seeds out, or set config.train.seed."
            )
        base = command_line.folder_behind(WORKDIR.value, "-search")
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
        command_line.run_folder(WORKDIR.value, seed, alone=alone): command_line.with_seed(
            CONFIG.value, seed
        )
        for seed in range(first, first + SEEDS.value)
    }


def _number(flag: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{flag} needs numbers with commas between them, got {text!r}") from None


if __name__ == "__main__":
    command_line.run(main)
