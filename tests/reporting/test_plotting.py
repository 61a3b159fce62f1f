"""Colors, curves and figures, without changes to matplotlib."""

import numpy as np
import pytest

from reporting.plotting import draw_curve, new_figure, seeds_together, styles_of


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
    draw_curve(axes, curve, [7, 9], color="blue")
    lines = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert lines == [[[1, 3], [2, 5]], [[7, 3], [9, 5]]]
    (band,) = axes.collections
    corners = {tuple(point) for point in band.get_paths()[0].vertices.tolist()}
    assert corners == {(7, 2), (9, 4), (7, 4), (9, 6)}


def test_no_two_labels_have_both_color_and_line_in_common():
    styles = styles_of([str(number) for number in range(28)])
    assert len({tuple(style.items()) for style in styles.values()}) == 28
    assert len({style["color"] for style in list(styles.values())[:7]}) == 7
