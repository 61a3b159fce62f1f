"""Turns runs into a report: `python -m language.report runs --out results/language`.

Each folder is a run's, or holds runs of pretraining and fine-tuning at any depth; others are passed
over. Written are `<out>.md`, `<out>.json` with every number, and `<out>-pretraining.png`.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from language.report import page, plots, tables
from language.report.groups import Group, group_runs
from language.report.results import find_runs


def write(groups: Sequence[Group], left_out: Sequence[str], out: Path) -> str:
    """Writes the report's files once all of them could be made; returns the page of Markdown."""
    out.parent.mkdir(parents=True, exist_ok=True)
    pretraining = [group for group in groups if not group.task]
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        picture = f"{out.name}-pretraining.png"
        if pretraining:
            plots.plot_pretraining(
                pretraining, tables.baselines(pretraining), Path(folder, picture)
            )
        texts = {
            "md": page.markdown(groups, left_out, picture),
            "json": json.dumps(page.numbers(groups), indent=2, ensure_ascii=False) + "\n",
        }
        for ending, text in texts.items():
            Path(folder, f"{out.name}.{ending}").write_text(text, encoding="utf-8")
        for file in sorted(Path(folder).iterdir()):
            os.replace(file, out.parent / file.name)
    return texts["md"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report and prints its Markdown; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m language.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, help="runs, or folders that hold runs")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/language"),
        help="where to write, without an ending",
    )
    given = parser.parse_args(arguments)
    if given.out.name in ("", ".."):
        parser.error(f"--out={given.out} is a folder; pass a name in it, as {given.out / 'report'}")
    try:
        groups, left_out = group_runs(find_runs(given.folders))
        for line in left_out:
            print(f"language.report: {line}", file=sys.stderr)
        print(write(groups, left_out, given.out), end="")
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.strerror else str(error))
    except ValueError as error:
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    print(f"language.report: {' '.join(message.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
