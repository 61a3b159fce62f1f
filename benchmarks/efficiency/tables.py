"""Tables and log-log slopes from the JSON results of `benchmarks.efficiency`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.efficiency import averages
from benchmarks.stored import describe_source
from reporting.tables import markdown as markdown_table

MIB = 2**20
# Memory and time of softmax attention divided by those of each attention: inference, one sequence, on a
# GTX 1080 Ti.
# Source: Xiong et al. 2021, arXiv:2102.03902, Table 1.
PAPER = {
    "nystrom-64": {
        512: (1.5, 1.1),
        1024: (3.0, 1.8),
        2048: (5.8, 3.6),
        4096: (11.5, 5.6),
        8192: (22.8, 12.7),
    },
    "nystrom-32": {8192: (26.7, 13.4)},
}
# Figures with slopes; "time" is the compiler's estimate if nothing ran.
FIGURES = {
    "flops": "FLOPs",
    "bytes_accessed": "bytes accessed",
    "peak_bytes": "memory",
    "time": "time",
}
Row = Mapping[str, Any]


def figure_of(row: Row, figure: str) -> float | None:
    """Returns a figure of a row; None if unknown."""
    if figure == "time":
        return row["seconds"]["median"] if row["seconds"] else row["optimal_seconds"]
    value: float | None = row[figure]
    if figure == "peak_bytes" and row["measured_bytes"]:
        return max(value or 0, row["measured_bytes"])
    return value


def slopes(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the growth of the figures: slope 1 is linear in the length, 2 quadratic.

    Returns:
      For each attention, pass and batch, and each of `FIGURES`, the least-squares slope of log2(figure)
      against log2(length), and the slopes between consecutive lengths; None for fewer than two lengths.
    """
    found = []
    for attention, kind, batch in dict.fromkeys(
        (row["attention"], row["pass"], row["batch"]) for row in rows
    ):
        grown: dict[str, Any] = {"attention": attention, "pass": kind, "batch": batch}
        for figure in FIGURES:
            points = sorted(
                (row["length"], value)
                for row in rows
                if (row["attention"], row["pass"], row["batch"]) == (attention, kind, batch)
                and (value := figure_of(row, figure))
            )
            grown[figure] = _slope(points) if len(points) > 1 else None
        found.append(grown)
    return found


def _slope(points: Sequence[tuple[int, float]]) -> dict[str, Any]:
    lengths, values = np.log2(np.array(points, np.float64)).T
    return {
        "slope": float(np.polyfit(lengths, values, 1)[0]),
        "lengths": [length for length, _ in points],
        "doublings": (np.diff(values) / np.diff(lengths)).tolist(),
    }


def row_line(row: Row) -> str:
    """Returns a row as a line of text."""
    time = figure_of(row, "time")
    return (
        f"{row['attention']:11} n={row['length']:6} batch={row['batch']} {row['pass']:18}"
        f" {_memory(row)}, {'no time' if time is None else _milliseconds(time)}"
        f"{'' if row['fits'] else ': ' + row['reason']}"
    )


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table for each pass and batch like the paper's Table 1, and the slopes."""
    settings, rows = results["settings"], results["rows"]
    lines = [
        describe_source(results),
        "",
        f"{_subject(settings, rows)} Memory is the compiler's figure for arguments, results and temporaries"
        f"{_definitions(settings)}{_ratio_sentence(rows)}",
        "",
    ]
    for kind, batch in tables(rows):
        lines += [f"**{kind}, batch {batch}**", "", _table(rows, kind, batch)]
    lines += [
        "Slopes of log2(figure) against log2(length), by least squares and from each length to the"
        " next: 1 is linear, 2 quadratic. FLOPs and bytes accessed are the compiler's counts, in which"
        " a loop's body counts once.",
        "",
    ]
    table = [
        [
            grown["attention"],
            grown["pass"],
            str(grown["batch"]),
            *(_slope_cell(grown[figure]) for figure in FIGURES),
        ]
        for grown in slopes(rows)
    ]
    lines.append(
        markdown_table(
            pd.DataFrame(table, columns=["attention", "pass", "batch", *FIGURES.values()])
        )
    )
    return "\n".join(lines)


def headline(results: Mapping[str, Any]) -> str:
    """Returns a short table: time and memory of softmax attention divided by those of each other attention.

    It shows the forward pass with gradient, at batch size 1.

    Raises:
      ValueError: These were not measured.
    """
    kind, batch = "forward + gradient", 1
    rows = rows_at(results["rows"], kind, batch)
    attentions = {attention for attention, _ in rows}
    if "softmax" not in attentions or len(attentions) < 2:
        raise ValueError(
            f"The short table needs softmax and another attention, measured as {kind} with batch {batch}:"
            " run benchmarks.efficiency with --batch 1."
        )
    lengths = sorted({length for _, length in rows})
    table = []
    for attention in dict.fromkeys(attention for attention, _ in rows if attention != "softmax"):
        cells = [
            f"{_ratio(rows, attention, length, 'time') or '–'},"
            f" {_ratio(rows, attention, length, 'peak_bytes') or '–'}"
            for length in lengths
        ]
        table.append([attention, *cells])
    title = "time, memory of softmax attention over"
    return markdown_table(
        pd.DataFrame(table, columns=[title, *(f"{length:,}" for length in lengths)])
    )


def _subject(settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    sizes = f"{settings['heads']} heads of {settings['head_dim']}, {settings['dtype']}."
    if all(row["attention"] in averages.NAMES for row in rows):
        return f"Moving averages, alone (`ema`) or in a block: {sizes}"
    return f"One self-attention module with its projections, without convolution or mask: {sizes}"


def _ratio_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    if all(row["attention"] != "softmax" for row in rows):
        return ""
    return " × is softmax attention's figure over this one's: above 1 is a saving."


def _definitions(settings: Mapping[str, Any]) -> str:
    if settings["topology"]:
        return (
            ", without on-chip memory. Time is the compiler's estimate, without operations for which it"
            " has none."
        )
    is_single = settings["device"] == "cpu" and settings["cpu_threads"] == 1
    time = "Processor time" if is_single else "Time"
    return (
        f", or the peak of the process if it is larger. {time} is the median of up to"
        f" {settings['repeats']} {settings.get('timed', 'runs')}, timed in turn."
    )


def tables(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """Returns each pass and batch."""
    return list(dict.fromkeys((row["pass"], row["batch"]) for row in rows))


def rows_at(rows: Iterable[Row], kind: str, batch: int) -> dict[tuple[str, int], Row]:
    """Returns the rows of one pass and batch, by attention and length."""
    return {
        (row["attention"], row["length"]): row
        for row in rows
        if (row["pass"], row["batch"]) == (kind, batch)
    }


def _table(all_rows: Iterable[Row], kind: str, batch: int) -> str:
    rows = rows_at(all_rows, kind, batch)
    lengths = sorted({length for _, length in rows})
    table = []
    for attention in dict.fromkeys(attention for attention, _ in rows):
        cells = [_cell(rows, attention, length) for length in lengths]
        table.append([attention, *cells])
        paper = PAPER.get(attention, {}) if (kind, batch) == ("forward", 1) else {}
        if any(length in paper for length in lengths):
            cells = [
                "({}×), ({}×)".format(*paper[length]) if length in paper else ""
                for length in lengths
            ]
            table.append([f"{attention}, the paper", *cells])
    return markdown_table(
        pd.DataFrame(table, columns=["attention", *(f"{length:,}" for length in lengths)])
    )


def _cell(rows: Mapping[tuple[str, int], Row], attention: str, length: int) -> str:
    row = rows.get((attention, length))
    if row is None:
        return ""
    texts = []
    time = figure_of(row, "time")
    for figure, text in (
        ("peak_bytes", _memory(row)),
        ("time", None if time is None else _milliseconds(time)),
    ):
        ratio = None if attention == "softmax" else _ratio(rows, attention, length, figure)
        if text is not None:
            texts.append(f"{text} ({ratio})" if ratio else text)
    if not row["fits"]:
        texts.append("does not fit")
    return ", ".join(texts)


def _ratio(
    rows: Mapping[tuple[str, int], Row], attention: str, length: int, figure: str
) -> str | None:
    """Returns softmax attention's figure over this one's."""
    pair = [
        figure_of(rows[key], figure) if (key := (name, length)) in rows else None
        for name in ("softmax", attention)
    ]
    if pair[0] is None or pair[1] is None:
        return None
    ratio = pair[0] / pair[1]
    return f"{ratio:.2f}×" if ratio < 9.995 else f"{ratio:,.1f}×"


def _memory(row: Row) -> str:
    num_bytes = figure_of(row, "peak_bytes")
    if num_bytes is None:
        return "unknown memory"
    mebibytes = num_bytes / MIB
    return f"{mebibytes:.1f} MiB" if mebibytes < 99.95 else f"{mebibytes:,.0f} MiB"


def _milliseconds(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    digits = max(0, 2 - math.floor(math.log10(milliseconds))) if milliseconds > 0 else 0
    return f"{milliseconds:,.{min(digits, 4)}f} ms"


def _slope_cell(slope: Mapping[str, Any] | None) -> str:
    if slope is None:
        return "–"
    return f"{slope['slope']:.2f} ({', '.join(f'{step:.2f}' for step in slope['doublings'])})"
