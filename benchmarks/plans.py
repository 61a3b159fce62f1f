"""Memory, communication and time of training steps on devices that need not be present: tables for the docs.

    python -m benchmarks.plans --out results/plans/table
    python -m benchmarks.plans --scaling --out results/plans/scaling

The first plans the paper's five tasks, BERT-base pretraining and `recipe=mega`, each with the config's own
batch. The second plans ListOps on 1 to 256 chips of a v5e, with the config's batch and with 2 examples per
chip. With more chips than examples, the length is split, too. Needs libtpu (extra `plan`), and for GPUs the
extra `plan-gpu`. The table is rewritten after every cell; the same command resumes.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.steps import config_of, spec_of
from benchmarks.table import COMPILERS, Row, Table, in_own_process, parser_for, use_cpu, versions
from cli.commands import run_to_end
from nystromformer_jax.training.plan import make_plan
from nystromformer_jax.training.topology import chip_of, topology_devices
from reporting.tables import format_3sf
from reporting.tables import markdown as markdown_table

CONFIGS = (
    *("listops", "text", "retrieval", "image", "pathfinder", "pretrain:base"),
    *("listops:nystrom,recipe=mega", "text:nystrom,recipe=mega"),
)
TOPOLOGIES = ("v5e:4x4", "h200:1")
SCALES = ("1x1", "2x4", "4x4", "8x8", "16x16")  # chips of a v5e
OWN, EACH = "0", "2"  # examples per chip; 0: the config's batch
MIB = 2**20


def main() -> int:
    """Plans the missing cells and returns the exit code."""
    parser = parser_for("benchmarks.plans", __doc__)
    parser.add_argument(
        "--scaling", action="store_true", help="plan ListOps on 1 to 256 chips of a v5e"
    )
    parser.add_argument("--configs", nargs="+", default=CONFIGS)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    given = parser.parse_args()
    use_cpu()

    def plan_missing() -> None:
        configs, topologies, sizes = given.configs, given.topologies, [OWN]
        if given.scaling:
            configs, topologies, sizes = ["listops"], [f"v5e:{x}" for x in SCALES], [OWN, EACH]
        for topology in topologies:
            topology_devices(topology)  # raises an error if its compiler is not installed
        settings = {"versions": versions(*COMPILERS)}
        table = Table("benchmarks.plans", given.out, settings)
        cells = itertools.product(configs, topologies, sizes)
        measure = functools.partial(in_own_process, plan)
        table.fill(("config", "topology", "each"), cells, measure)
        table.finish(markdown)

    return run_to_end("benchmarks.plans", plan_missing)


def plan(name: str, topology: str, each: str) -> Row:
    """Plans a config's training step on all chips of a topology, with `each` examples per chip."""
    devices, config = topology_devices(topology), config_of(name)
    if "objective" in config:
        config["model"]["dtype"] = "bfloat16"
    if each != OWN:
        config["train"]["batch_size"] = int(each) * len(devices)
    data = min(len(devices), config["train"]["batch_size"])
    config["mesh"] |= {"data": data, "sequence": len(devices) // data}
    _, spec = spec_of(config, devices)
    chip = chip_of(topology)
    found = make_plan(spec, chip.memory_bytes)
    return {
        "config": name,
        "topology": topology,
        "each": each,
        "devices": len(devices),
        "sequence": len(devices) // data,
        "batch_size": config["train"]["batch_size"],
        "steps": spec.config.train.total_steps,
        **dataclasses.asdict(found),
        "compute_seconds": found.compute_seconds(chip),
        "link_seconds": found.link_seconds(chip),
    }


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table: configs and topologies in rows; memory, communication and time in columns."""
    rows = []
    for row in results["rows"]:
        memory, collectives = row["memory"] or {}, row["collectives"]
        total = f"{sum(memory.values()) / MIB:,.0f}" if memory else ""
        known = row["compute_seconds"] is not None and row["link_seconds"] is not None
        seconds = row["compute_seconds"] + row["link_seconds"] if known else 0.0
        links = sum(kind["nbytes"] for kind in collectives.values()) if collectives else 0
        shape = f"{row['devices'] // row['sequence']} × {row['sequence']}"
        rows.append(
            {
                "config": f"`{row['config']}`",
                "chips (data × sequence)": f"{row['topology']} ({shape})",
                "batch": str(row["batch_size"]),
                "memory, MiB": total if row["fits"] else f"{total} does not fit".strip(),
                "GFLOPs": "" if row["flops"] is None else format_3sf(row["flops"] / 1e9),
                "collectives, MiB": "" if collectives is None else f"{links / MIB:,.2f}",
                "step, ms": f"{1e3 * seconds:.3g}" if known else "",
                "run, hours": f"{row['steps'] * seconds / 3600:,.3g}" if known else "",
            }
        )
    return markdown_table(rows)


if __name__ == "__main__":
    sys.exit(main())
