"""Time and memory of one self-attention module by length, as in the paper's Table 1.

    python -m benchmarks.efficiency --out results/efficiency/cpu

The module has projections, but no convolution, mask or dropout. Each attention is compiled ahead of time
for each length, batch and pass. Memory is the compiler's figure: arguments, results and temporaries. A
CPU's compiler does not count the temporaries of fused operations (largest for exact attention of a
batch), so on a CPU the peak of the process is used if it is larger. Rows `ema` and `ema-fft` are moving
averages in chunks and by FFT.

Programs that need more than `--memory_limit` are not run, and the table says so. The others of one
length, batch and pass are timed in blocks of calls, in turn. The JSON is rewritten after every length; the
same command resumes.

Source: Xiong et al. 2021, arXiv:2102.03902, Table 1.
Differs: the module has the sizes of BERT-base, 12 heads of 64. Gradients are measured, too.
"""

import argparse
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.errors import JaxRuntimeError

from benchmarks import averages
from benchmarks.compiled import compile_ahead
from benchmarks.table import Row, Table, parser_for, this_machine
from benchmarks.timing import added_bytes, available_bytes, in_blocks
from cli.commands import number, run_to_end
from configs.common import core_arguments
from launch import huge_pages
from nystromformer_jax import SelfAttention, make_core
from nystromformer_jax.support.plugins import is_plugin
from nystromformer_jax.support.spelling import nearest
from nystromformer_jax.training.environment import machine_bytes
from nystromformer_jax.training.errors import is_out_of_memory
from reporting.plotting import WIDTH, label_lines, new_figure, styles_of
from reporting.tables import NOTHING
from reporting.tables import markdown as markdown_table

# Core and options of each attention of the table; nystrom-M and module:Class,option=value are valid, too.
ATTENTIONS: Mapping[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "nystrom-64": {"name": "nystrom", "num_landmarks": 64},
    "nystrom-32": {"name": "nystrom", "num_landmarks": 32},
    "reformer": {"name": "reformer", "num_hashes": 2, "chunk_len": 64},
    "linformer": {"name": "linformer", "projection_size": 256},
    "performer": {"name": "performer", "num_features": 256},
    "longformer": {"name": "longformer", "window": 257, "num_global": 1},
    "linear": {"name": "linear"},
}
PASSES = ("forward", "forward + gradient")
AXES = ("length", "batch", "pass", "attention")
MEMORY_RUNS = 3  # the maximum counts
GIB, MIB = 2**30, 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json` and `.png`; returns the exit code."""
    parser = parser_for("benchmarks.efficiency", __doc__)
    add, positive = parser.add_argument, number(int, 1)
    text = (
        "rows of the table; also nystrom-M for any M, module:Class[,option=value …], ema, ema-fft"
    )
    add("--attentions", nargs="+", default=list(ATTENTIONS), help=text)
    add("--lengths", type=positive, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    add("--batch", type=positive, nargs="+", default=[1], help="batch sizes")
    add("--heads", type=positive, default=12)
    add("--head_dim", type=positive, default=64)
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="dtype of activations")
    text = "timed rounds; each runs a block of every attention"
    add("--repeats", type=positive, default=9, help=text)
    text = "GiB; programs that need more are not run"
    add("--memory_limit", type=number(float, 0), help=text)
    given = parser.parse_args(arguments)
    return run_to_end("benchmarks.efficiency", lambda: _make_table(given, arguments))


def _make_table(given: argparse.Namespace, arguments: Sequence[str] | None) -> None:
    settings = {
        **{name: getattr(given, name) for name in ("heads", "head_dim", "dtype")},
        **this_machine("nystromformer-jax"),
        "repeats": given.repeats,
        "memory_limit_gib": given.memory_limit,
        "timed": "rounds of blocks of calls",
    }
    table = Table("benchmarks.efficiency", given.out, settings, arguments=arguments)
    cells = [
        (length, batch, kind, attention)
        for length in sorted(given.lengths)
        for batch in sorted(given.batch)
        for kind in PASSES
        for attention in given.attentions
    ]
    for length, _, _, attention in cells:  # raises errors now that would otherwise come hours later
        shapes(attention, length, 1, given)
    table.fill(AXES, cells, functools.partial(measure, given), peers=True)
    table.finish(_show)
    plot(table.results, Path(f"{given.out}.png"))


# --- Measurement ----------------------------------------------------------------------------------


def core_options(attention: str) -> dict[str, Any]:
    """Returns the arguments of `make_core` for an attention of the table; empty for `averages.NAMES`.

    Raises:
      ValueError: The attention is unknown.
    """
    if landmarks := re.fullmatch(r"nystrom-([1-9]\d*)", attention):
        return {"name": "nystrom", "num_landmarks": int(landmarks[1])}
    if is_plugin(attention):
        return core_arguments(attention)
    if attention in averages.NAMES:
        return {}
    if attention not in ATTENTIONS:
        raise ValueError(f"Unknown attention {attention!r}{nearest(attention, ATTENTIONS)}")
    return ATTENTIONS[attention]


def module_of(attention: str, given: argparse.Namespace) -> nn.Module:
    """Returns the module of an attention of the table."""
    dtype = jnp.dtype(given.dtype)
    if attention in averages.NAMES:
        return averages.Averages(by_fft=attention == "ema-fft")
    return SelfAttention(given.heads, make_core(**core_options(attention)), dtype=dtype)


def shapes(attention: str, length: int, batch: int, given: argparse.Namespace) -> tuple[Any, Any]:
    """Returns the shapes of the parameters and of the input.

    Raises:
      ValueError: The attention is unknown or does not support the length.
    """
    width, dtype = given.heads * given.head_dim, jnp.dtype(given.dtype)
    x = jax.ShapeDtypeStruct((batch, length, width), dtype)
    init = functools.partial(module_of(attention, given).init, deterministic=True)
    return jax.eval_shape(init, jax.random.key(0), x), x


def measure(
    given: argparse.Namespace, length: int, batch: int, kind: str, attentions: Sequence[str]
) -> list[Row]:
    """Compiles one pass of each attention, times those that fit, and returns a row for each."""
    device = jax.devices()[0]
    statistics = device.memory_stats()
    limit = (statistics or {}).get("bytes_limit") or min(machine_bytes(), available_bytes()) * 0.75
    if given.memory_limit is not None:
        limit = int(given.memory_limit * GIB)
    rows: dict[str, Row] = {}
    cases: dict[str, Callable[[], Any]] = {}
    for attention in attentions:
        function, arguments = _pass(attention, length, batch, kind, given)
        program = compile_ahead(function, arguments, device)
        row: Row = {
            "attention": attention,
            "core": core_options(attention),
            "length": length,
            "batch": batch,
            "pass": kind,
            "argument_bytes": program.argument_bytes,
            "temp_bytes": program.temp_bytes,
            "peak_bytes": program.peak_bytes,
            "flops": program.flops,
            "bytes_accessed": program.bytes_accessed,
            "fits": program.run is not None,
            "reason": program.reason,
            "measured_bytes": None,
            "seconds": None,
        }
        rows[attention] = row
        if row["fits"] and row["peak_bytes"] > limit:
            needed = (
                f"{row['peak_bytes'] / GIB:.3g} GiB, more than the limit of {limit / GIB:.3g} GiB"
            )
            row |= {"fits": False, "reason": f"needs {needed}"}
        elif row["fits"]:
            try:
                case = functools.partial(program.run, *_samples(arguments))
                jax.block_until_ready(case())
            except JaxRuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                # The compiler's figure was too small.
                row |= {"fits": False, "reason": str(error).splitlines()[0], "peak_bytes": None}
                continue
            cases[attention] = case
            if statistics is None:  # on a CPU, the process's memory is measured
                added = [
                    count for _ in range(MEMORY_RUNS) if (count := added_bytes(case)) is not None
                ]
                row["measured_bytes"] = row["argument_bytes"] + max(added) if added else None
    for attention, times in in_blocks(cases, rounds=given.repeats).items():
        rows[attention]["seconds"] = times
    return list(rows.values())


def _pass(
    attention: str, length: int, batch: int, kind: str, given: argparse.Namespace
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the function of a pass, and the shapes of its arguments."""
    module = module_of(attention, given)
    params, x = shapes(attention, length, batch, given)

    def forward(params: Any, x: jax.Array) -> Any:
        return module.apply(params, x, deterministic=True)

    def weighted_sum(params: Any, x: jax.Array, cotangent: jax.Array) -> jax.Array:
        return jnp.sum(forward(params, x) * cotangent, dtype=jnp.float32)

    if kind == "forward":
        return forward, (params, x)
    return jax.value_and_grad(weighted_sum, argnums=(0, 1)), (params, x, x)


def _samples(arguments: Any) -> Any:
    """Returns random values; `init` would need a compilation, and times do not depend on values."""
    random = np.random.default_rng(0)

    def sample(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        scale = 1 if len(leaf.shape) == 3 else (leaf.shape or (1,))[0] ** 0.5
        return jnp.asarray(random.standard_normal(leaf.shape, np.float32) / scale, leaf.dtype)

    return jax.tree.map(sample, arguments)


# --- Tables and picture ---------------------------------------------------------------------------

FIGURES = (("memory", 1 / MIB, "MiB"), ("time", 1e3, "ms"))


def figures(results: Mapping[str, Any]) -> pd.DataFrame:
    """Returns the rows with memory in bytes, time in seconds, and those of softmax attention over both.

    Memory is the compiler's figure or the process's, whichever is larger.
    """
    table = pd.DataFrame(results["rows"])
    table["memory"] = table[["peak_bytes", "measured_bytes"]].astype(float).max(axis=1, skipna=True)
    table.loc[table["peak_bytes"].isna(), "memory"] = np.nan  # memory ran out
    table["time"] = [(row["seconds"] or {}).get("median", np.nan) for row in results["rows"]]
    case = ["pass", "batch", "length"]
    softmax = table[table["attention"] == "softmax"].set_index(case)
    for name, _, _ in FIGURES:
        own = softmax[name].reindex(pd.MultiIndex.from_frame(table[case])).to_numpy()
        table[f"{name} of softmax"] = own / table[name]
    return table


def _show(results: Mapping[str, Any]) -> str:
    """Returns the figures of all rows; the last two columns are softmax attention's over this one's."""
    table = figures(results)
    shown = table[[*AXES, "fits"]].assign(
        **{f"{name}, {unit}": scale * table[name] for name, scale, unit in FIGURES},
        **{column: table[column] for column in (f"{name} of softmax" for name, *_ in FIGURES)},
    )
    return shown.to_string(index=False, float_format="{:.3g}".format)


def headline(results: Mapping[str, Any]) -> str:
    """Returns a short table: time and memory of softmax attention divided by those of each other attention.

    It shows the forward pass with gradient, at batch size 1.
    """
    table = figures(results)
    own = (table["pass"] == PASSES[1]) & (table["batch"] == 1) & (table["attention"] != "softmax")

    def cell(row: Mapping[str, Any]) -> str:
        return ", ".join(_ratio(row, name) or NOTHING for name in ("time", "memory"))

    title = "time, memory of softmax attention over"
    return markdown_table(_by_length(table[own], title, cell))


def _by_length(
    rows: pd.DataFrame, title: str, cell: Callable[[Mapping[str, Any]], str]
) -> pd.DataFrame:
    """Returns a table of cells with a row for each attention, in a column of this title."""
    cells = rows.assign(cell=rows.apply(cell, axis=1)).set_index(["attention", "length"])["cell"]
    table = cells.unstack(sort=False).rename(columns="{:,}".format)
    return table.rename_axis(index=title).reset_index()


def _ratio(row: Mapping[str, Any], name: str) -> str:
    """Returns softmax attention's figure over that of a row; empty if one is unknown."""
    ratio = row[f"{name} of softmax"]
    if pd.isna(ratio):
        return ""
    return f"{ratio:.2f}×" if ratio < 9.995 else f"{ratio:,.1f}×"


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Draws memory and time of the smallest batch against length, on logarithmic axes."""
    table = figures(results)
    table = table[table["batch"] == table["batch"].min()]
    styles = styles_of(list(table["attention"]))
    kinds = table.groupby("pass", sort=False)
    figure = new_figure(WIDTH, 3.2 * len(kinds))
    grid = figure.subplots(len(kinds), 2, squeeze=False)
    for panels, (kind, own) in zip(grid, kinds, strict=True):
        for panel, (name, scale, unit) in zip(panels, FIGURES, strict=True):
            fitting = own[own["fits"] & own[name].notna()]
            for attention, mine in fitting.groupby("attention", sort=False):
                places, values = mine["length"], scale * mine[name]
                style = {"marker": "o", "markersize": 4, **styles[attention]}
                panel.loglog(places, values, label=attention, **style)
            lengths = sorted(own["length"].unique())
            panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
            panel.minorticks_off()
            panel.tick_params(labelsize=8)
            panel.yaxis.set_major_formatter("{x:,g}")
            panel.grid(alpha=0.3)
            title = f"{kind}, batch {own['batch'].iloc[0]}"
            panel.set(xlabel="length", ylabel=f"{name}, {unit}", title=title)
    for panel in grid.flat:
        label_lines(panel)
    figure.savefig(path)


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
