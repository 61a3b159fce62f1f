"""Colours, and figures that leave matplotlib as it was."""

import matplotlib as mpl

from harness.figures import add_legend, colors_of, new_figure


def test_colours_differ_as_long_as_there_are_any():
    colors = colors_of([str(number) for number in range(9)])
    assert len({colors[str(number)] for number in range(7)}) == 7
    assert colors["7"] == colors["0"]


def test_a_figure_is_its_own_and_a_legend_stands_below(tmp_path):
    before = dict(mpl.rcParams)
    figure = new_figure(4, 3)
    (line,) = figure.subplots().plot([0, 1], [1, 0], label="a line")
    add_legend(figure, [line], ["a line"], columns=2)
    figure.savefig(tmp_path / "figure.png")
    (legend,) = figure.legends
    assert legend.get_window_extent().y1 <= figure.axes[0].get_window_extent().y0
    assert not figure.axes[0].spines["top"].get_visible()
    assert dict(mpl.rcParams) == before
