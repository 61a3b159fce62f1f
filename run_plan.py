"""Estimates the cost of a run: `python run_plan.py --config=configs/listops.py --topology=v5e:4x4`.

Compiles the training step of any config under configs/ and prints memory, communication and time per step.
--topology selects TPUs (`v5e:4x4`, extra `plan`) or GPUs (`h200:1` or `a100:1`, extra `plan-gpu`), which need
not be present. Without it, the step is compiled for the local devices.
"""

import os
from collections.abc import Mapping
from typing import Any

from absl import flags

import cli
from cli import print_error

CONFIG = cli.define_config("any config, as for the training programs", lambda name: True)
TOPOLOGY = flags.DEFINE_string(
    "topology",
    "",
    "TPUs, such as v5e:4x4, or a number of GPUs, such as h200:1; empty: the local devices.",
)
PRICE = flags.DEFINE_float(
    "price", 0.0, "Cost of a chip per hour, to estimate the cost of the run.", 0.0
)
EXAMPLES = flags.DEFINE_integer(
    "examples", 0, "Training examples of a fine-tuning run, whose length is in epochs.", 0
)
LARGEST = flags.DEFINE_boolean("largest_batch", True, "Search for the largest batch that fits.")


def main(argv: list[str]) -> int:
    """Compiles the step and prints the plan; returns the exit code, which is 1 if memory is too small."""
    if wrong := cli.check_arguments(argv, CONFIG, "configs/listops.py"):
        return print_error(wrong)
    cli.start_logging()
    if TOPOLOGY.value:  # avoids locking a local TPU
        os.environ["JAX_PLATFORMS"] = "cpu"
    from nystromformer_jax.training import topology
    from nystromformer_jax.training.plan import describe_plan

    config = CONFIG.value.to_dict()
    if PRICE.value and not TOPOLOGY.value:
        return print_error("--price needs --topology: the time on local devices is unknown.")
    if EXAMPLES.value and not _is_finetuning(config):
        return print_error(
            "--examples is for fine-tuning; the length of this config is train.total_steps."
        )
    try:
        chip = topology.chip_of(TOPOLOGY.value) if TOPOLOGY.value else None
        devices = topology.topology_devices(TOPOLOGY.value) if TOPOLOGY.value else None
        text, fits = describe_plan(
            config,
            lambda config: _spec(config, devices),
            chip,
            topology=TOPOLOGY.value,
            price=PRICE.value,
            largest=LARGEST.value,
        )
    except (ValueError, ImportError) as error:
        return print_error(str(error))
    print(text)
    return 0 if fits else 1


def _is_finetuning(config: Mapping[str, Any]) -> bool:
    return "init" in config and "objective" not in config


def _spec(config: Mapping[str, Any], devices: Any) -> Any:
    """Returns the `TrainSpec` of a config."""
    if "objective" in config:
        from language import pretrain

        run = pretrain.prepare(config, devices)
        tokenizer = pretrain.open_tokenizer(run)
        return pretrain.make_spec(run, pretrain.vocabulary_of(tokenizer) if tokenizer else None)
    if _is_finetuning(config):
        from language import finetune

        if not EXAMPLES.value:
            raise ValueError(
                "The length of fine-tuning is in epochs: pass --examples, the number of training examples."
            )
        return finetune.make_spec(finetune.prepare(config, devices), EXAMPLES.value)
    from lra import train

    return train.make_spec(train.prepare(config, devices))


if __name__ == "__main__":
    cli.run(main)
