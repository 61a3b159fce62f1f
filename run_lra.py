"""Trains on a task of the Long Range Arena: `python run_lra.py --config=configs/listops.py`."""

import sys
from collections.abc import Sequence

from cli import commands, configs, training
from launch import huge_pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains or evaluates models, or validates the config; returns the exit code."""
    return commands.run_to_end("run_lra.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = training.parser_of("run_lra.py", __doc__, training.MODES)
    text = "evaluate the test set at the end; the same command with it does so after --notest"
    commands.add_switch(parser, "test", True, text)
    flags = configs.parse(
        parser,
        arguments,
        "configs/TASK.py, or configs/TASK.py:ATTENTION[,option=value …]",
        "configs/listops.py",
    )
    training.initialize(flags)
    from lra import data, train

    return training.run(
        flags, train, lambda run: data.load(run.data), train.make_spec, test=flags.test
    )


if __name__ == "__main__":
    huge_pages.restart()  # on Linux, executes the program again, once, with huge pages of malloc
    sys.exit(main())
