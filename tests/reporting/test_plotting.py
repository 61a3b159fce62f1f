"""Colors, curves and figures, without changes to matplotlib."""

import itertools

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text

from reporting.plotting import draw_curve, label_lines, new_figure, seeds_together, styles_of


def test_curve_of_seeds_is_the_mean_with_minimum_and_maximum():
    curve = seeds_together([([3, 5], [0.3, 0.7]), ([5, 7], [0.5, 0.9])], 100)
    assert list(curve.index) == [3, 5, 7]  # one seed has not come as far, another began later
    assert curve.to_numpy() == pytest.approx(np.array([[30, 30, 30], [60, 50, 70], [90, 90, 90]]))
    assert len(seeds_together([([], [])])) == 0


def test_a_curve_is_its_means_with_a_band_if_seeds_differ():
    axes = new_figure(4, 3).subplots()
    draw_curve(axes, seeds_together([([1, 2], [3, 5])]), color="red")
    assert len(axes.collections) == 0
    curve = seeds_together([([1, 2], [2, 4]), ([1, 2], [4, 6])])
    draw_curve(axes, curve, color="blue")
    lines = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert lines == [[[1, 3], [2, 5]], [[1, 3], [2, 5]]]
    (band,) = axes.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 2), (2, 4), (1, 4), (2, 6)}


def test_no_two_labels_have_both_color_and_line_in_common():
    styles = styles_of([str(number) for number in range(44)])
    assert len({tuple(style.items()) for style in styles.values()}) == 44
    assert len({style["color"] for style in list(styles.values())[:11]}) == 11


def test_labels_beside_lines_keep_their_order_and_do_not_overlap(tmp_path):
    before = dict(mpl.rcParams)
    figure = new_figure(4, 3)
    axes = figure.subplots()
    ends = {"c": 0.52, "a": 0.5, "b": 0.51, "e": 0.95, "a long label of several words": 0.0}
    for name, end in ends.items():
        axes.plot([0, 1], [0.2, end], label=name)
    axes.plot([0, 1], [0, 0])  # a line without a label
    label_lines(axes, width=15)
    figure.savefig(tmp_path / "figure.png")
    texts = axes.texts
    assert [text.get_text().replace("\n", " ") for text in texts] == sorted(ends, key=ends.get)
    assert "\n" in texts[0].get_text()
    boxes = [Text.get_window_extent(text) for text in texts]  # without the line to its curve
    for below, above in itertools.pairwise(boxes):
        assert below.y1 <= above.y0
    assert min(box.x0 for box in boxes) >= axes.get_window_extent().x1
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert not axes.spines["top"].get_visible()
    assert dict(mpl.rcParams) == before
