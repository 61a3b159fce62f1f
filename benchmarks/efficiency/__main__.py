"""Time and memory of one self-attention module by length, as in the paper's Table 1.

    python -m benchmarks.efficiency                     # this machine: results/efficiency/cpu.json .md .png
    python -m benchmarks.efficiency --topology=v5e:1x1  # estimates of a TPU's compiler, without a TPU

The module has projections, but no convolution, mask or dropout. Each attention is compiled ahead of time
for each length, batch and pass. Memory is the compiler's figure: arguments, results and temporaries. A
CPU's compiler does not count the temporaries of fused operations (largest for exact attention of a
batch), so on a CPU the peak of the process is used if it is larger. On other devices the peak is not used,
because it is counted for the whole process and cannot be reset.

Rows `ema` and `ema-fft` are moving averages in chunks and by FFT. Rows `block-ema` and `block` are a
`GatedEmaBlock` with Nyström attention; only `block-ema` has moving averages.

Programs that need more than `--memory_limit` are not run, and the table says so. The others of one
length, batch and pass are timed in turn. The JSON is rewritten after every length; the same command
resumes an interrupted run. An attention added later is timed without the earlier ones. `--fresh` measures
the rows that are asked for again, together, and keeps all others. Resume it without this option.

Source: Xiong et al. 2021, arXiv:2102.03902, Table 1.
Differs: the module has the sizes of BERT-base, 12 heads of 64. Gradients are measured, too.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.efficiency.bench import ATTENTIONS, PASSES, Bench
from benchmarks.efficiency.plot import plot
from benchmarks.efficiency.tables import markdown, row_line
from benchmarks.stored import add_command, command_line, open_results
from command import parser_of, run_to_end
from launch import huge_pages
from nystromformer_jax.training import write_json
from reporting.writer import output_path

BENCH = ("heads", "head_dim", "dtype", "repeats", "memory_limit", "topology")
AXES = ("attention", "length", "batch", "pass")
POSITIVE = ("lengths", "batch", "heads", "head_dim", "repeats", "memory_limit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json`, `.md` and `.png`; returns the exit code."""
    given = _parser().parse_args(arguments)
    command = command_line("benchmarks.efficiency", arguments)
    return run_to_end("benchmarks.efficiency", lambda: _make_table(given, command))


def _make_table(given: argparse.Namespace, command: str) -> None:
    _check_positive(given)
    bench = Bench(**{name: getattr(given, name) for name in BENCH})
    out = given.out or Path("results/efficiency", bench.name)
    file = Path(f"{out}.json")
    results = open_results(file, bench.settings, axes=AXES)
    if given.fresh:
        asked = set(_plan(given, []))
        results["rows"] = [row for row in results["rows"] if _case(row) not in asked]
    plan = _plan(given, results["rows"])
    for attention, length, _, _ in plan:
        bench.shapes(attention, length)  # raises errors now that would otherwise come hours later
    out.parent.mkdir(parents=True, exist_ok=True)
    if plan:
        add_command(results, command)
    _measure(bench, plan, results, file)
    text = markdown(results)
    Path(f"{out}.md").write_text(text, encoding="utf-8")
    plot(results, Path(f"{out}.png"))
    print(text, end="")


def _measure(
    bench: Bench, plan: Sequence[tuple[str, int, int, str]], results: dict[str, Any], file: Path
) -> None:
    """Measures the planned cases into `results`, and writes them to `file` after every length."""
    rows = results["rows"]
    for length in dict.fromkeys(length for _, length, _, _ in plan):
        for batch, kind in dict.fromkeys(case[2:] for case in plan if case[1] == length):
            missing = [case[0] for case in plan if case[1:] == (length, batch, kind)]
            for row in bench.measure(missing, length, batch, kind):
                rows.append(row)
                print(row_line(row), file=sys.stderr, flush=True)
        write_json(file, results)


def _check_positive(given: argparse.Namespace) -> None:
    for name in POSITIVE:
        values = getattr(given, name)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value <= 0:
                raise ValueError(f"--{name} must be positive, got {value}.")


def _plan(
    given: argparse.Namespace, rows: Sequence[Mapping[str, Any]]
) -> list[tuple[str, int, int, str]]:
    """Returns the cases that have no row yet: attention, length, batch and pass, sorted by length."""
    measured = set(map(_case, rows))
    asked = dict.fromkeys(
        (attention, length, batch, kind)
        for length in sorted(given.lengths)
        for batch in sorted(given.batch)
        for kind in PASSES
        for attention in given.attentions
    )
    return [case for case in asked if case not in measured]


def _case(row: Mapping[str, Any]) -> tuple[str, int, int, str]:
    attention, length, batch, kind = (row[axis] for axis in AXES)
    return attention, length, batch, kind


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("benchmarks.efficiency", __doc__)
    add = parser.add_argument
    add(
        "--attentions",
        nargs="+",
        default=list(ATTENTIONS),
        help="rows of the table; also nystrom-M for any M, module:Class[,option=value …], ema, ema-fft,"
        " block-ema and block",
    )
    add("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    add("--batch", type=int, nargs="+", default=[1, 8], help="batch sizes")
    add("--heads", type=int, default=12)
    add("--head_dim", type=int, default=64)
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="dtype of activations")
    add("--repeats", type=int, default=9, help="timed rounds; each runs a block of every attention")
    add("--memory_limit", type=float, help="GiB; programs that need more are not run")
    add("--topology", help="compile for a TPU such as v5e:1x1 without running; needs libtpu")
    add("--out", type=output_path, help="output path without extension")
    add("--fresh", action="store_true", help="measure existing rows again")
    return parser


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
