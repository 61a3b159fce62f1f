"""Plots how well Nyström attention approximates softmax attention in a trained model.

    python -m lra.figures runs/listops-seed0 --example=3 --out results/figures/listops

<out>-maps.png   attention map and approximation of each head, on one test example
<out>-error.png  output error by number of landmarks and by length, for the model and random inputs
<out>-pinv.png   pseudoinverse residual and output error by number of iterations
<out>.json       all numbers, with the run, the data and the environment

Source: the maps are Figure 3 of Xiong et al. 2021, arXiv:2102.03902.
"""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cli.commands import number, run_to_end
from lra.figures import approximation
from lra.figures.approximation import HeadMaps, nystrom_options
from lra.figures.trained_run import Trained, new_parser, open_run
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.support.durable import write_json
from reporting.plotting import COLORS, GREY, WIDTH, label_lines, new_figure
from reporting.writer import staged

MAX_LEN = 16_384
PERCENTILE = 99.5  # weights of a softmax map above this percentile have the brightest color

# The colors of two lines each, and the name.
KINDS = {
    "trained": (COLORS[0], COLORS[4], "trained model"),
    "random": (COLORS[1], COLORS[5], "random normal query, key, value"),
}


def measure(
    trained: Trained, example: int, examples: int, nystrom: NystromOptions
) -> tuple[dict[str, Any], list[list[HeadMaps]]]:
    """Measures approximation errors; returns all numbers, and the maps of each layer and head.

    Raises:
      ValueError: The example does not exist, or the sequences are too short for `num_landmarks`.
    """
    count = len(trained.task.splits["test"])
    if not 0 <= example < count:
        raise ValueError(
            f"--example={example} does not exist: the test set has examples 0 to {count - 1:,}."
        )
    shown = trained.core_calls(example)
    length = int(shown[0].mask[0].sum())
    if not length:
        raise ValueError(f"test example {example} has no real token: pass another --example.")
    chosen = trained.longest(examples)
    layers = trained.layers(chosen)
    shortest = layers[0][0].shape[1]
    if shortest <= nystrom.num_landmarks:
        raise ValueError(
            f"the longest test examples have {shortest} tokens, so {nystrom.num_landmarks} landmarks give"
            " exact attention: pass a smaller --num_landmarks."
        )
    maps = [approximation.head_maps(layer, nystrom) for layer in shown]
    noise = [approximation.random_tokens(tokens, seed) for seed, tokens in enumerate(layers)]
    numbers = {
        **trained.origin,
        "nystrom": dataclasses.asdict(nystrom),
        "maps": {
            "example": example,
            "tokens": length,
            "heads": [
                {
                    "layer": layer,
                    "head": head,
                    "map_error": one.map_error,
                    "output_error": one.output_error,
                    # The weight with the brightest color, relative to uniform attention.
                    "brightest": float(np.percentile(one.exact, PERCENTILE)) * length,
                }
                for layer, heads in enumerate(maps)
                for head, one in enumerate(heads)
            ],
        },
        "curves": {
            "examples": chosen,
            "tokens": shortest,
            "trained": approximation.curves(layers, nystrom),
            "random": approximation.curves(noise, nystrom),
        },
    }
    return numbers, maps


def draw_maps(numbers: Mapping[str, Any], maps: Sequence[Sequence[HeadMaps]], path: Path) -> None:
    """Draws the exact and approximate map of each head; each pair has a separate color scale."""
    from matplotlib.colors import PowerNorm

    pairs = [one for heads in maps for one in heads]
    figure = new_figure(WIDTH, 3 * len(pairs) + 0.7)
    landmarks, length = numbers["nystrom"]["num_landmarks"], numbers["maps"]["tokens"]
    figure.suptitle(
        f"{_title(numbers)}, test example {numbers['maps']['example']}, {length:,} tokens\n"
        "Color: weight × tokens (1 for uniform attention), square-root scale, negative as 0",
        fontsize=11,
    )
    panels = figure.subfigures(len(pairs), 1, squeeze=False).flat
    for panel, one, about in zip(panels, pairs, numbers["maps"]["heads"], strict=False):
        axes = panel.subplots(1, 2, sharex=True, sharey=True)
        norm = PowerNorm(0.5, 0, about["brightest"], clip=True)
        box = (0, length, length, 0)
        for axis, picture in zip(axes, one[:2], strict=True):
            image = axis.imshow(picture * length, norm=norm, cmap="cividis", extent=box)
            axis.set_xlabel("key")
        layer, head = about["layer"] + 1, about["head"] + 1
        axes[0].set_title(f"layer {layer}, head {head}: softmax", fontsize=10)
        axes[1].set_title(
            f"{landmarks} landmarks: error {about['map_error']:.2g} of the map,"
            f" {about['output_error']:.2g} of the output",
            fontsize=10,
        )
        axes[0].set_ylabel("query")
        # Ticks are evenly spaced in color, so that labels do not overlap.
        ticks = about["brightest"] * np.linspace(0, 1, 5) ** 2
        panel.colorbar(image, ax=axes, shrink=0.8, ticks=ticks, format="{x:.2g}", extend="max")
    figure.savefig(path)


def draw_errors(numbers: Mapping[str, Any], path: Path) -> None:
    """Draws the output error by number of landmarks and by length."""
    figure = new_figure(WIDTH, 6)
    above, below = figure.subplots(2, 1, sharey=True)
    curves = numbers["curves"]
    for kind, (*colors, name) in KINDS.items():
        by_length = {
            count: [row for row in curves[kind]["by_length"] if row["num_landmarks"] == count]
            for count in approximation.FIXED_LANDMARKS
        }
        _draw(above, "num_landmarks", curves[kind]["by_landmarks"], colors[0], name)
        for (count, rows), color in zip(by_length.items(), colors, strict=True):
            if rows:  # else no example is long enough
                _draw(below, "length", rows, color, f"{kind}, {count} landmarks")
    for axis in figure.axes:
        if axis.lines:
            places = np.asarray(axis.lines[-1].get_xdata()).tolist()
            axis.set_xscale("log", base=2)
            axis.set_xticks(places, [f"{place:,}" for place in places])
            axis.minorticks_off()
        else:
            axis.text(0.5, 0.5, "no example is long enough", transform=axis.transAxes, ha="center")
    above.set(xlabel="landmarks")
    above.set_title(
        f"error of the output against landmarks, {curves['tokens']:,} tokens", fontsize=10
    )
    below.set(xlabel="tokens, from the start of the same examples")
    below.set_title("error of the output against length", fontsize=10)
    _save_log_plot(figure, numbers, path)


def draw_pinv(numbers: Mapping[str, Any], path: Path) -> None:
    """Draws the pseudoinverse residual and the output error by number of iterations."""
    figure = new_figure(WIDTH, 6)
    panels = {
        "residual": "residual, ‖A Z A − A‖ / ‖A‖",
        "output_error": "relative error of the output",
    }
    count = numbers["nystrom"]["pinv_iters"]
    for axis, (quantity, title) in zip(figure.subplots(2, 1), panels.items(), strict=True):
        for kind, (*colors, _) in KINDS.items():
            for start, color in zip(approximation.STARTS, colors, strict=True):
                rows = numbers["curves"][kind]["by_iteration"][start]
                rows = [{**row, **row[quantity]} for row in rows]
                _draw(axis, "iterations", rows, color, f"{kind}, start {start}")
        axis.axvline(count, color=GREY, linewidth=1, linestyle=":")
        axis.set(xlabel="iterations", xticks=axis.lines[0].get_xdata()[::2])
        axis.set_title(f"{title}; dotted: {count} iterations", fontsize=10)
    _save_log_plot(figure, numbers, path)


def _draw(axis: Any, x: str, rows: Sequence[Mapping[str, Any]], color: str, label: str) -> None:
    """Draws the median against the key `x`, and the quartiles as a band."""
    places, lower, median, upper = (
        [row[name] for row in rows] for name in (x, "lower", "median", "upper")
    )
    axis.plot(places, median, "o-", color=color, label=label, markersize=4)
    axis.fill_between(places, lower, upper, color=color, alpha=0.12, linewidth=0)


def _save_log_plot(figure: Any, numbers: Mapping[str, Any], path: Path) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for axis in figure.axes:
        axis.set_yscale("log")
        lowest, highest = axis.get_ylim()
        decades = math.log10(highest / lowest)
        digits = [1] if decades > 2.5 else [1, 2, 5] if decades > 1 else [1, 2, 3, 5, 7]
        axis.yaxis.set_major_locator(LogLocator(subs=digits))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
    count = len(numbers["curves"]["examples"])
    figure.suptitle(
        f"{_title(numbers)}: median and quartiles over layers, heads and {count} test examples",
        fontsize=11,
    )
    for axis in figure.axes:
        label_lines(axis)
    figure.savefig(path)


def _title(numbers: Mapping[str, Any]) -> str:
    return f"{numbers['task']}, {numbers['attention']}, step {numbers['checkpoint']['step']:,}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes three figures and a JSON file and returns the exit code."""
    parser = new_parser("lra.figures", __doc__)
    parser.add_argument("--example", type=int, default=0, help="test example of the maps")
    parser.add_argument(
        "--examples", type=number(int, 1), default=8, help="number of test examples of the curves"
    )
    parser.add_argument(
        "--num_landmarks", type=number(int, 1), help="default: as in the run, else 64"
    )
    given = parser.parse_args(arguments)

    def report() -> None:
        trained = open_run(given.run, data_dir=given.data_dir, max_len=MAX_LEN)
        nystrom = nystrom_options(trained.run.config["attention"])
        if given.num_landmarks is not None:
            nystrom = dataclasses.replace(nystrom, num_landmarks=given.num_landmarks)
        numbers, maps = measure(trained, given.example, given.examples, nystrom)
        out = given.out or Path("results/figures", trained.name)
        with staged(out) as path:
            draw_maps(numbers, maps, path.with_name(f"{out.name}-maps.png"))
            draw_errors(numbers, path.with_name(f"{out.name}-error.png"))
            draw_pinv(numbers, path.with_name(f"{out.name}-pinv.png"))
            write_json(path.with_name(f"{out.name}.json"), numbers)
        print(f"Written: {out}.json, {out}-maps.png, {out}-error.png, {out}-pinv.png.")

    return run_to_end("lra.figures", report)


if __name__ == "__main__":
    sys.exit(main())
