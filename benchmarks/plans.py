"""Memory, communication and time of training steps on devices that need not be present: tables for the docs.

    python -m benchmarks.plans --out results/plans/table
    python -m benchmarks.plans --scaling --out results/plans/scaling

The first plans the paper's five tasks, BERT-base pretraining and `recipe=open`, each with the config's own
batch. The second plans ListOps on 1 to 256 chips of a v5e, with the config's batch and with 2 examples per
chip. With more chips than examples, the length is split, too. Needs libtpu (extra `plan`), and for GPUs the
extra `plan-gpu`. The table is rewritten after every cell; the same command resumes.
"""

import dataclasses
import importlib
import itertools
import json
import sys
from typing import Any

from benchmarks import cells
from reporting.tables import format_3sf
from reporting.tables import markdown as markdown_table

CONFIGS = (
    *("listops", "text", "retrieval", "image", "pathfinder", "pretrain:base"),
    *("listops:nystrom,recipe=open", "text:nystrom,recipe=open"),
)
TOPOLOGIES = ("v5e:4x4", "h200:1")
SCALES = ("1x1", "2x4", "4x4", "8x8", "16x16")  # chips of a v5e
OWN, EACH = "0", "2"  # examples per chip; 0: the config's batch
MIB = 2**20


def main() -> int:
    """Plans the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.plans", __doc__, 3)
    parser.add_argument(
        "--scaling", action="store_true", help="plan ListOps on 1 to 256 chips of a v5e"
    )
    parser.add_argument("--configs", nargs="+", default=CONFIGS)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    given = parser.parse_args()
    import jax

    jax.config.update("jax_platforms", "cpu")
    if given.cell:
        try:
            print(json.dumps(plan(*given.cell)))
        except (ValueError, OSError, ImportError) as error:
            parser.error(str(error))
        return 0
    wanted = list(itertools.product(given.configs, given.topologies, [OWN]))
    if given.scaling:
        shapes = [f"v5e:{shape}" for shape in SCALES]
        wanted = list(itertools.product(["listops"], shapes, [OWN, EACH]))
    cells.require_topologies(parser, {topology for _, topology, _ in wanted})
    return cells.collect(
        "benchmarks.plans",
        given.out,
        {"versions": cells.versions(*cells.COMPILERS)},
        ("config", "topology", "each"),
        wanted,
        markdown=markdown,
    )


def plan(name: str, topology: str, each: str) -> dict[str, Any]:
    """Plans a config's training step on all chips of a topology, with `each` examples per chip."""
    from language import pretrain
    from lra import train
    from nystromformer_jax.training.plan import make_plan
    from nystromformer_jax.training.topology import chip_of, topology_devices

    devices = topology_devices(topology)
    file, _, argument = name.partition(":")
    module = importlib.import_module(f"configs.{file}")
    config: dict[str, Any] = module.get_config(*([argument] if argument else [])).to_dict()
    if is_language := "objective" in config:
        config["data"]["dir"] = "."  # no text is read
        config["model"]["dtype"] = "bfloat16"
    if each != OWN:
        config["train"]["batch_size"] = int(each) * len(devices)
    data = min(len(devices), config["train"]["batch_size"])
    config["mesh"] |= {"data": data, "sequence": len(devices) // data}
    trainer: Any = pretrain if is_language else train
    spec = trainer.make_spec(trainer.prepare(config, devices))
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


def markdown(results: dict[str, Any]) -> str:
    """Returns a table: configs and topologies in rows; memory by kind, communication and time in columns."""
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
                "parameters and optimizer, MiB": f"{(memory['params'] + memory['optimizer']) / MIB:,.1f}"
                if memory
                else "",
                "temporaries": f"{memory['temporaries'] / MIB:,.0f}" if memory else "",
                "total": total if row["fits"] else f"{total} does not fit".strip(),
                "GFLOPs": "" if row["flops"] is None else format_3sf(row["flops"] / 1e9),
                "collectives, MiB": "" if collectives is None else f"{links / MIB:,.2f}",
                "step, ms": f"{1e3 * seconds:.3g}" if known else "",
                "run, hours": f"{row['steps'] * seconds / 3600:,.3g}" if known else "",
            }
        )
    return markdown_table(rows)


if __name__ == "__main__":
    sys.exit(main())
