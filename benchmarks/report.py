"""Tables of timings: times of other implementations divided by ours."""

from typing import Any

import pandas as pd

from benchmarks.cells import describe_source
from reporting.tables import NOTHING
from reporting.tables import markdown as markdown_table


def markdown(results: dict[str, Any]) -> str:
    """Returns tables of medians; ratios above 1 mean that ours is faster."""
    parts = [
        f"{describe_source(results)}\n"
        f"Medians in float32, timed {results['settings'].get('timed', 'in turn')} in one process; × is the"
        " other's time divided by ours.\n"
    ]
    if "training_step" in results:
        row = results["training_step"]
        ours, theirs = (row["step"][name]["median"] for name in ("ours", "Hugging Face"))
        case = f"{row['task']}, batch {row['batch_size']}, length {row['length']:,}"
        parts.append(
            markdown_table(
                [
                    {
                        "training step": case,
                        "ours": f"{ours:.3f} s",
                        "Hugging Face's modules (PyTorch)": f"{theirs:.3f} s, {theirs / ours:.2f}×",
                    }
                ]
            )
        )
    for comparison in ("functions", "modules"):
        rows = [row for row in results.get("attention", []) if row["comparison"] == comparison]
        if not rows:
            continue
        others = [name for name in rows[0]["forward"] if name != "ours"]
        heads = [
            f"{kind}: {name}" for kind in ("forward", "gradient") for name in ["ours, ms", *others]
        ]
        table = []
        for row in rows:
            cells = []
            for kind in ("forward", "gradient"):
                ours = row[kind]["ours"]["median"]
                cells.append(f"{1e3 * ours:.1f}")
                cells += [f"{row[kind][name]['median'] / ours:.2f}×" for name in others]
            conv, mask = str(row["conv"] or NOTHING), "yes" if row["masked"] else NOTHING
            table.append([f"{row['length']:,}", conv, mask, *cells])
        parts.append(
            markdown_table(
                pd.DataFrame(table, columns=[f"{comparison}, n", "conv", "mask", *heads])
            )
        )
    return "\n".join(parts)


def headline(results: dict[str, Any]) -> str:
    """Returns a short table for the README: forward + gradient without a mask, both comparisons."""
    rows = {
        (row["comparison"], row["conv"], row["length"]): row["gradient"]
        for row in results["attention"]
        if not row["masked"]
    }
    comparisons = ("functions", "modules")
    lengths = sorted({length for _, _, length in rows})
    columns = {
        comparison: [name for name in rows[comparison, 0, lengths[0]] if name != "ours"]
        for comparison in comparisons
    }
    heads = ["ours, ms", *columns["functions"], "our module, ms", *columns["modules"]]
    table = []
    for conv in sorted({conv for _, conv, _ in rows}):
        for length in lengths:
            cells = []
            for comparison in comparisons:
                times = rows[comparison, conv, length]
                ours = times["ours"]["median"]
                cells.append(f"{1e3 * ours:.0f}")
                for name in columns[comparison]:
                    ratio = times[name]["median"] / ours
                    cells.append(f"{ratio:.{1 if comparison == 'functions' else 2}f}×")
            name = f"{length:,}{', convolution' if conv else ''}"
            table.append([name, *cells])
    return markdown_table(pd.DataFrame(table, columns=["forward + gradient, n", *heads]))
