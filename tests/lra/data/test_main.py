"""`python -m lra.data`."""

import numpy as np
import pytest

from dataprep import cache
from lra.data import __main__ as command

EASY = ["pathfinder32-easy", "--examples=5", "--workers=1"]


def test_prepares_checks_and_describes_a_task(capsys, tmp_path):
    sheet = tmp_path / "new" / "sheet.png"
    assert command.main([*EASY, f"--contact_sheet={sheet}"]) == 0
    printed = capsys.readouterr().out
    assert "all hashes verified" in printed
    assert "| train | 5 | 5 |" in printed
    assert "Connected regions of pixels above 0, in 5 training images" in printed
    assert "Training example 1, label " in printed
    assert sheet.stat().st_size > 1000


def test_shows_examples_and_exports_them_for_tensorflow_datasets(capsys, tmp_path):
    import tensorflow_datasets as tfds

    arguments = ["listops-short", "--examples=3", "--workers=1"]
    export = f"--export_tfds={tmp_path / 'new'}"
    assert command.main([*arguments, "--show=1", export]) == 0
    printed = capsys.readouterr().out
    assert "Training example 0, label " in printed
    assert "\n[M" in printed or "\n[SM" in printed
    assert f"to {tmp_path / 'new' / 'listops_short' / '1.0.0'}." in printed
    assert len(tfds.data_source("listops_short", split="test", data_dir=tmp_path / "new")) == 3
    assert command.main([*arguments, export]) == 2
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "file").write_text("no folder")
    assert command.main([*arguments, f"--export_tfds={tmp_path / 'file' / 'x'}"]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["listop"], "listops"),
        ([*EASY, "--contact_sheet=sheet.jpg"], "sheet.jpg"),
        ([*EASY, "--data_dir=~no such user/x"], "this user does not exist"),
        (["text"], "--data_dir"),
        ([*EASY, "--data_dir=nowhere"], "Pathfinder needs"),
        (["listops", "--examples=-1"], "--examples"),
        (["listops", "--source=foo"], "--source"),
        (["listops-short", "--contact_sheet=x.png"], "no images"),
        (["mqar-16-2", "--export_tfds=x"], "labeled tokens"),
        (["pathfinder128", "--export_tfds=."], "pathfinder128 exists"),
    ],
)
def test_invalid_arguments_print_one_sentence(arguments, word, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cache, "_build", lambda *_: pytest.fail("prepared"))
    (tmp_path / "pathfinder128").mkdir()
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.splitlines()[-1].startswith("lra.data: ")


def test_contact_sheet_has_every_image_at_its_place(tmp_path):
    from PIL import Image

    images = np.stack([np.full((32, 32), shade) for shade in (10, 20, 30, 40, 50)])
    command.contact_sheet(tmp_path / "sheet.png", images, ["joined"] * 5, columns=3)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    for shade in (10, 20, 30, 40, 50):
        assert (sheet == shade).sum() >= (3 * 32) ** 2
    assert sheet[6 + 95, 6 + 95] == 10
    assert sheet[6, 6 + 2 * (96 + 6)] == 30
    assert sheet[6 + 96 + 6 + 14, 6] == 40
