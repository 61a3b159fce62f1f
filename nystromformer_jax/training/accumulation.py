"""Chooses the number of parts of a batch for gradient accumulation.

In a config, `train.accumulation=0` (the default) leaves the number to the program. A run that resumes keeps
its own, and for a new one `choose_accumulation` chooses it for the device. `config.num_parts` lowers it if a
batch is split over devices.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from nystromformer_jax.cores import SoftmaxAttention
from nystromformer_jax.training.environment import cpu_threads

# An undivided batch is meant for devices of 16 GB or more. Of 16 GB, jax allocates 12 by default.
LARGE_DEVICE_BYTES = 11 * 10**9
SMALL_DEVICE_PART_BYTES = 64 * 2**20  # of the widest array of a part
CORE_PART_BYTES = 3 * 2**19  # of the widest array of a part, per core


def choose_accumulation(
    config: Mapping[str, Any],
    sections: Mapping[str, Any],
    mesh: Mesh,
    *,
    core: Any,
    sizes: Any,
    length: int,
    sequences: int = 1,
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Returns `config` and its converted `sections` with `train.accumulation` chosen if it is 0.

    A large accelerator computes a batch at once, and a small one in parts that fit its memory. On a CPU,
    parts that fit the caches are faster than a whole batch and need a fraction of its memory. The chosen
    number is the smallest one with which the widest array of a part has at most 1.5 MiB per core. It divides
    the batch of a device. A part has at least one sequence per core, and one core counts as two.

    Seconds per step on two cores of an AMD EPYC (jax 0.10.2, malloc's defaults, medians of up to four steps),
    by the number of sequences in a part. The chosen number is marked:

        batch                                       1      2      4      8   whole
        ListOps, 32 × 2,048, 1 MiB per sequence  0.88  0.66*   0.68           1.00
        Text, 32 × 4,096, 2 MiB                  1.67  1.50*          1.64    2.67
        Image, 256 × 1,024, 0.5 MiB                    3.54   3.28*   3.60    5.52 (halves)
        Retrieval, 32 pairs of 4,096, 2 MiB            2.36*  2.57            3.61 (halves)
        6 layers of 384, 32 × 128, 0.75 MiB      2.37  2.12   1.93*   2.04    2.55

    Args:
      config: Plain sections, as they are written to `config.json`.
      sections: The same sections as dataclasses.
      mesh: The devices of the run; the batch is split over the axis "data".
      core: The attention. With `pinv_start="batch_max"`, results depend on which examples are computed
        together, so the batch stays whole.
      sizes: Has the attributes `embed_dim`, `mlp_dim` and `num_heads` of the model.
      length: Tokens per sequence.
      sequences: Sequences per example: 2 for pairs that are encoded separately.
    """
    train = sections["train"]
    if train.accumulation:
        return config, dict(sections)
    device, local = mesh.devices.flat[0], jax.local_devices()[0]
    # Compile-only devices, and those of other hosts, cannot be asked for their memory.
    memory = local.memory_stats() if local.device_kind == device.device_kind else None
    rows, cores = train.batch_size // mesh.shape["data"], 1
    limit = part_bytes(memory)
    if device.platform == "cpu":
        if jax.process_count() == 1:  # several hosts may differ, but need one number
            cores = cpu_threads() // len(mesh.local_devices)
        cores = max(2, cores)
        limit = cores * CORE_PART_BYTES
    parts = 1
    if getattr(core, "pinv_start", "exact") != "batch_max":
        nbytes = sequences * widest_array(core, sizes, length)
        parts = smallest_parts(rows, nbytes, limit, at_least=-(-cores // sequences))
    chosen = {"train": dataclasses.replace(train, accumulation=parts)}
    return {**config, "train": {**config["train"], "accumulation": parts}}, {**sections, **chosen}


def widest_array(core: Any, sizes: Any, length: int) -> int:
    """Returns the bytes of the widest float32 array of a sequence: of the MLP or of attention matrices.

    An attention matrix has a column per landmark, or for softmax attention one per token.
    """
    is_softmax = isinstance(core, SoftmaxAttention)
    columns = length if is_softmax else getattr(core, "num_landmarks", 1)
    return 4 * length * max(sizes.mlp_dim, sizes.embed_dim, sizes.num_heads * columns)


def part_bytes(memory: Mapping[str, int] | None) -> int | float:
    """Returns the limit in bytes of the widest array of an accelerator's part, given its `memory_stats()`.

    With 16 GB or more, or with unknown memory, there is no limit.
    """
    known = (memory or {}).get("bytes_limit", LARGE_DEVICE_BYTES)
    return math.inf if known >= LARGE_DEVICE_BYTES else SMALL_DEVICE_PART_BYTES


def smallest_parts(rows: int, example_bytes: int, limit: int | float, at_least: int = 1) -> int:
    """Returns the smallest divisor of `rows` with which a part has at most `limit` bytes.

    If parts of `at_least` examples are larger, returns the largest divisor with so many examples per part.
    """
    divisors = [p for p in range(1, rows + 1) if rows % p == 0 and rows // p >= at_least] or [1]
    fitting = (parts for parts in divisors if rows // parts * example_bytes <= limit)
    return next(fitting, divisors[-1])
