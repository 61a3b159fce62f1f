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

    folder = cli.run_folder(WORKDIR.value, cli.seed_suffix(CONFIG.value), alone=True)
    run = pretrain.prepare(cli.read_config(CONFIG.value, folder, evaluates=evaluates))
    if MODE.value == "check":
        tokenizer = pretrain.open_tokenizer(run)
        vocabulary = pretrain.vocabulary_of(tokenizer) if tokenizer else None
        training.warn_if_too_large(pretrain.make_spec(run, vocabulary))
        if training.is_primary():
            print(cli.CHECKED)
        return 0
    training.check_folder(folder, run.config, paths=pretrain.PATHS, finished=evaluates)
    training.enable_compilation_cache(cache.cache_dir() / "xla")
    pretrain.open_tokenizer(run)  # validates the tokenizer before the corpus is prepared
    with training.sync_errors():
        data = corpus.load(run.data)
    act = pretrain.evaluate_checkpoint if evaluates else pretrain.train
    return cli.run_one(
        folder,
        run,
        lambda workdir: act(run, data, workdir),
        pretrain.describe_result,
        paths=pretrain.PATHS,
        evaluates=evaluates,
        where=f"Everything is in {folder}, the model in {folder / 'model'}.",
    )


if __name__ == "__main__":
    cli.run(main)
