"""Pretrains a language model: `python run_pretrain.py --config=configs/pretrain.py …`."""

import sys
from collections.abc import Sequence
from typing import Any

from cli import commands, configs, training
from launch import huge_pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains or evaluates a model, or validates the config; returns the exit code."""
    return commands.run_to_end("run_pretrain.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    flags = configs.parse(
        training.parser_of("run_pretrain.py", __doc__, training.MODES),
        arguments,
        "configs/pretrain.py[:SIZE[,attention=NAME][,option=value …]]",
        "configs/pretrain.py:small",
    )
    training.initialize(flags)
    from language import corpus, pretrain

    def load(run: Any) -> Any:
        pretrain.open_tokenizer(run)  # validates the tokenizer before the corpus is prepared
        return corpus.load(run.data)

    def make_spec(run: Any) -> Any:
        tokenizer = pretrain.open_tokenizer(run)
        return pretrain.make_spec(run, pretrain.vocabulary_of(tokenizer) if tokenizer else None)

    where = "Everything is in {folder}, the model in {folder}/model."
    return training.run(flags, pretrain, load, make_spec, where)


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
