"""Memory and time of training steps on TPUs, estimated by their compiler: tables for the docs.

    python -m benchmarks.plans --out results/plans/table
    python -m benchmarks.plans --scaling --out results/plans/scaling

The first plans the paper's five tasks and BERT-base pretraining for three topologies, each with the
config's own batch. The second plans ListOps on 1 to 256 chips of a v5e, once with the config's batch and
once with 2 examples per chip. With more chips than examples, the length is split, too. Needs no TPU, but
libtpu (extra `plan`), and for GPUs such as `--topologies h200:1` the extra `plan-gpu`. The table is
rewritten after every cell; the same command resumes.
"""

import dataclasses
import importlib
import itertools
import json
import sys
from typing import Any

from benchmarks import cells, stored
from reporting.tables import markdown as markdown_table

CONFIGS = ("listops", "text", "retrieval", "image", "pathfinder", "pretrain:base")
TOPOLOGIES = ("v5e:4x4", "v5p:2x2x2", "v6e:2x2")
SCALES = {
    1: "1x1",
    2: "1x2",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}
FIXED = ("batch", "per chip")
EACH = 2  # examples per chip
MIB = 2**20
TIMES = "step, ms: computing + communicating"


def main() -> int:
    """Plans the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.plans", __doc__, 2)
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
            planned = scaled(*given.cell) if given.scaling else planned_config(*given.cell)
        except (ValueError, OSError, ImportError) as error:
            parser.error(str(error))
        print(json.dumps(planned))
        return 0
    cells.require_topologies(parser, ["v5e:1x1"] if given.scaling else given.topologies)
    wanted = (
        itertools.product(FIXED, map(str, SCALES))
        if given.scaling
        else itertools.product(given.configs, given.topologies)
    )
    return cells.collect(
        "benchmarks.plans",
        given.out,
        {"versions": stored.versions(*stored.COMPILERS)},
        ("fixed", "chips") if given.scaling else ("config", "topology"),
        wanted,
        arguments=["--scaling"] if given.scaling else [],
        markdown=scaling_markdown if given.scaling else markdown,
    )


def planned_config(name: str, topology: str) -> dict[str, Any]:
    """Plans a config's training step on all chips of a topology."""
    return {"config": name, "topology": topology, **_planned(_config(name), topology)}


def scaled(fixed: str, chips: str) -> dict[str, Any]:
    """Plans ListOps' training step on `chips` chips of a v5e."""
    config, count = _config("listops"), int(chips)
    if fixed == "per chip":
        config["train"]["batch_size"] = EACH * count
    batch_size = config["train"]["batch_size"]
    data = min(count, batch_size)
    config["mesh"] |= {"data": data, "sequence": count // data}
    return {
        "fixed": fixed,
        "chips": count,
        "batch_size": batch_size,
        "sequence": count // data,
        **_planned(config, f"v5e:{SCALES[count]}"),
    }


def _config(name: str) -> dict[str, Any]:
    file, _, argument = name.partition(":")
    module = importlib.import_module(f"configs.{file}")
    config: dict[str, Any] = module.get_config(*([argument] if argument else [])).to_dict()
    if "objective" in config:
        config["data"]["dir"] = "."  # no text is read
        config["model"]["dtype"] = "bfloat16"
    return config


def _planned(config: dict[str, Any], topology: str) -> dict[str, Any]:
    from language import pretrain
    from lra import train
    from nystromformer_jax.training.planning.estimate import make_plan
    from nystromformer_jax.training.topology import chip_of, topology_devices

    trainer: Any = pretrain if "objective" in config else train
    spec = trainer.make_spec(trainer.prepare(config, topology_devices(topology)))
    chip = chip_of(topology)
    plan = make_plan(spec, chip.memory_bytes)
    return {
        "steps": spec.config.train.total_steps,
        "devices": spec.mesh.size,
        "fits": plan.fits,
        "memory": None if plan.memory is None else dataclasses.asdict(plan.memory),
        "memory_bytes": None if plan.memory is None else plan.memory.total,
        "flops": plan.flops,
        "collectives": None
        if plan.collectives is None
        else {kind: dataclasses.asdict(found) for kind, found in plan.collectives.items()},
        "compute_seconds": plan.compute_seconds(chip),
        "link_seconds": plan.link_seconds(chip),
        "reason": plan.reason,
    }


def markdown(results: dict[str, Any]) -> str:
    """Returns a table: configs and topologies in rows; memory by kind, communication and time in columns."""
    kinds = {
        "params": "parameters, MiB",
        "optimizer": "optimizer",
        "batch": "batch",
        "other": "other",
        "temporaries": "temporaries",
        "code": "program",
    }
    rows = []
    for row in results["rows"]:
        memory = row["memory"] or {}
        total = f"{row['memory_bytes'] / MIB:,.0f}" if memory else ""
        cells = {
            "config": f"`{row['config']}`",
            "chips": f"{row['topology']} ({row['devices']})",
            **{
                title: f"{memory[kind] / MIB:,.1f}" if memory else ""
                for kind, title in kinds.items()
            },
            "total": total if row["fits"] else f"{total} does not fit",
            "TFLOPs per chip": f"{row['flops'] / 1e12:.3g}" if row["flops"] else "",
            "collectives, MiB": _mebibytes(row),
            TIMES: _milliseconds(row),
            "run, hours": f"{row['steps'] * _seconds(row) / 3600:,.3g}"
            if _milliseconds(row)
            else "",
        }
        rows.append(cells)
    return markdown_table(rows)


def cost_markdown(results: dict[str, Any]) -> str:
    """Returns a table: configs and topologies in rows; memory, time and chip-hours in columns."""
    rows = []
    for row in results["rows"]:
        hours = row["steps"] * _seconds(row) / 3600 if _milliseconds(row) else None
        size = f"{row['memory_bytes'] / 2**30:,.1f}" if row["memory_bytes"] else ""
        cells = {
            "config": f"`{row['config']}`",
            "chips": f"{row['topology']} ({row['devices']})",
            "memory per chip, GiB": size if row["fits"] else f"{size} does not fit",
            "step, ms": "" if hours is None else f"{1e3 * _seconds(row):,.0f}",
            "steps": f"{row['steps']:,}",
            "run, hours": "" if hours is None else f"{hours:.2f}",
            "chip-hours": "" if hours is None else f"{row['devices'] * hours:.2f}",
        }
        rows.append(cells)
    return markdown_table(rows)


def scaling_markdown(results: dict[str, Any]) -> str:
    """Returns a table: batch rule and chips in rows; FLOPs, bytes and times per chip in columns."""
    rows = []
    for row in sorted(results["rows"], key=lambda row: (FIXED.index(row["fixed"]), row["chips"])):
        fixed = "batch of 32" if row["fixed"] == "batch" else f"{EACH} examples per chip"
        shape = f"{row['chips'] // row['sequence']} × {row['sequence']}"
        cells = {
            "fixed": fixed,
            "chips (data × sequence)": f"{row['chips']} ({shape})",
            "batch": str(row["batch_size"]),
            "GFLOPs per chip": _ratio(row["flops"], 1e9, 2),
            "memory, MiB": _ratio(row["memory_bytes"], MIB, 0),
            "collectives, MiB": _mebibytes(row),
            TIMES: _milliseconds(row),
        }
        rows.append(cells)
    return markdown_table(rows)


def _ratio(number: float | None, unit: float, digits: int) -> str:
    return "" if number is None else f"{number / unit:,.{digits}f}"


def _mebibytes(row: dict[str, Any]) -> str:
    if row["collectives"] is None:
        return ""
    return f"{sum(found['nbytes'] for found in row['collectives'].values()) / MIB:,.2f}"


def _seconds(row: dict[str, Any]) -> float:
    return row["compute_seconds"] + row["link_seconds"]


def _milliseconds(row: dict[str, Any]) -> str:
    if row["compute_seconds"] is None:
        return ""
    return f"{1e3 * row['compute_seconds']:.3g} + {1e3 * row['link_seconds']:.3g}"


if __name__ == "__main__":
    sys.exit(main())
