"""Tables of the times of other implementations on a CPU, divided by ours; see `benchmarks.__main__`.

Two comparisons: functions of query, key and value (ours and exact attention of JAX and of PyTorch),
and modules (ours, its projections alone, Hugging Face's and lucidrains').
"""

from collections.abc import Mapping
from typing import Any

from reporting.tables import NOTHING
from reporting.tables import markdown as markdown_table

COMPARISONS = ("functions", "modules")


def markdown(results: Mapping[str, Any]) -> str:
    """Returns tables of medians; ratios above 1 mean that ours is faster."""
    parts = [
        f"Medians in float32, timed {results['settings'].get('timed', 'in turn')} in one process; × is the"
        " other's time divided by ours.\n"
    ]
    steps = [
        {
            "training step": f"{row['task']}, batch {row['batch_size']}, length {row['length']:,}",
            "ours": f"{row['step']['ours']['median']:.3f} s",
            "Hugging Face's modules (PyTorch)": _step_of_peer(row["step"]),
        }
        for row in results.get("training_step", [])
    ]
    parts += [markdown_table(steps)] if steps else []
    for comparison in COMPARISONS:
        rows = [row for row in results.get("attention", []) if row["comparison"] == comparison]
        table = [
            {
                f"{comparison}, n": f"{row['length']:,}",
                "conv": str(row["conv"] or NOTHING),
                "mask": "yes" if row["masked"] else NOTHING,
                **{
                    f"{kind}: {name}": cell
                    for kind in ("forward", "gradient")
                    for name, cell in _cells(row[kind], 1, 2).items()
                },
            }
            for row in rows
        ]
        parts += [markdown_table(table)] if table else []
    return "\n".join(parts)


def _step_of_peer(times: Mapping[str, Any]) -> str:
    if error := times.get("Hugging Face, error"):
        return str(error)
    return f"{times['Hugging Face']['median']:.3f} s, {_ratios(times, 2)[0]}"


def short(results: Mapping[str, Any], comparison: str, *, conv: bool = True) -> str:
    """Returns the times forward + gradient without a mask; without `conv`, those without convolution."""
    table = [
        {
            f"{comparison}, n": f"{row['length']:,}{', convolution' if row['conv'] else ''}",
            **_cells(row["gradient"], 0, 2),
        }
        for row in results["attention"]
        if row["comparison"] == comparison and not row["masked"] and (conv or not row["conv"])
    ]
    return markdown_table(table)


def _cells(times: Mapping[str, Mapping[str, float]], digits: int, of_ratios: int) -> dict[str, str]:
    """Returns our milliseconds, and the ratio of each other implementation."""
    others = [name for name in times if name != "ours"]
    ours = f"{1e3 * times['ours']['median']:.{digits}f}"
    return {"ours, ms": ours, **dict(zip(others, _ratios(times, of_ratios), strict=True))}


def _ratios(times: Mapping[str, Mapping[str, float]], digits: int) -> list[str]:
    ours = times["ours"]["median"]
    return [
        f"{found['median'] / ours:.{digits}f}×" for name, found in times.items() if name != "ours"
    ]
