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
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from benchmarks.table import command_line
from cli.commands import number, parser_of, run_to_end
from lra.figures.trained_run import Trained, open_run
from lra.report.published import TITLES
from nystromformer_jax import approximation_error, rotary_embedding
from nystromformer_jax.attention.approximation import ApproximationErrors
from nystromformer_jax.support.durable import read_json, write_json
from nystromformer_jax.training import describe_environment
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


# Options of `nystrom_attention` in a column of the table; these are the others.
DEFAULTS = {"pinv_iters": 6, "landmark_selection": "segments"}
COLUMNS: dict[str, dict[str, Any]] = {
    "M = 32": {"num_landmarks": 32},
    "M = 64": {"num_landmarks": 64},
    "M = 128": {"num_landmarks": 128},
    "M = 256": {"num_landmarks": 256},
    "M = 64, 12 iterations": {"num_landmarks": 64, "pinv_iters": 12},
    "M = 32, k-means": {"num_landmarks": 32, "landmark_selection": "kmeans"},
    "M = 64, k-means": {"num_landmarks": 64, "landmark_selection": "kmeans"},
}


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


def make_row(
    name: str, calls: Iterable[tuple[Array, Array, Array, Array | None]]
) -> dict[str, Any]:
    """Returns the errors for calls (query, key, value, mask), averaged over calls, examples and heads."""
    errors = [[_errors(title)(*inputs, mask=mask) for title in COLUMNS] for *inputs, mask in calls]
    nystrom = np.mean([[one.nystrom.mean() for one in row] for row in errors], axis=0)
    mean = np.mean([row[0].mean_value.mean() for row in errors])
    return {
        "inputs": name,
        "mean": round(float(mean), 4),
        "nystrom": [round(float(error), 4) for error in nystrom],
    }


@functools.cache
def _errors(title: str) -> Callable[..., ApproximationErrors]:
    return jax.jit(functools.partial(approximation_error, **COLUMNS[title]))


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
    rows = [
        make_row(
            f"layer {layer}",
            [(*(x[:1].astype(jnp.float32) for x in core[:3]), core.mask[:1]) for core in calls],
        )
        for layer, calls in enumerate(zip(*of_examples, strict=True), start=1)
    ]
    tokens = [int(layers[0].mask[0].sum()) for layers in of_examples]
    return {**trained.origin, "examples": examples, "tokens": tokens, "rows": rows}


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of the random inputs."""
    return markdown_table(_table({"": results["random"]}, "inputs"))


def headline(results: Mapping[str, Any]) -> str:
    """Returns a short table for the README, with the default number of iterations."""
    columns = ["inputs", "mean", *(title for title in COLUMNS if "iterations" not in title)]
    title = f"trained {TITLES[HEADLINE_TASK]} model"
    parts = {"": results["random"], title: results["trained"][HEADLINE_TASK]}
    table = _table(parts, "inputs")[columns].set_index("inputs", drop=False)
    return markdown_table(table.loc[[*HEADLINE, f"{title}, layer 1"]].reset_index(drop=True))


def trained_markdown(results: Mapping[str, Any]) -> str:
    """Returns a table of the layers of all trained models."""
    parts = {TITLES.get(task, task): part for task, part in sorted(results["trained"].items())}
    return markdown_table(_table(parts, "trained model"))


def _table(parts: Mapping[str, Mapping[str, Any]], title: str) -> pd.DataFrame:
    """Returns a row for each of the parts' rows, whose name follows that of the part."""
    titles = {frozenset((DEFAULTS | column).items()): name for name, column in COLUMNS.items()}
    table = []
    for part_name, part in parts.items():
        names = [titles[frozenset((DEFAULTS | column).items())] for column in part["columns"]]
        for row in part["rows"]:
            label = ", ".join(filter(None, [part_name, row["inputs"]]))
            errors = dict(zip(names, map("{:.3f}".format, row["nystrom"]), strict=True))
            table.append({title: label, "mean": f"{row['mean']:.3f}", **errors})
    return pd.DataFrame(table, columns=[title, "mean", *COLUMNS], dtype=object).fillna(NOTHING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures one part, writes the file and returns the exit code."""
    parser = parser_of("benchmarks.approximation", __doc__)
    add = parser.add_argument
    add("--run", type=path_argument, help="folder of a run; default: random inputs")
    add("--data_dir", default="", help="folder of the run's data, if moved")
    add("--examples", type=number(int, 1), default=8, help="number of examples of a run")
    add("--out", type=path_argument, default="results/approximation.json")
    given = parser.parse_args(arguments)
    command = command_line("benchmarks.approximation", arguments)
    return run_to_end("benchmarks.approximation", lambda: _measure(given, command))


def _measure(given: argparse.Namespace, command: str) -> None:
    results = read_json(given.out) if given.out.is_file() else {"random": {}, "trained": {}}
    if not {"random", "trained"} <= results.keys():
        raise ValueError(
            f"{given.out} contains no results of benchmarks.approximation: pass another --out."
        )
    part = {"command": command, "columns": [DEFAULTS | column for column in COLUMNS.values()]}
    if given.run is None:
        length, heads, head_dim = SHAPE[1:]
        shape = {"length": length, "heads": heads, "head_dim": head_dim, "seeds": SEEDS}
        rows = [make_row(name, [random_call(name, i) for i in range(SEEDS)]) for name in INPUTS]
        results["random"] = {**part, **describe_environment(), **shape, "rows": rows}
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
