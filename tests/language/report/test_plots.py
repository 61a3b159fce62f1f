"""Figure 5 has a line for each model and a band over seeds."""

import pytest

from language.report.plots import PANELS, plot_pretraining
from tests.language.report.runs import groups_in, write_pretraining


def size_of(path):
    """Width and height from a PNG's own header."""
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


@pytest.fixture
def groups(tmp_path):
    for seed, accuracy in enumerate((0.30, 0.36)):
        write_pretraining(tmp_path / "runs" / f"{seed}", seed=seed, accuracy=accuracy)
    write_pretraining(tmp_path / "runs" / "softmax", attention="softmax")
    return groups_in(tmp_path / "runs")


def test_figure_has_a_panel_per_metric_and_room_for_its_legend(groups, tmp_path):
    plot_pretraining(groups, {"mlm_accuracy": 0.05}, tmp_path / "few.png")
    width, height = size_of(tmp_path / "few.png")
    assert width > len(PANELS) * 300
    for number in range(9):
        write_pretraining(
            tmp_path / "more" / f"{number}", config={"attention": {"num_landmarks": number + 1}}
        )
    plot_pretraining(groups_in(tmp_path / "more"), {}, tmp_path / "many.png")
    assert size_of(tmp_path / "many.png")[1] > height


def test_a_run_without_a_log_has_no_line(tmp_path):
    (write_pretraining(tmp_path / "runs" / "a") / "metrics.jsonl").unlink()
    plot_pretraining(groups_in(tmp_path / "runs"), {}, tmp_path / "empty.png")
    assert size_of(tmp_path / "empty.png")[0] > 900
