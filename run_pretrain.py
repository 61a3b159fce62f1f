"""Pretrains a language model: `python run_pretrain.py --config=configs/pretrain.py …`."""

import sys
from collections.abc import Sequence

from cli import configs, training
from launch import huge_pages

MODES = {
    "train": "trains, or resumes a run",
    "eval": training.EVAL,
    "check": training.CHECK,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains or evaluates a model, or validates the config; returns the exit code."""
    return training.run_to_end("run_pretrain.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    flags = configs.parse(
        training.parser_of("run_pretrain.py", __doc__, MODES),
        arguments,
        "configs/pretrain.py[:SIZE[,attention=NAME][,option=value …]]",
        "configs/pretrain.py:small",
        lambda name: name == "pretrain",
    )
    training.initialize(flags)
    from dataprep import cache
    from language import corpus, pretrain
    from nystromformer_jax.training import (
        check_folder,
        enable_compilation_cache,
        is_primary,
        sync_errors,
        warn_if_too_large,
    )

    folder = training.folder_of_run(flags.workdir, flags.config)
    run = pretrain.prepare(training.read_config(flags.config, folder, flags.mode))
    if flags.mode == "check":
        tokenizer = pretrain.open_tokenizer(run)
        vocabulary = pretrain.vocabulary_of(tokenizer) if tokenizer else None
        warn_if_too_large(pretrain.make_spec(run, vocabulary))
        if is_primary():
            print(training.CHECKED)
        return 0
    evaluates = flags.mode == "eval"
    check_folder(folder, run.config, paths=pretrain.PATHS, finished=evaluates)
    enable_compilation_cache(cache.cache_dir() / "xla")
    pretrain.open_tokenizer(run)  # validates the tokenizer before the corpus is prepared
    with sync_errors():
        data = corpus.load(run.data)
    act = pretrain.evaluate_checkpoint if evaluates else pretrain.train
    return training.run_one(
        folder,
        run,
        lambda workdir: act(run, data, workdir),
        pretrain.describe_result,
        paths=pretrain.PATHS,
        evaluates=evaluates,
        where=f"Everything is in {folder}, the model in {folder / 'model'}.",
    )


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
