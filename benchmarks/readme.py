"""Writes the numbers of `results/` into the README and the docs: `python -m benchmarks.readme`.

The text between `<!-- numbers: NAME -->` and `<!-- end -->` is replaced by what `BLOCKS[NAME]` returns.
"""

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import ablation, approximation, comparison, efficiency, plans, steps, swap
from cli.commands import run_to_end
from language.report import tables as language
from lra.report import groups
from lra.report import tables as report
from nystromformer_jax.support.durable import write_bytes
from reporting.tables import markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("finetune", "method", "performance", "results", "scaling", "tuning", "when")
    ),
)
SOURCES = ("Xiong", "Chen", "xFormers", "Ma")  # of the published rows in the docs
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _json(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def _runs() -> pd.DataFrame:
    return groups.read([RESULTS])[0]


@functools.cache
def _groups() -> pd.DataFrame:
    return groups.group(_runs())


def _table3() -> pd.DataFrame:
    return report.table3(_groups(), include_partial=True)


def _sections(table: pd.DataFrame) -> pd.Series:
    """Returns the title of the section of each row of a `table3`."""
    return pd.Series(table.index, table.index).replace("", None).ffill()


def _chosen_sources() -> pd.DataFrame:
    """Returns our rows of Table 3, and those of `SOURCES`."""
    table = _table3()
    return table[_sections(table).str.startswith((report.OURS, *SOURCES)).to_numpy()]


@functools.cache
def _language() -> pd.DataFrame:
    return language.group(language.read([RESULTS / "language"])[0])


def _verdict() -> pd.DataFrame:
    """Returns a row per task: the paper's accuracy, and ours with and without attention."""
    table = _table3()
    table = table.set_axis(pd.MultiIndex.from_arrays([_sections(table), table.iloc[:, 0]]))
    columns = {
        "the paper": ("Xiong et al. 2021, Table 3", "Nyströmformer"),
        "our run of its recipe": ("This code, the paper's recipe", "nystrom-64"),
        "recipe=fast": ("This code, recipe=fast", "nystrom-32"),
        "recipe=fast, no attention": ("This code, recipe=fast", "none"),
    }
    rows = pd.DataFrame({name: table.loc[row].iloc[1:] for name, row in columns.items()})
    added = report.control_table(report.control(_groups(), "fast")).set_index("task")
    error = (
        added["error"]
        .str.replace(", 95 % t interval", "")
        .str.replace(", binomial standard error", " (SE)")
    )
    rows["added by attention"] = added.iloc[:, 2] + " " + error
    return rows.rename_axis("test accuracy, %").reset_index()


def _by_iteration(numbers: Any) -> str:
    """Returns a table of residuals and errors by iteration, for a trained model and random inputs."""
    by_input = {
        name: numbers["curves"][name]["by_iteration"]["exact"] for name in ("trained", "random")
    }
    columns = ["iterations"]
    for inputs in ("trained model", "random inputs"):
        columns += [f"residual, {inputs}", "error of the output"]
    rows = []
    for iterations in (2, 4, 6, 8, 10, 12, 16, 20):
        cells = [
            f"{by_input[name][iterations][kind]['median']:.{digits}f}"
            for name in by_input
            for kind, digits in (("residual", 4), ("output_error", 3))
        ]
        rows.append([str(iterations), *cells])
    return markdown(pd.DataFrame(rows, columns=columns))


BLOCKS: Mapping[str, Callable[[], str]] = {
    "ablation": lambda: ablation.markdown(_json("ablation")["rows"]),
    "ablation-mega": lambda: ablation.markdown(_json("ablation-mega")["rows"]),
    "approximation": lambda: approximation.markdown(_json("approximation")),
    "approximation-short": lambda: approximation.headline(_json("approximation")),
    "approximation-trained": lambda: approximation.trained_markdown(_json("approximation")),
    "attention": lambda: "\n".join(
        comparison.markdown(_json("benchmarks/cpu"), name) for name in comparison.COMPARISONS
    ),
    "control": lambda: markdown(report.control_table(report.control(_groups(), "fast"))),
    "control-mega": lambda: markdown(report.control_table(report.control(_groups(), "mega_small"))),
    "language-finetuning": lambda: markdown(language.table_2(_language())),
    "language-gains": lambda: markdown(language.gains_table(_language())),
    "efficiency": lambda: efficiency.headline(_json("efficiency/cpu")),
    "mqar": lambda: markdown(report.recall_table(report.recall_groups(_groups()))),
    "speed": lambda: comparison.markdown(_json("benchmarks/cpu"), "modules", conv=False),
    "table3": lambda: markdown(_chosen_sources()),
    "verdict": lambda: markdown(_verdict()),
    "bert-base": lambda: steps.markdown(_json("steps/bert-base")),
    "plans": lambda: plans.markdown(_json("plans/table")),
    "iterations": lambda: _by_iteration(_json("figures/listops-nystrom")),
    "parts": lambda: steps.markdown(
        *(
            {**_json(f"steps/{file}"), "title": file.replace("-", ", ", 1).replace("-", " ")}
            for file in ("whole", "parts", "whole-huge-pages", "parts-huge-pages")
        )
    ),
    "steps": lambda: steps.markdown(_json("steps/parts-huge-pages")),
    "swap": lambda: swap.markdown(_json("benchmarks/swap")),
}


def filled(text: str) -> str:
    """Returns the text with new numbers in every block.

    Raises:
      KeyError: `BLOCKS` has no block of that name.
    """
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]() + found[3], text)


def main() -> int:
    """Rewrites the pages and returns the exit code."""
    return run_to_end("benchmarks.readme", _rewrite)


def _rewrite() -> None:
    texts = {page: filled(page.read_text(encoding="utf-8")).encode() for page in PAGES}
    for page, text in texts.items():
        write_bytes(page, text)


if __name__ == "__main__":
    sys.exit(main())
