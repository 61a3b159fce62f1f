"""Fixture for the figures of the report."""

import matplotlib.figure
import pytest


@pytest.fixture
def drawn_figures(monkeypatch):
    """The figures that are drawn, after they were saved."""
    figures = []
    save = matplotlib.figure.Figure.savefig

    def keep(self, *arguments, **options):
        save(self, *arguments, **options)
        figures.append(self)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return figures
