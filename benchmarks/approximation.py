"""Error of Nyström attention relative to softmax attention, by input and number of landmarks.

    python -m benchmarks.approximation                          # random inputs of several kinds
    python -m benchmarks.approximation --run runs/listops-seed0  # every layer of a trained model

Each number is the relative error of the output by `approximation_error`, averaged over heads and over seeds
or examples. Random inputs have 1,024 tokens, 4 heads of 32 and normal values; `INPUTS` defines the kinds. A
trained model is measured on its queries, keys and values of validation examples with at least 1,024 tokens,
without the convolution. A command replaces its own part of the output file and keeps the others: the part
of the random inputs, or that of the run's task.
"""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from benchmarks.cells import command_line
from cli.commands import parser_of, run_to_end
from lra import train
from lra.figures.trained_run import Trained, open_run
from lra.report.published import TITLES
from nystromformer_jax import rotary_embedding
from nystromformer_jax.attention.approximation import ApproximationErrors, approximation_error
from nystromformer_jax.support.durable import read_json, write_json
from nystromformer_jax.support.values import Selection
from nystromformer_jax.training import config_sha256, describe_environment
from nystromformer_jax.typing import Array, Float
from reporting.tables import NOTHING
from reporting.tables import markdown as markdown_table
from reporting.writer import path_argument

LENGTH, HEADS, HEAD_DIM = 1024, 4, 32
SHAPE = (1, LENGTH, HEADS, HEAD_DIM)
SEEDS = 8
SEGMENT = 32  # tokens of a cluster
MAX_LEN = 4096  # of a trained model
CANDIDATES = 256  # number of validation examples that are searched for long ones

QueryAndKey = tuple[Float[Array, "1 L H D"], Float[Array, "1 L H D"]]


@dataclasses.dataclass(frozen=True)
class Column:
    """Options of `nystrom_attention` in a column of the table."""

    num_landmarks: int
    pinv_iters: int = 6
    landmark_selection: Selection = "segments"

    @property
    def title(self) -> str:
        """Heading of the column."""
        selection = ", k-means" if self.landmark_selection == "kmeans" else ""
        iterations = "" if self.pinv_iters == 6 else f", {self.pinv_iters} iterations"
        return f"M = {self.num_landmarks}{selection}{iterations}"


COLUMNS = (
    *(Column(32), Column(64), Column(128), Column(256), Column(64, 12)),
    *(Column(32, landmark_selection="kmeans"), Column(64, landmark_selection="kmeans")),
)


def gaussian(rng: Array, std: float) -> QueryAndKey:
    """Returns independent normal queries and keys; the logits have the standard deviation `std` ** 2."""
    query, key = std * jax.random.normal(rng, (2, *SHAPE))
    return query, key


def retrieval(rng: Array) -> QueryAndKey:
    """Returns queries equal to the keys, drawn from N(0, 1.5²): each token attends to itself."""
    key = 1.5 * jax.random.normal(rng, SHAPE)
    return key, key


def smooth(rng: Array) -> QueryAndKey:
    """Returns queries equal to the keys, smooth functions of the position.

    A feature is 1.5 √2 cos(position · frequency + phase), with a frequency of standard deviation 1 / 16 and
    a uniform phase per head and feature. The correlation of tokens n positions apart is near
    exp(-(n / 16)² / 2), so each token attends to about 17 tokens around it.
    """
    frequency_rng, phase_rng = jax.random.split(rng)
    frequency = jax.random.normal(frequency_rng, (1, 1, HEADS, HEAD_DIM)) / 16
    phase = jax.random.uniform(phase_rng, (1, 1, HEADS, HEAD_DIM), maxval=2 * jnp.pi)
    key = 1.5 * 2**0.5 * jnp.cos(jnp.arange(LENGTH)[None, :, None, None] * frequency + phase)
    return key, key


def clusters(rng: Array, *, shift: int = 0, shuffled: bool = False) -> QueryAndKey:
    """Returns queries and keys near the centers of 32 clusters of 32 tokens.

    Centers are drawn from N(0, 1.5²). Queries and keys add independent noise from N(0, 0.3²). Clusters are
    contiguous, and each fills one of 32 segments. `shift` rotates the tokens, so that each segment contains
    the end of one cluster and the start of the next. `shuffled` permutes the tokens.
    """
    center_rng, order_rng, noise_rng = jax.random.split(rng, 3)
    centers = 1.5 * jax.random.normal(center_rng, (1, LENGTH // SEGMENT, HEADS, HEAD_DIM))
    tokens = jnp.roll(jnp.repeat(centers, SEGMENT, axis=1), shift, axis=1)
    if shuffled:
        tokens = jax.random.permutation(order_rng, tokens, axis=1)
    query_noise, key_noise = 0.3 * jax.random.normal(noise_rng, (2, *SHAPE))
    return tokens + query_noise, tokens + key_noise


def sink(rng: Array) -> QueryAndKey:
    """Returns standard normal inputs with 1 added to all queries, and a first key of 1.3 in every feature.

    The first key receives 0.39 of the attention weights on average.
    """
    query, key = jax.random.normal(rng, (2, *SHAPE))
    return query + 1, key.at[:, 0].set(1.3)


def rotary(rng: Array, inputs: Callable[[Array], QueryAndKey]) -> QueryAndKey:
    """Returns other inputs after rotary embeddings of queries and keys."""
    query, key = inputs(rng)
    return rotary_embedding(query), rotary_embedding(key)


INPUTS: Mapping[str, Callable[[Array], QueryAndKey]] = {
    "Gaussian, σ = ½": functools.partial(gaussian, std=0.5),
    "Gaussian, σ = 1": functools.partial(gaussian, std=1.0),
    "Gaussian, σ = 2": functools.partial(gaussian, std=2.0),
    "query = key, σ = 1.5": retrieval,
    "smooth in position": smooth,
    "smooth in position, rotary": functools.partial(rotary, inputs=smooth),
    "clusters, one per segment": clusters,
    "clusters, in order": functools.partial(clusters, shift=13),
    "clusters, in order, rotary": functools.partial(
        rotary, inputs=functools.partial(clusters, shift=13)
    ),
    "clusters, shuffled": functools.partial(clusters, shuffled=True),
    "one sink key": sink,
}

# Rows of README's table: random inputs, and the task of a trained model, of which the first layer is shown.
HEADLINE = ("clusters, in order", "clusters, shuffled", "Gaussian, σ = 2")
HEADLINE_TASK = "listops"


@functools.partial(jax.jit, static_argnames="column")
def _errors(
    query: Array, key: Array, value: Array, mask: Array | None, column: Column
) -> ApproximationErrors:
    return approximation_error(query, key, value, mask=mask, **dataclasses.asdict(column))


def make_row(
    name: str, calls: Iterable[tuple[Array, Array, Array, Array | None]]
) -> dict[str, Any]:
    """Returns the errors for calls (query, key, value, mask), averaged over calls, examples and heads."""
    errors = [[_errors(*call, column) for column in COLUMNS] for call in calls]
    nystrom = np.mean([[one.nystrom.mean() for one in row] for row in errors], axis=0)
    mean = np.mean([row[0].mean_value.mean() for row in errors])
    return {
        "inputs": name,
        "mean": round(float(mean), 4),
        "nystrom": [round(float(error), 4) for error in nystrom],
    }


def random_call(name: str, seed: int) -> tuple[Array, Array, Array, None]:
    """Returns query, key and value of a kind in `INPUTS`, without a mask."""
    rng, value_rng = jax.random.split(jax.random.key(seed))
    return *INPUTS[name](rng), jax.random.normal(value_rng, SHAPE), None


def long_examples(trained: Trained, count: int) -> list[int]:
    """Returns the first validation examples with at least `LENGTH` tokens.

    Raises:
      ValueError: None of the first examples is that long.
    """
    split = trained.task.splits["valid"]
    batch = split.batch(np.arange(min(CANDIDATES, len(split))), trained.run.data.padding)
    lengths = batch[trained.run.model.batch_keys[1]].sum(axis=1)
    found: list[int] = np.flatnonzero(lengths >= LENGTH)[:count].tolist()
    if not found:
        raise ValueError(
            f"{trained.name} has no validation example of {LENGTH:,} tokens among the first"
            f" {len(lengths):,}: pass a run of a task with longer sequences."
        )
    return found


def measure_run(trained: Trained, count: int) -> dict[str, Any]:
    """Returns the rows of all layers and where they come from."""
    examples = long_examples(trained, count)
    of_examples = [trained.core_calls(example, "valid") for example in examples]
    tokens = [int(layers[0].mask[0].sum()) for layers in of_examples]
    rows = [
        make_row(
            f"layer {number}",
            [(*(x[:1].astype(jnp.float32) for x in core[:3]), core.mask[:1]) for core in calls],
        )
        for number, calls in enumerate(zip(*of_examples, strict=True), start=1)
    ]
    return {
        "run": trained.name,
        "attention": trained.run.config["attention"],
        "config_sha256": config_sha256(trained.run.config, train.PATHS),
        "data_sha256": trained.task.sha256,
        "checkpoint": {"step": trained.step, "best": trained.finished},
        "examples": examples,
        "tokens": tokens,
        "rows": rows,
    }


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of the random inputs."""
    return _table("inputs", COLUMNS, _named_rows(results["random"]))


def headline(results: Mapping[str, Any]) -> str:
    """Returns a short table for the README, with the default number of iterations."""
    columns = [column for column in COLUMNS if column.pinv_iters == 6]
    rows = _named_rows(results["random"])
    layers = _named_rows(results["trained"][HEADLINE_TASK])
    trained = f"trained {TITLES[HEADLINE_TASK]} model, layer 1"
    short = {**{name: rows[name] for name in HEADLINE}, trained: layers["layer 1"]}
    return _table("inputs", columns, short)


def trained_markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of the layers of all trained models."""
    rows = {
        f"{TITLES.get(task, task)}, {name}": row
        for task, part in sorted(results["trained"].items())
        for name, row in _named_rows(part).items()
    }
    return _table("trained model", COLUMNS, rows)


Row = tuple[float, Mapping[Column, float]]  # error of the mean, errors of Nyström attention


def _named_rows(part: Mapping[str, Any]) -> dict[str, Row]:
    columns = [Column(**column) for column in part["columns"]]
    return {
        row["inputs"]: (row["mean"], dict(zip(columns, row["nystrom"], strict=True)))
        for row in part["rows"]
    }


def _table(title: str, columns: Sequence[Column], rows: Mapping[str, Row]) -> str:
    table = []
    for name, (mean, errors) in rows.items():
        cells = [f"{errors[column]:.3f}" if column in errors else NOTHING for column in columns]
        table.append([name, f"{mean:.3f}", *cells])
    headings = [title, "mean", *(column.title for column in columns)]
    return markdown_table(pd.DataFrame(table, columns=headings))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures one part, writes the file and returns the exit code."""
    parser = parser_of("benchmarks.approximation", __doc__)
    parser.add_argument("--run", type=path_argument, help="folder of a run; default: random inputs")
    parser.add_argument("--data_dir", default="", help="folder of the run's data, if moved")
    parser.add_argument("--examples", type=int, default=8, help="number of examples of a run")
    parser.add_argument("--out", type=path_argument, default="results/approximation.json")
    given = parser.parse_args(arguments)
    if given.examples < 1:
        parser.error(f"--examples must be 1 or more, got {given.examples}")
    command = command_line("benchmarks.approximation", arguments)
    return run_to_end("benchmarks.approximation", lambda: _measure(given, command))


def _measure(given: argparse.Namespace, command: str) -> None:
    results = read_json(given.out) if given.out.is_file() else {"random": {}, "trained": {}}
    if not {"random", "trained"} <= results.keys():
        raise ValueError(
            f"{given.out} contains no results of benchmarks.approximation: pass another --out."
        )
    part = {
        "command": command,
        **describe_environment(),
        "columns": [dataclasses.asdict(column) for column in COLUMNS],
    }
    if given.run is None:
        shape = dict(
            zip(("length", "heads", "head_dim", "seeds"), (*SHAPE[1:], SEEDS), strict=True)
        )
        rows = [make_row(name, [random_call(name, i) for i in range(SEEDS)]) for name in INPUTS]
        results["random"] = {**part, **shape, "rows": rows}
        table = markdown(results)
    else:
        trained = open_run(given.run, data_dir=given.data_dir, max_len=MAX_LEN)
        results["trained"][trained.task.name] = {**part, **measure_run(trained, given.examples)}
        table = trained_markdown(results)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(given.out, results)
    print(table, end="")


if __name__ == "__main__":
    sys.exit(main())
