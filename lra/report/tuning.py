"""Settings that are compared on the validation set only, of which the best is evaluated on the test set."""

import dataclasses
import math
from collections.abc import Hashable, Sequence

from lra.report.groups import Group
from lra.report.published import title_of
from nystromformer_jax.plugins import short_name
from reporting.statistics import summarize
from reporting.tables import NOTHING, Table, format_spread


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Groups with the same value of `--config` and the same parent folder; some are not tested."""

    groups: tuple[Group, ...]

    @property
    def varying(self) -> list[str]:
        """Dotted keys of the config whose values differ."""
        settings = [group.setting for group in self.groups]
        keys = sorted({key for setting in settings for key in setting})
        return [key for key in keys if len({setting.get(key) for setting in settings}) > 1]

    def table(self) -> Table:
        """Returns a table with a row per group."""
        return Table.from_rows(
            {
                "": [
                    {
                        **{key: str(group.setting.get(key, NOTHING)) for key in self.varying},
                        "seeds": f"{len(group.runs)}"
                        + (f", {group.diverged} diverged" if group.diverged else ""),
                        "validation accuracy, %": _validation(group),
                        "": "tested" if group.scored else "",
                    }
                    for group in self.groups
                ]
            }
        )


def tunings(groups: Sequence[Group]) -> list[Tuning]:
    """Returns the sets of groups in which a setting was or will be chosen by validation accuracy."""
    found: dict[Hashable, list[Group]] = {}
    for group in groups:
        run = group.runs[0]
        key = (run.folder.parent, run.config_argument, run.task, group.setting["attention.name"])
        found.setdefault(key, []).append(group)
    return [
        Tuning(tuple(sorted(own, key=_natural)))
        for own in found.values()
        if any(run.state == "validated" for group in own for run in group.runs)
    ]


def select_tested(groups: Sequence[Group]) -> list[Group]:
    """Returns the groups, except candidates that were not chosen or are not tested yet.

    A group of which no run has finished remains.
    """
    candidates = [group for tuning in tunings(groups) for group in tuning.groups]
    untested = [
        g for g in candidates if not g.scored and any(run.state != "unfinished" for run in g.runs)
    ]
    return [group for group in groups if group not in untested]


def markdown(groups: Sequence[Group]) -> list[str]:
    """Returns a section with a table per task and attention; empty if all settings are tested."""
    parts = []
    for tuning in tunings(groups):
        first = tuning.groups[0]
        parts += [
            f"{title_of(first.task)}, {short_name(str(first.setting['attention.name']))}"
            " attention:",
            tuning.table().markdown(),
        ]
    if not parts:
        return []
    return [
        "## Choice of values by validation",
        "Mean ± standard deviation over seeds, at the best step of each run. The test set was evaluated only"
        " for the values that are marked as tested.",
        *parts,
    ]


def _natural(group: Group) -> list[tuple[float, str]]:
    """Returns a sort key of the values of a setting: numbers by size, then text."""
    values = (group.setting[key] for key in sorted(group.setting))
    return [(x if isinstance(x, int | float) else math.inf, str(x)) for x in values]


def _validation(group: Group) -> str:
    values = [100 * run.valid_accuracy for run in group.runs if run.valid_accuracy is not None]
    if not values:
        return NOTHING
    summary = summarize(values)
    return format_spread(summary.mean, summary.deviation)
