"""Writes JSON, table and picture of all timings: `python -m benchmarks --out results/benchmarks/cpu`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.cells import command_line, this_machine
from cli.commands import parser_of, run_to_end
from launch import huge_pages
from reporting.writer import output_path

# For the training step. Retrieval is missing: Hugging Face has no classifier of pairs.
CONFIGS = ("listops", "listops_short", "text", "image", "pathfinder", "pathx")
LANDMARKS = 64  # Hugging Face's module needs lengths that this number divides
PACKAGES = ("torch", "transformers", "nystrom-attention")


def main() -> int:
    """Runs the comparisons and returns the exit code."""
    parser = parser_of("benchmarks", __doc__)
    parser.add_argument("--only", choices=["attention", "step"], help="run only one of the two")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="timed rounds; each runs a block of every implementation",
    )
    parser.add_argument(
        "--config", default="listops", choices=CONFIGS, help="configs/NAME.py of the training step"
    )
    parser.add_argument("--out", type=output_path, help="output path without extension")
    given = parser.parse_args()
    if given.rounds < 1 or any(length < 1 or length % LANDMARKS for length in given.lengths):
        parser.error(f"--rounds must be 1 or more, and --lengths must be multiples of {LANDMARKS}")
    return run_to_end("benchmarks", lambda: _compare(given))


def _compare(given: argparse.Namespace) -> None:
    import jax

    try:
        import torch  # first, so that a missing package gives a short error

        from benchmarks import attention, peers, steps
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the package {error.name} is not installed: pip install -e '.[lra,peers]'."
        ) from error
    jax.config.update("jax_platforms", "cpu")  # as PyTorch; benchmarks.on_device is for GPUs
    peers.use_the_cores_of_xla()
    results: dict[str, Any] = {
        "settings": this_machine(*PACKAGES)
        | {"torch_threads": torch.get_num_threads(), "timed": "in blocks of calls, in turn,"},
        "commands": [command_line("benchmarks")],
    }

    def save() -> None:
        if given.out is not None:
            write(results, given.out)

    if given.only != "attention":
        config = steps.config_of(given.config)
        results["training_step"] = {
            "task": config["data"]["task"],
            "batch_size": config["train"]["batch_size"],
            "length": config["data"]["max_len"],
            "step": steps.compare(config, given.rounds, "cpu"),
        }
        save()
    if given.only != "step":
        results["attention"] = []
        for row in attention.rows(given.lengths, given.rounds):
            results["attention"].append(row)
            save()


def write(results: dict[str, Any], out: Path) -> None:
    """Writes `out`.json and the table."""
    from benchmarks import report
    from nystromformer_jax.support.durable import write_bytes, write_json

    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(Path(f"{out}.json"), results)
    write_bytes(Path(f"{out}.md"), report.markdown(results).encode())


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
