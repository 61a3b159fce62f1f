"""Trains on ListOps trees much longer than the benchmark's, with their length split over devices.

    python -m benchmarks.long_listops --length 65536 --devices 8

Without accelerators, `--devices` are virtual CPU devices. Trees of the benchmark become arguments of more
operators until they fill the length. The label is the value of the whole tree. The model is that of
configs/listops.py with Nyström attention.
"""

import argparse
import os
import random
import sys
import time
from typing import Any

from command import parser_of, run_to_end

SHORTEST, LONGEST = 500, 2000  # tokens of the benchmark's trees


def main() -> int:
    """Trains a few steps and returns the exit code."""
    parser = parser_of("benchmarks.long_listops", __doc__)
    parser.add_argument("--length", type=int, default=65_536)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()
    if given.devices < 1 or given.steps < 1:
        parser.error(f"--devices={given.devices} and --steps={given.steps} must be 1 or more")
    if given.length < LONGEST:
        parser.error(
            f"--length={given.length} is too short for one of the benchmark's own trees,"
            f" which have up to {LONGEST} tokens"
        )
    return run_to_end("benchmarks.long_listops", lambda: _train(given))


def _train(given: argparse.Namespace) -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={given.devices}"
    os.environ.setdefault("NPROC", str(4 * given.devices))  # a collective needs a thread per device

    import jax
    import numpy as np

    from configs import listops as config_file
    from lra import train
    from nystromformer_jax.training import peak_bytes, shard_batch

    config = config_file.get_config("nystrom").to_dict()
    config["data"] |= {"max_len": given.length}
    config["model"] |= {"max_len": given.length}
    config["mesh"] |= {"data": 1, "sequence": given.devices}
    config["train"] |= {"batch_size": 1, "total_steps": given.steps}
    run = train.prepare(config, jax.devices()[: given.devices])
    spec = train.make_spec(run)
    state, totals = jax.jit(spec.start)()
    step = spec.step()
    for number in range(given.steps):
        tokens, label = long_tree(given.length, seed=number)
        inputs = np.zeros((1, given.length), np.int32)
        inputs[0, : len(tokens)] = tokens
        batch = {
            "inputs": inputs,
            "mask": np.arange(given.length)[None] < len(tokens),
            "labels": np.array([label], np.int32),
            "weights": np.ones(1, np.float32),
        }
        began = time.perf_counter()
        state, totals, loss = step(state, totals, shard_batch(batch, run.mesh))
        print(
            f"step {number + 1}: {len(tokens):,} tokens on {run.mesh.shape['sequence']} devices, loss"
            f" {float(loss):.4f}, {time.perf_counter() - began:.1f} s"
            f"{' with compilation' if number == 0 else ''}, peak memory {peak_bytes() / 2**30:.2f} GiB",
            flush=True,
        )


def long_tree(length: int, seed: int) -> tuple[Any, int]:
    """Returns the tokens of a tree that almost fills `length`, and its value."""
    import numpy as np

    from lra.data import listops

    draw = random.Random(seed)
    chunk = listops.generate_chunk(seed, 0, SHORTEST, LONGEST)
    short = [listops.decode(np.frombuffer(tree.tokens, np.uint8)) for tree in chunk.trees]
    tree, room = draw.choice(short), True
    while room:  # the tree so far becomes the first argument of another operator
        operator, *arguments = draw.choice(listops.OPERATORS), tree
        used = sum(len(text.split()) for text in arguments) + 2
        while room and len(arguments) < listops.MAX_ARGS:
            another = draw.choice(short)
            used += len(another.split())
            room = used <= length
            arguments += [another] * room
        if len(arguments) > 1:
            tree = f"{operator} {' '.join(arguments)} ]"
    return listops.encode(tree), listops.evaluate(tree)


if __name__ == "__main__":
    sys.exit(main())
