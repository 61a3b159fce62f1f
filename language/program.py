"""The command line of fine-tuning. It is outside `language.finetune`, whose import loads jax."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags

import cli
from cli import print_error

MODES = {
    "train": "trains, or resumes a run",
    "eval": "evaluates a finished run's best checkpoint, and needs only --workdir, which has its config",
    "predict": "writes to --output the predictions of a finished run for the examples in --input",
    "export": "writes the model as one file that needs only jax and flatbuffers",
    "check": "only validates the config",
}


def define(name: str, argument: str, example: str) -> Callable[[list[str]], int]:
    """Defines the flags of a fine-tuning program; returns its `main`.

    Args:
      name: Name of the program's config file.
      argument: Placeholder of the config's argument, for the help text.
      example: A value of the argument, for messages.
    """
    form = f"configs/{name}.py:{argument}[,attention=NAME][,option=value …]"
    config = cli.define_config(form, lambda given: given == name)
    hosts = cli.define_hosts()
    flags.DEFINE_string(
        "workdir",
        None,
        "The run's folder; default runs/<config>-<argument>-seed<k>. With --search the folder of all its"
        " runs; default runs/<config>-<argument>-search.",
    )
    flags.DEFINE_integer(
        "seeds", 1, "Number of seeds to run, from train.seed, each in its own folder.", 1, 1000
    )
    modes = "; ".join(f"{mode} {does}" for mode, does in MODES.items())
    flags.DEFINE_enum("mode", "train", list(MODES), f"{modes}.")
    flags.DEFINE_string(
        "input",
        None,
        "With --mode=predict, a file like the training file; for GLUE and IMDb a table with a header.",
    )
    flags.DEFINE_string("output", None, "With --mode=predict, the file of predictions to write.")
    flags.DEFINE_bool(
        "search",
        False,
        "Run all --batch_sizes × --learning_rates and name the best on validation.",
    )
    flags.DEFINE_list("batch_sizes", ["8", "16", "32"], "For --search.")
    flags.DEFINE_list("learning_rates", ["2e-5", "3e-5", "4e-5", "5e-5"], "For --search.")

    def main(argv: list[str]) -> int:
        """Runs the mode; returns the exit code."""
        values = flags.FLAGS
        for flag in ("batch_sizes", "learning_rates"):
            if flags.FLAGS[flag].present and not values.search:
                return print_error(f"--{flag} needs --search")
        if values.mode == "predict":
            return _predict(argv, hosts())
        if values.input or values.output:
            return print_error("--input and --output need --mode=predict")
        own_config = (
            values.mode in ("eval", "export") and bool(values.workdir) and config.value is None
        )
        if wrong := cli.check_arguments(
            argv, config, f"configs/{name}.py:{example}", own_config=own_config
        ):
            return print_error(wrong)
        return _run(config.value, values.mode, hosts())

    return main


def _run(config: Any, mode: str, hosts: dict[str, Any]) -> int:
    """Trains, evaluates or exports models, or validates the config."""
    cli.initialize(hosts)
    from dataprep import cache
    from language import finetune
    from nystromformer_jax import training

    runs = {
        folder: finetune.prepare(training.keep_accumulation(config, folder))
        for folder, config in _configs(config).items()
    }
    if mode == "check":
        for run in runs.values():
            finetune.open_tokenizer(run)
        if training.is_primary():
            print(cli.CHECKED)
        return 0
    evaluates = mode == "eval"
    cli.check_folders(runs, paths=finetune.PATHS, finished=mode != "train")
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    if mode == "export":
        exported = cli.run_all(
            runs,
            lambda run, workdir: {"file": finetune.write_export(run, workdir)},
            lambda result: f"Wrote {result['file']}.",
            paths=finetune.PATHS,
            evaluates=True,
            where=lambda folder: "",
        )
        return 0 if len(exported) == len(runs) else 1
    first = next(iter(runs.values()))  # runs differ only in seed, batch size and learning rate
    tokens = finetune.open_tokenizer(first)
    with training.sync_errors():
        data = finetune.load_data(first, tokens)
    first.with_task(data.task)  # to validate the config for the labels before a folder is made

    def act(run: Any, workdir: Any) -> dict[str, Any]:
        if evaluates:
            return finetune.evaluate_checkpoint(run, data, workdir)
        return finetune.train(run, data, tokens, workdir)

    results = cli.run_all(
        runs, act, finetune.describe_result, paths=finetune.PATHS, evaluates=evaluates
    )
    if flags.FLAGS.search and results and training.is_primary():
        print(finetune.best_of(results))
    return 0 if len(results) == len(runs) else 1


def _predict(argv: list[str], hosts: dict[str, Any]) -> int:
    """Writes the predictions of a finished run."""
    values = flags.FLAGS
    if len(argv) > 1:
        return print_error(f"unexpected argument {argv[1]!r}")
    for name in ("config", "seeds", "search"):
        if flags.FLAGS[name].present:
            return print_error(
                f"--mode=predict uses the model and the config in --workdir: leave --{name} out"
            )
    if not (values.workdir and values.input and values.output):
        return print_error(
            "--mode=predict needs --workdir=RUN of a finished run, --input=FILE and --output=FILE"
        )
    cli.initialize(hosts)
    from dataprep.cache import cache_dir, user_path
    from language import finetune
    from nystromformer_jax import training

    folder, source, output = map(user_path, (values.workdir, values.input, values.output))
    training.enable_compilation_cache(cache_dir() / "xla")
    count = finetune.predict(finetune.open_trained(folder), source, output)
    print(f"Wrote predictions for {count:,} examples to {output}.")
    return 0


def _configs(given: Any) -> dict[Path, dict[str, Any]]:
    """Returns the configs by run folder: one run, one per seed, or one per batch size and learning rate.

    If `given` is None, the config is that of the run in `--workdir`, or of its seeds.
    """
    values, alone = flags.FLAGS, flags.FLAGS.seeds == 1
    if given is None:
        if values.search:
            raise ValueError("--search needs --config: pass that of the search.")
        folders = {
            cli.run_folder(values.workdir, f"-seed{seed}", alone=alone): seed
            for seed in range(values.seeds)
        }
        return {folder: cli.config_of_run(folder, seed) for folder, seed in folders.items()}
    first = cli.first_seed(given)
    if values.search:
        if values.seeds > 1:
            raise ValueError(
                "--search uses one seed: leave --seeds out, and choose the seed with"
                " --config.train.seed."
            )
        for flag in ("batch_sizes", "learning_rates"):
            if not values[flag].value:
                raise ValueError(f"--{flag} needs numbers separated by commas, got ''")
        base = cli.run_folder(values.workdir, "-search", alone=True)
        return {
            base / f"batch{batch_size}-rate{rate}-seed{first}": cli.config_of(
                given,
                {
                    "train.seed": first,
                    "train.batch_size": _number("batch_sizes", batch_size, int),
                    "optimizer.learning_rate": _number("learning_rates", rate, float),
                },
            )
            for batch_size, rate in itertools.product(values.batch_sizes, values.learning_rates)
        }
    return {
        cli.run_folder(values.workdir, f"-seed{seed}", alone=alone): cli.config_of(
            given, {"train.seed": seed}
        )
        for seed in range(first, first + values.seeds)
    }


def _number(flag: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{flag} needs numbers separated by commas, got {text!r}") from None
