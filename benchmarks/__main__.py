"""Times ours and other implementations: `python -m benchmarks --out results/benchmarks/cpu`.

The JSON is rewritten after each row; the same command resumes.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

from benchmarks import steps
from benchmarks.attention import MODES, case
from benchmarks.comparison import markdown
from benchmarks.table import Row, Table, this_machine, use_cpu
from benchmarks.timing import in_blocks
from cli.commands import number, parser_of, run_to_end
from launch import huge_pages
from reporting.writer import output_path

# For the training step. Retrieval is missing: Hugging Face has no classifier of pairs.
CONFIGS = ("listops", "listops_short", "text", "image", "pathfinder", "pathx")
LENGTHS = (512, 1024, 2048, 4096, 16_384)
CONV = 33
OPTIONS = ((0, False), (CONV, False), (0, True))  # width of the convolution, with a mask
# Our forms by their name in the table, and the names of the others.
COMPARISONS = {
    "functions": (
        {name: name for name in ("ours", "ours, ridge", "ours, k-means", "exact (JAX)")},
        ["exact (PyTorch)"],
    ),
    "modules": (
        {
            "ours": "our module",
            "ours, ridge": "our module, ridge",
            "projections": "projections",
            "exact": "exact module",
        },
        ["Hugging Face", "lucidrains"],
    ),
}
LONGEST_EXACT = 8192  # at twice that, exact attention takes minutes, and JAX's more than 8 GiB
PACKAGES = ("torch", "transformers", "nystrom-attention")


def main() -> int:
    """Runs the comparisons and returns the exit code."""
    parser = parser_of("benchmarks", __doc__)
    add = parser.add_argument
    add("--only", choices=["attention", "step"], help="run only one of the two")
    text = "multiples of 64, which Hugging Face's module needs"
    add("--lengths", type=_length, nargs="+", default=LENGTHS, help=text)
    text = "timed rounds; each runs a block of every implementation"
    add("--rounds", type=number(int, 1), default=5, help=text)
    text = "configs/NAME.py of the training step"
    add("--config", default="listops", choices=CONFIGS, help=text)
    add("--out", type=output_path, help="output path without extension")
    given = parser.parse_args()
    return run_to_end("benchmarks", lambda: _compare(given))


def _length(text: str) -> int:
    if not text.isdecimal() or not int(text) or int(text) % 64:
        raise argparse.ArgumentTypeError(f"needs multiples of 64, got {text!r}")
    return int(text)


def _compare(given: argparse.Namespace) -> None:
    try:
        import torch

        from benchmarks.peers import call_of
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the package {error.name} is not installed: pip install -e '.[lra,peers]'."
        ) from error
    use_cpu()  # as PyTorch; benchmarks.on_device is for GPUs
    settings = this_machine(*PACKAGES)
    torch.set_num_threads(settings["cpu_threads"])  # as XLA
    settings |= {
        "torch_threads": torch.get_num_threads(),
        "timed": "in blocks of calls, in turn,",
    }
    parts = ("training_step", "attention")
    table = Table("benchmarks", given.out, settings, parts=parts)
    if given.only != "attention":
        config = steps.config_of(given.config)

        def step(task: str) -> Row:
            return {
                "task": task,
                "batch_size": config["train"]["batch_size"],
                "length": config["data"]["max_len"],
                "step": steps.compare(config, given.rounds, "cpu"),
            }

        table.fill(("task",), [(config["data"]["task"],)], step, part="training_step")
    if given.only != "step":
        cells = (
            (length, *options, comparison)
            for length, options, comparison in itertools.product(
                given.lengths, OPTIONS, COMPARISONS
            )
        )
        table.fill(
            ("length", "conv", "masked", "comparison"),
            cells,
            functools.partial(_times, call_of, given.rounds),
            part="attention",
        )
    table.finish(_show)


def _times(
    call_of: Callable[..., Any], rounds: int, length: int, conv: int, masked: bool, comparison: str
) -> Row:
    """Returns the times of a comparison, forward and with gradient."""
    ours, others = COMPARISONS[comparison]
    if length > LONGEST_EXACT:
        ours = {name: form for name, form in ours.items() if not name.startswith("exact")}
        others = [name for name in others if not name.startswith("exact")]
    sizes: dict[str, Any] = {"length": length, "conv": conv, "masked": masked}
    row = {"comparison": comparison, **sizes}
    for mode in MODES:
        calls: dict[str, Callable[[], Any]] = {}
        for name, form in ours.items():
            function, inputs = case(form, mode, batch=1, dtype=jnp.float32, **sizes)
            calls[name] = functools.partial(jax.jit(function), *inputs)
        calls |= {name: call_of(name, mode, batch=1, **sizes) for name in others}
        row[mode] = in_blocks(calls, rounds=rounds)
    return row


def _show(results: dict[str, Any]) -> str:
    """Returns the times of steps, and the tables of the comparisons that were run."""
    run = {row["comparison"] for row in results["attention"]}
    shown = [markdown(results, name) for name in COMPARISONS if name in run]
    if rows := results["training_step"]:
        shown.insert(0, pd.json_normalize(rows).T.to_string(header=False) + "\n")
    return "\n".join(shown)


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
