"""Pretrains a language model: `python run_pretrain.py --config=configs/pretrain.py …`."""

from absl import flags

import cli
from cli import print_error

CONFIG = cli.define_config(
    "configs/pretrain.py[:SIZE[,attention=NAME][,option=value …]]", lambda name: name == "pretrain"
)
HOSTS = cli.define_hosts()
WORKDIR = flags.DEFINE_string(
    "workdir", None, "The run's folder; default runs/<config>-<argument>-seed<k>."
)
MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "check"],
    "eval evaluates a finished run's best checkpoint, and needs only --workdir, which has its config;"
    " check only validates the config.",
)


def main(argv: list[str]) -> int:
    """Trains or evaluates a model, or validates the config; returns the exit code."""
    evaluates = MODE.value == "eval"
    own_config = evaluates and bool(WORKDIR.value) and CONFIG.value is None
    if wrong := cli.check_arguments(
        argv, CONFIG, "configs/pretrain.py:small", own_config=own_config
    ):
        return print_error(wrong)
    cli.initialize(HOSTS())
    from dataprep import cache
    from language import corpus, pretrain
    from nystromformer_jax import training

    seed = 0 if own_config else cli.first_seed(CONFIG.value)
    folder = cli.run_folder(WORKDIR.value, f"-seed{seed}", alone=True)
    if own_config:
        config = cli.config_of_run(folder, seed)
    else:
        config = training.keep_accumulation(
            cli.config_of(CONFIG.value, {"train.seed": seed}), folder
        )
    run = pretrain.prepare(config)
    if MODE.value == "check":
        tokenizer = pretrain.open_tokenizer(run)
        vocabulary = pretrain.vocabulary_of(tokenizer) if tokenizer else None
        training.warn_if_too_large(pretrain.make_spec(run, vocabulary))
        if training.is_primary():
            print(cli.CHECKED)
        return 0
    cli.check_folders({folder: run}, paths=pretrain.PATHS, finished=evaluates)
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    pretrain.open_tokenizer(run)  # validates the tokenizer before the corpus is prepared
    with training.sync_errors():
        data = corpus.load(run.data)
    act = pretrain.evaluate_checkpoint if evaluates else pretrain.train
    results = cli.run_all(
        {folder: run},
        lambda run, workdir: act(run, data, workdir),
        pretrain.describe_result,
        paths=pretrain.PATHS,
        evaluates=evaluates,
        where=lambda folder: f"Everything is in {folder}, the model in {folder / 'model'}.",
    )
    return 0 if results else 1


if __name__ == "__main__":
    cli.run(main)
