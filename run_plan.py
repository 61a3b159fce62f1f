"""Estimates the cost of a run: `python run_plan.py --config=configs/listops.py --topology=v5e:4x4`.

Compiles the training step of any config under configs/ and prints memory, communication and time per step.
--topology selects TPUs (`v5e:4x4`, extra `plan`) or GPUs (`h200:1` or `a100:1`, extra `plan-gpu`), which need
not be present. Without it, the step is compiled for the local devices.
"""

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cli import commands, configs, training
from launch import huge_pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles the step and prints the plan; returns the exit code, which is 1 if memory is too small."""
    return commands.run_to_end("run_plan.py", lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = commands.parser_of("run_plan.py", __doc__)
    add = parser.add_argument
    text = "TPUs, such as v5e:4x4, or a number of GPUs, such as h200:1; empty: the local devices"
    add("--topology", default="", help=text)
    text = "cost of a chip per hour, to estimate the cost of the run"
    add("--price", type=commands.number(float, 0), default=0.0, help=text)
    text = "training examples of a fine-tuning run, whose length is in epochs"
    add("--examples", type=commands.number(int, 0), default=0, help=text)
    commands.add_switch(
        parser, "largest_batch", True, "print the largest batch that fits, by doubling"
    )
    form = "any config, as for the training programs"
    flags = configs.parse(parser, arguments, form, "configs/listops.py")
    training.start_logging()
    if flags.topology:  # avoids locking a local TPU
        import jax  # JAX_PLATFORMS has no effect if a plug-in has imported it already

        jax.config.update("jax_platforms", "cpu")
    from nystromformer_jax.training import topology
    from nystromformer_jax.training.plan import describe_plan

    config = flags.config.sections
    if flags.price and not flags.topology:
        raise ValueError("--price needs --topology: the time on local devices is unknown.")
    if flags.examples and not _is_finetuning(config):
        raise ValueError(
            "--examples is for fine-tuning; the length of this config is train.total_steps."
        )
    chip = topology.chip_of(flags.topology) if flags.topology else None
    devices = topology.topology_devices(flags.topology) if flags.topology else None
    text, fits = describe_plan(
        config,
        functools.partial(_spec, devices=devices, flags=flags),
        chip,
        topology=flags.topology,
        price=flags.price,
        largest=flags.largest_batch,
    )
    print(text)
    return 0 if fits else 1


def _is_finetuning(config: Mapping[str, Any]) -> bool:
    return "init" in config and "objective" not in config


def _spec(config: Mapping[str, Any], devices: Any, flags: argparse.Namespace) -> Any:
    """Returns the `TrainSpec` of a config."""
    if "objective" in config:
        from language import pretrain

        run = pretrain.prepare(config, devices)
        tokenizer = pretrain.open_tokenizer(run)
        return pretrain.make_spec(run, pretrain.vocabulary_of(tokenizer) if tokenizer else None)
    if _is_finetuning(config):
        from language.finetune import trainer

        if not flags.examples:
            raise ValueError(
                "The length of fine-tuning is in epochs: pass --examples, the number of training examples."
            )
        return trainer.make_spec(trainer.prepare(config, devices), flags.examples)
    from lra import train

    return train.make_spec(train.prepare(config, devices))


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
