"""Fine-tunes a language model on your files, on GLUE or on IMDb.

python run_finetune.py --config=configs/finetune.py:classification …
python run_finetune.py --config=configs/glue.py:sst2 …
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cli import commands, configs, training
from launch import huge_pages

MODES = {
    "train": "trains, or resumes a run",
    "eval": training.EVAL,
    "predict": "writes to --output the predictions of a finished run for the examples in --input",
    "export": "writes the model as one file that needs only jax and flatbuffers",
    "check": training.CHECK,
    "data": training.DATA,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mode; returns the exit code."""
    return commands.run_to_end("run_finetune.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = training.parser_of("run_finetune.py", __doc__, MODES)
    text = (
        "for --mode=predict: a file like the training file; for GLUE and IMDb a table with a header"
    )
    parser.add_argument("--input", help=text)
    parser.add_argument("--output", help="for --mode=predict: the file of predictions to write")
    text = "for --mode=predict: add the probability of every label; a .jsonl file always has it"
    commands.add_switch(parser, "scores", False, text)
    flags = configs.parse(
        parser,
        arguments,
        "configs/finetune.py:KIND or configs/glue.py:TASK, then [,attention=NAME][,option=value …]",
        "configs/finetune.py:classification",
    )
    if flags.mode == "predict":
        _require_own_flags(flags)
    elif flags.input or flags.output or flags.scores:
        raise ValueError("--input, --output and --scores need --mode=predict")
    if flags.mode in ("predict", "export") and training.has_hosts(flags):
        raise ValueError(
            f"--mode={flags.mode} runs in one process: leave --distributed and --coordinator out"
        )
    training.initialize(flags)
    if flags.mode in ("predict", "export"):
        return _use_model(flags)
    from language.finetune import trainer

    def make_spec(run: Any) -> Any:
        trainer.open_tokenizer(run)  # validates it
        return trainer.make_spec(run, examples=1)

    return training.run(flags, trainer, trainer.load_data, make_spec)


def _use_model(flags: argparse.Namespace) -> int:
    """Writes predictions of a finished run, or exports its model."""
    from dataprep.cache import cache_dir, user_path
    from language.finetune import trainer
    from nystromformer_jax.training import Workdir, enable_compilation_cache

    folder = training.folder_of_run(flags.workdir, flags.config)
    enable_compilation_cache(cache_dir() / "xla")
    if flags.mode == "export":
        config = training.read_config(flags.config, folder, flags.mode)
        Workdir(folder, config, read_only=True).require_result()
        with training.explain_out_of_memory("export on a device with more memory."):
            text = f"Wrote {trainer.write_export(folder)}."
    else:
        source, output = map(user_path, (flags.input, flags.output))
        with training.explain_out_of_memory("predict on a device with more memory."):
            count = trainer.predict(folder, source, output, scores=flags.scores)
        text = f"Wrote predictions for {count:,} examples to {output}."
    print(text)
    return 0


def _require_own_flags(flags: argparse.Namespace) -> None:
    """Raises ValueError unless the flags are those of --mode=predict."""
    if flags.config:
        raise ValueError(
            "--mode=predict uses the model and the config in --workdir: leave --config out"
        )
    if not (flags.workdir and flags.input and flags.output):
        raise ValueError(
            "--mode=predict needs --workdir=RUN of a finished run, --input=FILE and --output=FILE"
        )


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
