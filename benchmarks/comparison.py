"""Table of the times of other implementations on a CPU, divided by ours; see `benchmarks.__main__`.

Two comparisons: functions of query, key and value (ours and exact attention of JAX and of PyTorch),
and modules (ours, its projections alone, Hugging Face's and lucidrains').
"""

from collections.abc import Mapping
from typing import Any

from reporting.tables import markdown as markdown_table

COMPARISONS = ("functions", "modules")


def markdown(results: Mapping[str, Any], comparison: str, *, conv: bool = True) -> str:
    """Returns the times forward + gradient without a mask; without `conv`, those without convolution."""
    table = []
    for row in results["attention"]:
        if row["comparison"] != comparison or row["masked"] or (row["conv"] and not conv):
            continue
        seconds = {name: times["median"] for name, times in row["gradient"].items()}
        ours = seconds.pop("ours")
        table.append(
            {
                f"{comparison}, n": f"{row['length']:,}{', convolution' if row['conv'] else ''}",
                "ours, ms": f"{1e3 * ours:.0f}",
                **{name: f"{other / ours:.2f}×" for name, other in seconds.items()},
            }
        )
    return markdown_table(table)
