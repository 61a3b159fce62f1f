"""Plans a run before it is paid for: `python run_plan.py --config=configs/listops.py --topology=v5e:4x4`.

Compiles the real training step of any config under configs/ for a TPU topology that need not be there
(extra `plan`), or without --topology for the devices that are, and says what it needs of each.
"""

import os
from collections.abc import Mapping
from typing import Any

from absl import flags

from harness import command_line
from harness.command_line import refuse

CONFIG = command_line.define_config("any of configs/, as the runners take it", lambda name: True)
TOPOLOGY = flags.DEFINE_string(
    "topology", "", "A TPU's kind and shape, such as v5e:4x4; empty: the devices that are here."
)
PRICE = flags.DEFINE_float(
    "price", 0.0, "What a chip costs an hour; then the run's cost is told.", 0.0
)
EXAMPLES = flags.DEFINE_integer(
    "examples", 0, "Training examples of a fine-tuning, whose steps are counted in epochs.", 0
)
LARGEST = flags.DEFINE_boolean(
    "largest_batch", True, "Whether to look for the largest batch that fits."
)


def main(argv: list[str]) -> int:
    """Plans; returns the exit code: 1 where the step does not fit."""
    if wrong := command_line.check_arguments(argv, CONFIG, "configs/listops.py"):
        return refuse(wrong)
    command_line.start_logging()
    if TOPOLOGY.value:  # nothing runs on a TPU that is there, and only one process may hold it
        os.environ["JAX_PLATFORMS"] = "cpu"
    from nystromformer_jax.training import planning, topology

    config = CONFIG.value.to_dict()
    if PRICE.value and not TOPOLOGY.value:
        return refuse("--price needs --topology: of the devices that are here no time is known.")
    if EXAMPLES.value and not _counts_epochs(config):
        return refuse("--examples is for a fine-tuning: this config says how many steps it takes.")
    try:
        devices = topology.topology_devices(TOPOLOGY.value) if TOPOLOGY.value else None
        chip = topology.chip_of(TOPOLOGY.value) if TOPOLOGY.value else None
        report = planning.report(
            config,
            lambda config: _job(config, devices),
            chip,
            topology=TOPOLOGY.value,
            price=PRICE.value,
            largest=LARGEST.value,
        )
    except (ValueError, OSError, ImportError) as error:
        return refuse(str(error))
    print(report.text)
    return 0 if report.fits else 1


def _counts_epochs(config: Mapping[str, Any]) -> bool:
    """Whether it is a fine-tuning."""
    return "init" in config and "objective" not in config


def _job(config: Mapping[str, Any], devices: Any) -> Any:
    """What the config's own trainer would train."""
    if "objective" in config:
        from language import pretrain

        return pretrain.job(pretrain.prepare(config, devices))
    if _counts_epochs(config):
        from language import finetune

        if not EXAMPLES.value:
            raise ValueError(
                "A fine-tuning's steps are counted in epochs: pass --examples, how many it trains on."
            )
        return finetune.job(finetune.prepare(config, devices), EXAMPLES.value)
    from lra import train

    return train.job(train.prepare(config, devices))


if __name__ == "__main__":
    command_line.run(main)
