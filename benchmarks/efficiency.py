"""Time and memory of one self-attention module by length, as in the paper's Table 1.

    python -m benchmarks.efficiency --out results/efficiency/cpu
    python -m benchmarks.efficiency --topology=v5e:1x1 --out results/efficiency/v5e  # without a TPU

The module has projections, but no convolution, mask or dropout. Each attention is compiled ahead of time
for each length, batch and pass. Memory is the compiler's figure: arguments, results and temporaries. A
CPU's compiler does not count the temporaries of fused operations (largest for exact attention of a
batch), so on a CPU the peak of the process is used if it is larger. Rows `ema` and `ema-fft` are moving
averages in chunks and by FFT. Rows `block-ema` and `block` are a `GatedEmaBlock` with Nyström attention.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.errors import JaxRuntimeError

from benchmarks import averages, cells
from benchmarks.compiled import Compiled, compile_ahead
from benchmarks.timing import added_bytes, available_bytes, in_blocks
from cli.commands import parser_of, run_to_end
from configs.common import core_arguments
from launch import huge_pages
from nystromformer_jax import SelfAttention, make_core
from nystromformer_jax.support.durable import write_json
from nystromformer_jax.support.plugins import is_plugin
from nystromformer_jax.support.spelling import nearest
from nystromformer_jax.training.errors import is_out_of_memory
from nystromformer_jax.training.topology import topology_devices
from reporting.plotting import add_legend, new_figure, styles_of
from reporting.tables import markdown as markdown_table
from reporting.writer import output_path

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
# Memory and time of softmax attention divided by those of each attention: inference, one sequence, on a
# GTX 1080 Ti.
# Source: Xiong et al. 2021, arXiv:2102.03902, Table 1.
PAPER = {
    ("nystrom-64", 512): (1.5, 1.1),
    ("nystrom-64", 1024): (3.0, 1.8),
    ("nystrom-64", 2048): (5.8, 3.6),
    ("nystrom-64", 4096): (11.5, 5.6),
    ("nystrom-64", 8192): (22.8, 12.7),
    ("nystrom-32", 8192): (26.7, 13.4),
}
PASSES = ("forward", "forward + gradient")
AXES = ("attention", "length", "batch", "pass")
POSITIVE = ("lengths", "batch", "heads", "head_dim", "repeats", "memory_limit")
MEMORY_RUNS = 3  # the maximum counts
MIB = 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json`, `.md` and `.png`; returns the exit code."""
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
    add("--batch", type=int, nargs="+", default=[1], help="batch sizes")
    add("--heads", type=int, default=12)
    add("--head_dim", type=int, default=64)
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="dtype of activations")
    add("--repeats", type=int, default=9, help="timed rounds; each runs a block of every attention")
    add("--memory_limit", type=float, help="GiB; programs that need more are not run")
    add("--topology", help="compile for a TPU such as v5e:1x1 without running; needs libtpu")
    add("--out", type=output_path, required=True, help="output path without extension")
    given = parser.parse_args(arguments)
    command = cells.command_line("benchmarks.efficiency", arguments)
    return run_to_end("benchmarks.efficiency", lambda: _make_table(given, command))


def _make_table(given: argparse.Namespace, command: str) -> None:
    for name in POSITIVE:
        values = getattr(given, name)
        for value in values if isinstance(values, list) else [values]:
            if value is not None and value <= 0:
                raise ValueError(f"--{name} must be positive, got {value}.")
    device = topology_devices(given.topology)[0] if given.topology else jax.devices()[0]
    sizes = {name: getattr(given, name) for name in ("heads", "head_dim", "dtype", "topology")}
    machine = {
        **cells.this_machine("nystromformer-jax"),
        "repeats": given.repeats,
        "memory_limit_gib": given.memory_limit,
        "timed": "rounds of blocks of calls",
    }
    if given.topology:
        machine = {"versions": cells.versions("nystromformer-jax", *cells.COMPILERS)}
    file = Path(f"{given.out}.json")
    settings = {"device": device.device_kind, **sizes, **machine}
    results = cells.open_results(file, settings, axes=AXES)
    done = {tuple(row[axis] for axis in AXES) for row in results["rows"]}
    missing = {
        (length, batch, kind): names
        for length in sorted(given.lengths)
        for batch in sorted(given.batch)
        for kind in PASSES
        if (names := [x for x in given.attentions if (x, length, batch, kind) not in done])
    }
    for (length, _, _), names in missing.items():
        for name in names:
            shapes(
                name, length, 1, given
            )  # raises errors now that would otherwise come hours later
    file.parent.mkdir(parents=True, exist_ok=True)
    if missing:
        cells.add_command(results, command)
    for (length, batch, kind), names in missing.items():
        for row in measure(names, length, batch, kind, device, given):
            results["rows"].append(row)
            print(row["attention"], length, batch, kind, _cell(row), file=sys.stderr, flush=True)
        write_json(file, results)
    text = markdown(results)
    Path(f"{given.out}.md").write_text(text, encoding="utf-8")
    plot(results, Path(f"{given.out}.png"))
    print(text, end="")


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
        return averages.module(attention, given.heads, given.heads * given.head_dim, dtype)
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
    attentions: Sequence[str],
    length: int,
    batch: int,
    kind: str,
    device: jax.Device,
    given: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Compiles one pass of each attention, times those that fit, and returns a row for each."""
    programs = {
        attention: _compile(attention, shapes(attention, length, batch, given), kind, device, given)
        for attention in attentions
    }
    rows = {
        attention: {
            "attention": attention,
            "core": core_options(attention),
            "length": length,
            "batch": batch,
            "pass": kind,
            **program.figures,
            "measured_bytes": None,
            "seconds": None,
        }
        for attention, program in programs.items()
    }
    if not given.topology:
        _time(rows, programs, device, given)
    return list(rows.values())


def _compile(
    attention: str, shapes: Any, kind: str, device: jax.Device, given: argparse.Namespace
) -> Compiled:
    module, (params, x) = module_of(attention, given), shapes

    def forward(params: Any, x: jax.Array) -> Any:
        return module.apply(params, x, deterministic=True)

    def weighted_sum(params: Any, x: jax.Array, cotangent: jax.Array) -> jax.Array:
        return jnp.sum(forward(params, x) * cotangent, dtype=jnp.float32)

    if kind == "forward":
        return compile_ahead(forward, (params, x), device)
    gradient = jax.value_and_grad(weighted_sum, argnums=(0, 1))
    return compile_ahead(gradient, (params, x, x), device)


def _time(
    rows: dict[str, dict[str, Any]],
    programs: Mapping[str, Compiled],
    device: jax.Device,
    given: argparse.Namespace,
) -> None:
    """Writes the seconds, or the reason why they are missing, into `rows`."""
    statistics = device.memory_stats()
    limit = (statistics or {}).get("bytes_limit") or available_bytes() * 3 // 4
    if given.memory_limit:
        limit = int(given.memory_limit * 2**30)
    cases = {}
    for attention, row in rows.items():
        run = programs[attention].run
        if run is None:
            continue
        if row["peak_bytes"] > limit:
            row["fits"] = False
            row["reason"] = (
                f"needs {row['peak_bytes'] / 2**30:.3g} GiB, more than the limit of {limit / 2**30:.3g} GiB"
            )
            continue
        params, x = shapes(attention, row["length"], row["batch"], given)
        try:
            inputs = [_sample(x, seed) for seed in range(1 + (row["pass"] != "forward"))]
            case = functools.partial(run, jax.tree.map(_sample, params), *inputs)
            jax.block_until_ready(case())
            if statistics is None:  # on a CPU, the process's memory is measured
                added = [added_bytes(case) for _ in range(MEMORY_RUNS)]
                known = [count for count in added if count is not None]
                row["measured_bytes"] = row["argument_bytes"] + max(known) if known else None
        except JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            # The compiler's figure was too small.
            row |= {"fits": False, "reason": str(error).splitlines()[0], "peak_bytes": None}
        else:
            cases[attention] = case
    for attention, seconds in in_blocks(cases, rounds=given.repeats).items():
        rows[attention]["seconds"] = seconds


def _sample(leaf: jax.ShapeDtypeStruct, seed: int = 0) -> jax.Array:
    """Returns random values; `init` would need a compilation, and times do not depend on values."""
    values = np.random.default_rng(seed).standard_normal(leaf.shape, np.float32)
    scale = 1 if len(leaf.shape) == 3 else (leaf.shape or (1,))[0] ** 0.5
    return jnp.asarray(values / scale, leaf.dtype)


# --- Tables and picture ---------------------------------------------------------------------------


def memory_of(row: Mapping[str, Any]) -> float | None:
    """Returns the bytes of a row: the compiler's figure or the process's, whichever is larger."""
    known = [row[key] for key in ("peak_bytes", "measured_bytes") if row[key] is not None]
    return max(known) if known and row["peak_bytes"] is not None else None


def time_of(row: Mapping[str, Any]) -> float | None:
    """Returns the median seconds of a row, or the compiler's estimate if nothing ran."""
    seconds: float | None = row["seconds"]["median"] if row["seconds"] else row["optimal_seconds"]
    return seconds


def slopes(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Returns the growth of memory and time: slope 1 is linear in the length, 2 quadratic.

    It is the least-squares slope of log2(figure) against log2(length).
    """
    table = []
    for (attention, kind, batch), own in _by(rows, ("attention", "pass", "batch")).items():
        row = {"attention": attention, "pass": kind, "batch": batch}
        for title, figure in (("memory", memory_of), ("time", time_of)):
            points = [(one["length"], value) for one in own if (value := figure(one))]
            if len(points) > 1:
                lengths, values = np.log2(np.array(points, np.float64)).T
                row[title] = f"{np.polyfit(lengths, values, 1)[0]:.2f}"
        table.append(row)
    return pd.DataFrame(table)


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table for each pass and batch like the paper's Table 1, and the slopes."""
    settings, rows = results["settings"], results["rows"]
    time = "Time is the median, timed in blocks of calls, in turn."
    if settings["topology"]:
        time = "Time is the compiler's estimate."
    parts = [
        cells.describe_source(results),
        f"One module with its projections, without convolution or mask: {settings['heads']} heads of"
        f" {settings['head_dim']}, {settings['dtype']}. Memory is the compiler's figure, or the peak of the"
        f" process if it is larger. {time} × is softmax attention's figure over this one's: above 1 is a"
        " saving.",
    ]
    for (kind, batch), own in _by(rows, ("pass", "batch")).items():
        known = {(row["attention"], row["length"]): row for row in own}
        table = [
            {"attention": name, **{f"{row['length']:,}": _cell(row, known) for row in mine}}
            for (name,), mine in _by(own, ("attention",)).items()
        ]
        if (kind, batch) == ("forward", 1):
            for name in ("nystrom-64", "nystrom-32"):
                ratios = {
                    f"{length:,}": "({}×), ({}×)".format(*found)
                    for (attention, length), found in PAPER.items()
                    if attention == name and (name, length) in known
                }
                table += [{"attention": f"{name}, the paper", **ratios}] if ratios else []
        parts += [f"**{kind}, batch {batch}**", markdown_table(table)]
    parts += ["Slopes of log2(figure) against log2(length), by least squares:"]
    return "\n\n".join([*parts, markdown_table(slopes(rows))])


def headline(results: Mapping[str, Any]) -> str:
    """Returns a short table: time and memory of softmax attention divided by those of each other attention.

    It shows the forward pass with gradient, at batch size 1.
    """
    rows = [r for r in results["rows"] if (r["pass"], r["batch"]) == (PASSES[1], 1)]
    known = {(row["attention"], row["length"]): row for row in rows}
    return markdown_table(
        [
            {
                "time, memory of softmax attention over": name,
                **{
                    f"{row['length']:,}": ", ".join(
                        _ratio(row, known, figure) or "–" for figure in (time_of, memory_of)
                    )
                    for row in own
                },
            }
            for (name,), own in _by(rows, ("attention",)).items()
            if name != "softmax"
        ]
    )


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Draws memory and time of the smallest batch against length, on logarithmic axes."""
    batch = min(row["batch"] for row in results["rows"])
    rows = [row for row in results["rows"] if row["batch"] == batch]
    kinds = _by(rows, ("pass",))
    styles = styles_of([row["attention"] for row in rows])
    figure = new_figure(10, 1.2 + 3.2 * len(kinds))
    grid = figure.subplots(len(kinds), 2, squeeze=False)
    for panels, ((kind,), own) in zip(grid, kinds.items(), strict=True):
        for panel, value_of, scale, title in (
            (panels[0], memory_of, 1 / MIB, "memory, MiB"),
            (panels[1], time_of, 1e3, "time, ms"),
        ):
            for (name,), mine in _by(own, ("attention",)).items():
                points = [
                    (row["length"], scale * value)
                    for row in mine
                    if row["fits"] and (value := value_of(row))
                ]
                if points:
                    panel.loglog(
                        *zip(*points, strict=True),
                        marker="o",
                        markersize=4,
                        label=name,
                        **styles[name],
                    )
            lengths = sorted({row["length"] for row in own})
            panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
            panel.minorticks_off()
            panel.yaxis.set_major_formatter("{x:,g}")
            panel.grid(alpha=0.3)
            panel.set(xlabel="length", ylabel=title, title=f"{kind}, batch {batch}")
    handles, names = grid[0, 0].get_legend_handles_labels()
    add_legend(figure, handles, names, 4)
    figure.savefig(path)


def _by(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def _cell(row: Mapping[str, Any], known: Mapping[Any, Mapping[str, Any]] | None = None) -> str:
    """Returns memory and time of a row and, with `known` rows, softmax attention's over them."""
    memory, time = memory_of(row), time_of(row)
    texts = [] if memory is None else [_digits(memory / MIB, "MiB")]
    texts += [] if time is None else [_digits(1e3 * time, "ms")]
    figures = [f for f, value in ((memory_of, memory), (time_of, time)) if value is not None]
    if known and row["attention"] != "softmax":
        ratios = [_ratio(row, known, figure) for figure in figures]
        texts = [f"{x} ({r})" if r else x for x, r in zip(texts, ratios, strict=True)]
    return ", ".join([*texts, *([] if row["fits"] else ["does not fit"])])


def _ratio(row: Mapping[str, Any], known: Mapping[Any, Mapping[str, Any]], figure: Any) -> str:
    """Returns softmax attention's figure over that of a row; empty if one is unknown."""
    softmax = known.get(("softmax", row["length"]))
    theirs, ours = (figure(softmax), figure(row)) if softmax else (None, None)
    if not (theirs and ours):
        return ""
    ratio = theirs / ours
    return f"{ratio:.2f}×" if ratio < 9.995 else f"{ratio:,.1f}×"


def _digits(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:#.3g} {unit}"


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
