"""Turns runs into the benchmark's report: `python -m lra.report runs --out results/report`.

    python -m lra.report results/listops-nystrom-seed0 --out results/listops-nystrom-seed0/report
    python -m lra.report results runs/ablation --out results/report

Each folder is a run's, or holds runs at any depth. Written are `<out>.md`, `<out>.html`, which needs no
other file, `<out>.json` with every number of the tables, `<out>-curves-TASK.png`, and `<out>-tradeoff.png`
where two settings of a task were timed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.figures import COLORS, colors_of
from lra.report import plots, tables
from lra.report.groups import Group, labels_of, tasks_of
from lra.report.numbers import numbers
from lra.report.page import page
from lra.report.sections import make_sections, markdown
from lra.report.text import read_groups


def write(groups: Sequence[Group], left_out: Sequence[str], out: Path) -> str:
    """Writes the report's files once all of them could be made; returns the page of Markdown."""
    out.parent.mkdir(parents=True, exist_ok=True)
    colors = colors_of(labels_of(groups))
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        pictures = {}
        for task in tasks_of(groups):
            own = [group for group in groups if group.task == task]
            shown = colors if len(colors) <= len(COLORS) else colors_of(labels_of(own))
            pictures[task] = Path(folder, f"{out.name}-curves-{task}.png")
            plots.plot_curves(own, tables.baselines(own)[0], shown, pictures[task])
        if plots.tradeoffs(groups):
            pictures["tradeoff"] = Path(folder, f"{out.name}-tradeoff.png")
            plots.plot_tradeoff(groups, colors, pictures["tradeoff"])
        sections = make_sections(groups, left_out, pictures)
        texts = {
            "md": markdown(sections),
            "html": page(sections, summary(groups)),
            "json": json.dumps(numbers(groups), indent=2, ensure_ascii=False) + "\n",
        }
        for ending, text in texts.items():
            Path(folder, f"{out.name}.{ending}").write_text(text, encoding="utf-8")
        for file in sorted(Path(folder).iterdir()):
            os.replace(file, out.parent / file.name)
    return texts["md"]


def summary(groups: Sequence[Group]) -> str:
    """How much is reported, in a sentence."""
    runs = [run for group in groups for run in group.runs]
    finished = sum(run.result is not None for run in runs)
    return (
        f"{finished} finished of {len(runs)} run{'s' if len(runs) > 1 else ''},"
        f" {len(groups)} setting{'s' if len(groups) > 1 else ''},"
        f" {len(tasks_of(groups))} task{'s' if len(tasks_of(groups)) > 1 else ''}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report and prints its Markdown; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lra.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, help="runs, or folders that hold runs")
    parser.add_argument("--out", type=Path, required=True, help="where to write, without an ending")
    given = parser.parse_args(arguments)
    if given.out.name in ("", ".."):
        parser.error(f"--out={given.out} is a folder; pass a name in it, as {given.out / 'report'}")
    try:
        groups, left_out = read_groups(given.folders)
        for line in left_out:
            print(f"lra.report: {line}", file=sys.stderr)
        print(write(groups, left_out, given.out), end="")
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.strerror else str(error))
    except ValueError as error:
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    print(f"lra.report: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
