"""Embeddings of a pretrained model with Nyström attention beside its own, without training.

    python -m benchmarks.swap --model MODEL --texts TEXTS --out results/benchmarks/swap

MODEL is a folder that `nystromformer_jax.pretrained.load` reads, and TEXTS a file with a text per line. For
each length, the first texts with so many tokens are truncated to it. A row has the mean and the lowest cosine
of a text's embedding to the exact one, and the share of texts whose nearest other text stays the same. The
table leaves the lowest out. The row "other texts" is the mean cosine of exact embeddings of different texts.
The same command resumes.
"""

import functools
import hashlib
import itertools
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.table import Row, Table, parser_for, this_machine, use_cpu
from cli.commands import number, run_to_end
from nystromformer_jax.pretrained import LanguageModel, load
from reporting.tables import markdown as markdown_table

AXES = ("landmarks", "selection", "pinv", "tokens")
SELECTIONS, PINVS = ("segments", "kmeans"), ("iterative", "ridge")
EXACT = (0, "other texts", "")  # the axes of exact attention, except the number of tokens
Vectors = npt.NDArray[np.float32]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json` and `.md`; returns the exit code."""
    parser = parser_for("benchmarks.swap", __doc__)
    positive = number(int, 1)
    parser.add_argument("--model", required=True, help="folder of a model with its tokenizer")
    parser.add_argument("--texts", required=True, type=Path, help="file with a text per line")
    parser.add_argument("--tokens", type=positive, nargs="+", default=[30, 128, 256, 512])
    parser.add_argument("--landmarks", type=positive, nargs="+", default=[32, 64, 128])
    parser.add_argument("--count", type=number(int, 2), default=100, help="texts of each length")
    given = parser.parse_args(arguments)

    def make_table() -> None:
        use_cpu()
        texts = given.texts.read_text(encoding="utf-8")
        options: dict[str, Any] = {"max_len": max(given.tokens), "conv_kernel_size": 0}
        exact = load(given.model, attention="softmax", **options)
        rows = tokens_of(exact, texts.splitlines(), given.tokens, given.count)
        settings = {
            **this_machine("transformers"),
            "model": Path(given.model).name,
            "texts_sha256": hashlib.sha256(texts.encode()).hexdigest(),
            "count": given.count,
        }

        @functools.lru_cache(maxsize=1)
        def model_of(landmarks: int, selection: str, pinv: str) -> LanguageModel:
            names: dict[str, Any] = {
                "num_landmarks": landmarks,
                "landmark_selection": selection,
                "pinv": pinv,
            }
            return load(given.model, attention="nystrom", **options, **names)

        @functools.cache
        def expected(tokens: int) -> Vectors:
            return unit(exact.embed(input_ids=rows[tokens]))

        def measure(landmarks: int, selection: str, pinv: str, tokens: int) -> Row:
            row: Row = dict(zip(AXES, (landmarks, selection, pinv, tokens), strict=True))
            if not landmarks:
                cosines = expected(tokens) @ expected(tokens).T
                return row | {"cosine": float(cosines[~np.eye(len(cosines), dtype=bool)].mean())}
            model = model_of(landmarks, selection, pinv)
            return row | compare(unit(model.embed(input_ids=rows[tokens])), expected(tokens))

        table = Table("benchmarks.swap", given.out, settings, markdown, arguments=arguments)
        kinds = [EXACT, *itertools.product(given.landmarks, SELECTIONS, PINVS)]
        cells = [(*kind, tokens) for kind in kinds for tokens in given.tokens]
        table.fill(AXES, cells, measure)
        table.finish()

    return run_to_end("benchmarks.swap", make_table)


def tokens_of(
    model: LanguageModel, texts: Sequence[str], lengths: Sequence[int], count: int
) -> dict[int, list[list[int]]]:
    """Returns for each length the tokens of the first `count` texts that are as long, truncated to it.

    Raises:
      ValueError: Too few texts are as long.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sizes = [len(ids) for ids in model.tokenizer(list(texts))["input_ids"]]
    found = {}
    for length in lengths:
        chosen = [text for text, size in zip(texts, sizes, strict=True) if size >= length][:count]
        if len(chosen) < count:
            raise ValueError(
                f"--texts: {len(chosen)} texts have {length} tokens or more, and --count={count} are needed:"
                " pass a file with more texts, or a smaller --count."
            )
        found[length] = model.tokenizer(chosen, truncation=True, max_length=length)["input_ids"]
    return found


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
        cell = shown.setdefault(tuple(kind.values()), kind)
        text = f"{row['cosine']:.3f}"
        if "lowest" in row:
            text += f" · {100 * row['same_nearest']:.0f} %"
        cell[f"{row['tokens']} tokens"] = text
    return markdown_table(pd.DataFrame(shown.values()))


if __name__ == "__main__":
    sys.exit(main())
