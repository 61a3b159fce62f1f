"""Embeddings of a pretrained model with Nyström attention beside its own, untrained and after a few steps.

    python -m benchmarks.swap --model MODEL --texts TEXTS --steps 200 --out results/benchmarks/swap

MODEL is a folder that `nystromformer_jax.pretrained.load` reads, and TEXTS a file with a text per line. For
each length, the first texts with so many tokens are truncated to it. A row has the mean and the lowest cosine
of a text's embedding to the exact one, and the share of texts whose nearest other text stays the same. The
table leaves the lowest out. The row "other texts" is the mean cosine of exact embeddings of different texts.
With `--steps`, the models with segment means and the paper's inverse are also trained on the other texts to
return the exact embeddings (`distill`). The same command resumes.
"""

import dataclasses
import functools
import hashlib
import itertools
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import pandas as pd

from benchmarks.table import Row, Table, parser_for, this_machine, use_cpu
from cli.commands import number, run_to_end
from nystromformer_jax.pretrained import LanguageModel, load
from nystromformer_jax.pretrained.language_model import pooled_states
from reporting.tables import markdown as markdown_table

AXES = ("landmarks", "selection", "pinv", "steps", "tokens")
SELECTIONS, PINVS = ("segments", "kmeans"), ("iterative", "ridge")
EXACT = (0, "other texts", "", 0)  # the axes of exact attention, except the number of tokens
LEARNING_RATE, BATCH_SIZE = 1e-4, 8  # of `distill`
Vectors = npt.NDArray[np.float32]
Rows = dict[int, list[list[int]]]  # token ids of texts, by number of tokens


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json`; returns the exit code."""
    parser = parser_for("benchmarks.swap", __doc__)
    positive = number(int, 1)
    parser.add_argument("--model", required=True, help="folder of a model with its tokenizer")
    parser.add_argument("--texts", required=True, type=Path, help="file with a text per line")
    parser.add_argument("--tokens", type=positive, nargs="+", default=[30, 128, 256, 512])
    parser.add_argument("--landmarks", type=positive, nargs="+", default=[32, 64, 128])
    parser.add_argument("--count", type=number(int, 2), default=100, help="texts of each length")
    parser.add_argument("--steps", type=positive, help="also train for this number of steps")
    given = parser.parse_args(arguments)

    def make_table() -> None:
        use_cpu()
        texts = given.texts.read_text(encoding="utf-8")
        options: dict[str, Any] = {"max_len": max(given.tokens), "conv_kernel_size": 0}
        exact = load(given.model, attention="softmax", **options)
        rows, others = tokens_of(exact, texts.splitlines(), given.tokens, given.count)
        fewest = min(map(len, others.values()))
        if given.steps and fewest < BATCH_SIZE:
            raise ValueError(
                f"--texts: training needs {BATCH_SIZE} texts of each length besides those of --count, found"
                f" {fewest}: pass a file with more texts."
            )
        settings = {
            **this_machine("transformers"),
            "model": Path(given.model).name,
            "texts_sha256": hashlib.sha256(texts.encode()).hexdigest(),
            "count": given.count,
            "tokens": given.tokens,  # on which the texts of training depend
        }

        @functools.lru_cache(maxsize=1)
        def model_of(landmarks: int, selection: str, pinv: str, steps: int) -> LanguageModel:
            names: dict[str, Any] = {
                "num_landmarks": landmarks,
                "landmark_selection": selection,
                "pinv": pinv,
            }
            model = load(given.model, attention="nystrom", **options, **names)
            return distill(model, exact, others, steps) if steps else model

        @functools.cache
        def expected(tokens: int) -> Vectors:
            return unit(exact.embed(input_ids=rows[tokens]))

        def measure(*cell: Any) -> Row:
            row: Row = dict(zip(AXES, cell, strict=True))
            *kind, tokens = cell
            if not row["landmarks"]:
                cosines = expected(tokens) @ expected(tokens).T
                return row | {"cosine": float(cosines[~np.eye(len(cosines), dtype=bool)].mean())}
            model = model_of(*kind)
            return row | compare(unit(model.embed(input_ids=rows[tokens])), expected(tokens))

        table = Table("benchmarks.swap", given.out, settings, arguments=arguments)
        kinds = [EXACT, *itertools.product(given.landmarks, SELECTIONS, PINVS, [0])]
        if given.steps:
            kinds += itertools.product(given.landmarks, SELECTIONS[:1], PINVS[:1], [given.steps])
        cells = [(*kind, tokens) for kind in kinds for tokens in given.tokens]
        table.fill(AXES, cells, measure)
        table.finish(markdown)

    return run_to_end("benchmarks.swap", make_table)


def tokens_of(
    model: LanguageModel, texts: Sequence[str], lengths: Sequence[int], count: int
) -> tuple[Rows, Rows]:
    """Returns for each length the tokens of the first `count` texts that are as long, truncated to it.

    The second result has the texts that are among the first ones of no length.

    Raises:
      ValueError: Too few texts are as long.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = [len(ids) for ids in model.tokenizer(list(texts))["input_ids"]]
    by_length = {n: [i for i, size in enumerate(sizes) if size >= n] for n in lengths}
    for length, long in by_length.items():
        if len(long) < count:
            raise ValueError(
                f"--texts: {len(long)} texts have {length} tokens or more, and --count={count} are needed:"
                " pass a file with more texts, or a smaller --count."
            )
    first = {i for long in by_length.values() for i in long[:count]}

    def tokens(length: int, chosen: Sequence[int]) -> list[list[int]]:
        if not chosen:
            return []
        own = [texts[i] for i in chosen]
        found: dict[str, Any] = model.tokenizer(own, truncation=True, max_length=length)
        return list(found["input_ids"])

    measured = {n: tokens(n, long[:count]) for n, long in by_length.items()}
    others = {n: tokens(n, [i for i in long if i not in first]) for n, long in by_length.items()}
    return measured, others


def distill(model: LanguageModel, exact: LanguageModel, rows: Rows, steps: int) -> LanguageModel:
    """Returns the model after training it to return the embeddings of another one.

    The loss is 1 minus the cosine, and a step takes texts of one length, the lengths in turn. AdamW's rate
    decays linearly to 0.

    Args:
      model: The model to train.
      exact: The model with the same tokenizer and pooling whose embeddings are the target.
      rows: Token ids of the texts, by number of tokens; those with at most M tokens are not used.
      steps: Number of steps.
    """
    num_landmarks = model.model.config.num_landmarks
    rows = {n: texts for n, texts in rows.items() if n > num_landmarks}
    optimizer = optax.adamw(optax.linear_schedule(LEARNING_RATE, 0, steps))

    @jax.jit
    def step(variables: Any, state: Any, inputs: jax.Array, target: jax.Array) -> tuple[Any, Any]:
        def loss(variables: Any) -> jax.Array:
            batch = inputs, jnp.ones_like(inputs, bool), jnp.zeros_like(inputs)
            how = {"pooling": model.sentence.pooling, "layer": -1, "normalize": True}
            found = pooled_states(model.model, variables, *batch, **how)
            return 1 - (found * target).sum(axis=1).mean()

        updates, state = optimizer.update(jax.grad(loss)(variables), state, variables)
        return optax.apply_updates(variables, updates), state

    variables: Any = model.variables
    state = optimizer.init(variables)
    lengths, taken = itertools.cycle(rows), dict.fromkeys(rows, 0)
    for _ in range(steps if rows else 0):
        length = next(lengths)
        places = np.arange(taken[length], taken[length] + BATCH_SIZE) % len(rows[length])
        taken[length] += BATCH_SIZE
        batch = [rows[length][i] for i in places]
        target = unit(exact.embed(input_ids=batch))
        variables, state = step(variables, state, np.array(batch, np.int32), target)
    return dataclasses.replace(model, variables=variables)


def unit(vectors: Vectors) -> Vectors:
    """Returns vectors of length 1, [N, E]."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def compare(found: Vectors, expected: Vectors) -> Row:
    """Returns cosines of embeddings to the expected ones, and the share of the same nearest neighbors."""
    cosines = (found * expected).sum(axis=1)
    nearest = [(own @ own.T - 2 * np.eye(len(own))).argmax(axis=1) for own in (found, expected)]
    same = float((nearest[0] == nearest[1]).mean())
    return {"cosine": float(cosines.mean()), "lowest": float(cosines.min()), "same_nearest": same}


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table with a row per approximation and a column per length."""
    shown: dict[tuple[Any, ...], Row] = {}
    for row in results["rows"]:
        kind = {"M": row["landmarks"] or "", "landmarks": row["selection"], "inverse": row["pinv"]}
        kind["steps"] = row["steps"] or ""
        cell = shown.setdefault(tuple(kind.values()), kind)
        text = f"{row['cosine']:.3f}"
        if "lowest" in row:
            text += f" · {100 * row['same_nearest']:.0f} %"
        cell[f"{row['tokens']} tokens"] = text
    return markdown_table(pd.DataFrame(shown.values()))


if __name__ == "__main__":
    sys.exit(main())
