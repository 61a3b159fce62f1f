"""Chooses the number of parts of a batch for gradient accumulation.

In a config, `train.accumulation=0` leaves the number to the program. `keep_accumulation` takes that of the
existing run in the folder. Otherwise `choose_accumulation` chooses it for the devices. `config.num_parts`
lowers it if a batch is split over devices.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from nystromformer_jax.durable import read_json

# An undivided batch is meant for devices of 16 GB or more. Of 16 GB, jax allocates 12 by default.
LARGE_DEVICE_BYTES = 11 * 10**9


def choose_accumulation(
    config: Mapping[str, Any], devices: Sequence[jax.Device] | None = None
) -> Mapping[str, Any]:
    """Returns `config` with `train.accumulation` chosen for the devices (default: all) if it is 0.

    The chosen value is 1 on accelerators with at least 16 GB or unknown memory. On other devices it is
    `train.cpu_accumulation`, or its largest divisor that divides the batch.
    """
    train = config.get("train", {})
    if train.get("accumulation") != 0:
        return config
    device, local = (devices or jax.devices())[0], jax.local_devices()[0]
    # Compile-only devices, and those of other hosts, cannot be asked for their memory.
    statistics = local.memory_stats() if local.device_kind == device.device_kind else None
    parts = 1 if is_large(device.platform, statistics) else train.get("cpu_accumulation", 1)
    batch_size = train.get("batch_size")
    if isinstance(parts, int) and isinstance(batch_size, int):  # else the config is invalid
        parts = math.gcd(parts, batch_size)
    return {**config, "train": {**train, "accumulation": parts}}


def is_large(platform: str, memory: Mapping[str, int] | None) -> bool:
    """Returns True for an accelerator with 16 GB or more by its `memory_stats()`, or with unknown memory."""
    known = (memory or {}).get("bytes_limit", LARGE_DEVICE_BYTES)
    return platform != "cpu" and known >= LARGE_DEVICE_BYTES


def keep_accumulation(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns `config`, with a `train.accumulation` of 0 replaced by that of an existing run in `folder`.

    A run with another batch size is not continued, so its number of parts is not used.
    """
    file = folder / "config.json"
    if config["train"].get("accumulation") != 0 or not file.is_file():
        return config
    run = read_json(file)  # may be the config of another program, without `train.accumulation`
    recorded = run.get("train", {}).get("accumulation", 0)
    if run.get("train", {}).get("batch_size") != config["train"].get("batch_size"):
        return config
    return {**config, "train": {**config["train"], "accumulation": recorded}}
