"""Accuracy on associative recall (MQAR) by number of pairs: a table and a figure of all its tasks."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from lra.data import mqar
from lra.report.groups import Group, labels_of
from lra.report.tables import shortfalls
from reporting.plotting import (
    COLORS,
    GREY,
    add_legend,
    colors_of,
    draw_curve,
    new_figure,
    seeds_together,
)
from reporting.tables import NOTHING, Table, format_spread
from reporting.writer import bullets, picture


def split(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Returns the groups of MQAR and the groups of other tasks."""
    recall = [group for group in groups if mqar.size_of(group.task)]
    return recall, [group for group in groups if not mqar.size_of(group.task)]


def complete(groups: Sequence[Group]) -> list[Group]:
    """Returns the complete groups of MQAR."""
    return [group for group in split(groups)[0] if group.state == "complete"]


def markdown(groups: Sequence[Group], path: Path) -> list[str]:
    """Draws the figure and returns the section of the report; empty without groups."""
    if not groups:
        return []
    parts = ["## Associative recall (MQAR)"]
    if finished := complete(groups):
        file = path.with_name(f"{path.name}-recall.png")
        plot(finished, file)
        parts += [
            "Accuracy of the answers on the test set by number of pairs, in percent. The dotted line is the"
            " accuracy of the most frequent value of the sequence.",
            table(finished).markdown(),
            picture(file, "Accuracy on MQAR against the number of pairs."),
        ]
    if short := shortfalls(groups):
        parts += ["Incomplete runs, which are not shown:", bullets(short)]
    return parts


def table(groups: Sequence[Group]) -> Table:
    """Returns a table: attentions in rows, numbers of pairs in columns, a section per length."""
    cells = {(*_size(group), group.label): group for group in groups}
    pairs = sorted({size for _, size, _ in cells})
    sections = [
        (
            f"{length:,} tokens",
            [
                [label, *(_cell(cells.get((length, size, label))) for size in pairs)]
                for label in labels_of(group for group in groups if _size(group)[0] == length)
            ],
        )
        for length in sorted({length for length, _, _ in cells})
    ]
    return Table(["attention", *(f"{size} pairs" for size in pairs)], sections)


def plot(groups: Sequence[Group], path: Path) -> None:
    """Draws the accuracy against the number of pairs, a panel per length and a line per attention.

    Lines of Nyström attention are solid and those of other attentions dashed. Both have the same colors, in
    opposite order, so that nystrom-128 and softmax, whose lines are often equal, differ in color.
    """
    lengths = sorted({_size(group)[0] for group in groups})
    labels = labels_of(groups)
    nystrom = [label for label in labels if label.startswith("nystrom")]
    others = [label for label in labels if label not in nystrom]
    colors = colors_of(nystrom) | dict(zip(others, itertools.cycle(reversed(COLORS)), strict=False))
    figure = new_figure(max(7.5, 5 * len(lengths)), 5)
    panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for panel, length in zip(panels, lengths, strict=True):
        own = [group for group in groups if _size(group)[0] == length]
        for label in labels:
            found = {_size(group)[1]: group for group in own if group.label == label}
            curve = seeds_together(
                ([size] * len(group.accuracies), list(group.accuracies.values()))
                for size, group in found.items()
            )
            style = ("-", "o") if label in nystrom else ("--", "s")
            draw_curve(panel, curve.steps, curve, color=colors[label], label=label,
                       linestyle=style[0], marker=style[1], markersize=4)  # fmt: skip
        sizes = sorted({_size(group)[1] for group in own})
        trivial = [100 * mqar.most_frequent(size) for size in sizes]
        panel.plot(sizes, trivial, ":", color=GREY, label="most frequent value")
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set(xlabel="pairs", title=f"MQAR, {length:,} tokens")
    panels[0].set_ylabel("accuracy of the answers, %")
    handles, names = panels[0].get_legend_handles_labels()
    add_legend(figure, handles, names, 3)
    figure.savefig(path)


def _cell(group: Group | None) -> str:
    return format_spread(group.summary.mean, group.summary.deviation, 1) if group else NOTHING


def _size(group: Group) -> tuple[int, int]:
    size = mqar.size_of(group.task)
    assert size is not None
    return size
