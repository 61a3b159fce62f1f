"""Fine-tunes on GLUE or IMDb: `python run_glue.py --config=configs/glue.py:sst2 …`."""

import itertools
import sys
from pathlib import Path
from typing import Any

from absl import flags

from harness import command_line
from harness.command_line import refuse

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
    from language import finetune, glue, tokenizer  # here: a wrong flag is answered without jax
    from nystromformer_jax import training

    results, failed = {}, 0
    try:
        command_line.leave_by(training.leave)
        training.join(training.HostsConfig(**HOSTS()))
        command_line.start_logging(quiet=not training.is_first())
        configs = _configs()
        training.enable_compilation_cache(cache.cache_dir() / "xla")
        runs = {folder: finetune.prepare(config) for folder, config in configs.items()}
        if MODE.value == "check":
            if training.is_first():
                print(command_line.CHECKED)
            return 0
        if missing := [folder for folder in runs if MODE.value != "train" and not folder.is_dir()]:
            return refuse(f"--mode={MODE.value} needs a finished run; there is no {missing[0]}")
        for folder, run in runs.items():
            if MODE.value == "export":
                with training.Workdir(folder, configs[folder], paths=finetune.PATHS) as workdir:
                    print(f"Wrote {finetune.write_export(run, workdir)}.", flush=True)
                continue
            tokens = tokenizer.load_tokenizer(run.init.folder)
            data = glue.load(run.data, tokens)
            with (
                training.naming_the_lost(),
                training.Workdir(folder, configs[folder], paths=finetune.PATHS) as workdir,
            ):
                finished = workdir.result is not None
                if MODE.value == "eval":
                    results[folder] = finetune.score_again(run, data, workdir)
                else:
                    try:
                        results[folder] = finetune.train(run, data, tokens, workdir)
                    except training.LossNotFinite as error:
                        if not SEARCH.value:
                            raise
                        failed = refuse(f"{folder}: {error}", exit_code=1)
                        continue
            end = f"Everything is in {folder}."
            if finished and MODE.value == "train":
                end = f"It had finished before; nothing was trained. See {folder}."
            if training.is_first():
                print(f"{finetune.sentence(results[folder])} {end}", flush=True)
    except training.ProcessLost as error:
        command_line.end_now(str(error))
    except training.Interrupted as stop:
        print(stop, file=sys.stderr)
        return stop.exit_code
    except (training.LossNotFinite, training.CannotWrite, training.CheckpointDamaged) as error:
        return refuse(str(error), exit_code=1)
    except (ValueError, OSError, ImportError, training.WorkdirBusy) as error:
        return refuse(str(error))
    if SEARCH.value and results and training.is_first():
        print(finetune.best_of(results))
    return failed


def _configs() -> dict[Path, dict[str, Any]]:
    """Every run's folder and config: one, one a seed, or one a batch size and rate."""
    config = CONFIG.value.to_dict()
    first = config["train"]["seed"]
    base = WORKDIR.value or command_line.default_folder()
    if SEARCH.value:
        if SEEDS.value > 1:
            raise ValueError(
                "--search tries one seed; leave --seeds out, or set config.train.seed."
            )
        return {
            Path(f"{base}-search/batch{batch_size}-rate{rate}-seed{first}"): {
                **config,
                "train": {**config["train"], "batch_size": _number("batch_sizes", batch_size, int)},
                "optimizer": {
                    **config["optimizer"],
                    "learning_rate": _number("learning_rates", rate, float),
                },
            }
            for batch_size, rate in itertools.product(BATCH_SIZES.value, LEARNING_RATES.value)
        }
    if WORKDIR.value and SEEDS.value == 1:
        return {Path(base): config}
    return {
        Path(f"{base}-seed{seed}"): command_line.with_seed(CONFIG.value, seed)
        for seed in range(first, first + SEEDS.value)
    }


def _number(flag: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{flag} needs numbers with commas between them, got {text!r}") from None


if __name__ == "__main__":
    command_line.run(main)
