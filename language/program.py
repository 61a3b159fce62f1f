"""The command line of fine-tuning. It is outside `language.finetune`, whose import loads jax."""

import itertools
from collections.abc import Callable
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


def _run(given: Any, mode: str, hosts: dict[str, Any]) -> int:
    """Trains, evaluates or exports a model, or validates the config."""
    values = flags.FLAGS
    if values.search or values.seeds > 1:
        return _run_jobs(given, mode, hosts)
    cli.initialize(hosts)
    from dataprep import cache
    from language import finetune
    from nystromformer_jax import training

    evaluates = mode in ("eval", "export")
    folder = cli.run_folder(values.workdir, cli.seed_suffix(given), alone=True)
    run = finetune.prepare(cli.read_config(given, folder, evaluates=evaluates))
    if mode == "check":
        finetune.open_tokenizer(run)
        if training.is_primary():
            print(cli.CHECKED)
        return 0
    training.check_folder(folder, run.config, paths=finetune.PATHS, finished=evaluates)
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    if mode == "export":
        return cli.run_one(
            folder,
            run,
            lambda workdir: {"file": finetune.write_export(run, workdir)},
            lambda result: f"Wrote {result['file']}.",
            paths=finetune.PATHS,
            evaluates=True,
            where="",
        )
    tokens = finetune.open_tokenizer(run)
    with training.sync_errors():
        data = finetune.load_data(run, tokens)
    run.with_task(data.task)  # to validate the config for the labels before a folder is made

    def act(workdir: Any) -> dict[str, Any]:
        if evaluates:
            return finetune.evaluate_checkpoint(run, data, workdir)
        return finetune.train(run, data, tokens, workdir)

    return cli.run_one(
        folder, run, act, finetune.describe_result, paths=finetune.PATHS, evaluates=evaluates
    )


def _run_jobs(given: Any, mode: str, hosts: dict[str, Any]) -> int:
    """Runs the seeds of `--seeds`, or the batch sizes and learning rates of `--search`."""
    values = flags.FLAGS
    if given is None:
        raise ValueError("--seeds and --search need --config.")
    first = cli.first_seed(given)
    if not values.search:
        return cli.run_jobs(
            cli.seeds_of(values.workdir, first, values.seeds),
            cli.run_folder(values.workdir, "-seeds", alone=True),
            hosts,
            mode,
        )
    if values.seeds > 1:
        raise ValueError(
            "--search uses one seed: leave --seeds out, and choose the seed with --config.train.seed."
        )
    for flag in ("batch_sizes", "learning_rates"):
        if not values[flag].value:
            raise ValueError(f"--{flag} needs numbers separated by commas, got ''")
    base = cli.run_folder(values.workdir, "-search", alone=True)
    settings = {
        base / f"batch{batch_size}-rate{rate}-seed{first}": {
            "train.seed": first,
            "train.batch_size": _number("batch_sizes", batch_size, int),
            "optimizer.learning_rate": _number("learning_rates", rate, float),
        }
        for batch_size, rate in itertools.product(values.batch_sizes, values.learning_rates)
    }
    return cli.run_jobs(settings, base, hosts, mode, chooses=True)


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


def _number(flag: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"--{flag} needs numbers separated by commas, got {text!r}") from None
