"""`python -m lra.data`."""

import dataclasses
import errno
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from dataprep import cache
from lra import data
from lra.data import __main__ as command

ROOT = pathlib.Path(__file__).parents[3]

EASY = ["pathfinder32-easy", "--examples=5", "--workers=1"]


@pytest.mark.slow(minutes=0.2)
def test_prepares_checks_and_describes_a_task(capsys, tmp_path):
    sheet = tmp_path / "new" / "sheet.png"
    assert command.main([*EASY, f"--contact_sheet={sheet}"]) == 0
    printed = capsys.readouterr().out
    assert "all hashes verified" in printed
    assert "| train | 5 | 5 |" in printed
    assert "0 of train in valid, 0 of train in test" in printed
    assert "Connected regions of pixels above 0, in 5 training images" in printed
    assert "| marker distance |" in printed
    assert "Training example 1, label " in printed
    assert sheet.stat().st_size > 1000


def test_contact_sheet_has_numbers_of_classes_without_names(tmp_path, monkeypatch):
    load, sheet = data.load, tmp_path / "sheet.png"
    monkeypatch.setattr(
        data, "load", lambda config: dataclasses.replace(load(config), class_names=())
    )
    assert command.main([*EASY, f"--contact_sheet={sheet}"]) == 0


def test_labeled_tokens_may_have_class_names(monkeypatch, capsys):
    load, names = data.load, tuple(f"class {number}" for number in range(128))
    monkeypatch.setattr(
        data, "load", lambda config: dataclasses.replace(load(config), class_names=names)
    )
    assert command.main(["mqar-16-2", "--examples=3", "--show=1"]) == 0
    printed = capsys.readouterr().out
    first, second = re.search(r"example 0, label \[(\d+), (\d+)\]", printed).groups()
    assert f"label [{first}, {second}] (class {first}, class {second}):" in printed


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
    assert "Exporting listops-short needs to write to" in capsys.readouterr().err


def test_rejects_changed_data(capsys):
    command.main(EASY)
    (folder,) = [path for path in (cache.cache_dir() / "data").iterdir() if path.is_dir()]
    labels = np.load(folder / "test_labels.npy")
    np.save(folder / "test_labels.npy", 1 - labels)
    assert command.main(EASY) == 2
    assert "test_labels.npy was modified" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["listop"], "Unknown task 'listop'; did you mean listops"),
        (["pathfinder512"], "; did you mean pathfinder"),
        (["zzz"], "; known: image, listops, listops-short"),
        ([*EASY, "--contact_sheet=sheet.jpg"], "must end in .png, got 'sheet.jpg'"),
        ([*EASY, "--data_dir=~no such user/x"], "this user does not exist: write the full path"),
        (
            ["text"],
            "aclImdb_v1.tar.gz: set --data_dir to the folder that contains them, or --source",
        ),
        (["image", "--data_dir=nowhere"], "Image needs "),
        (["retrieval"], "Retrieval needs "),
        ([*EASY, "--data_dir=nowhere"], "Pathfinder needs the files of the LRA release"),
        (["listops", "--examples=-1"], "--examples must be"),
        (["listops", "--seed=-1"], "--seed must be"),
        (["listops", "--source=foo"], "set --source to auto or files or generated"),
    ],
)
def test_invalid_arguments_print_one_sentence(arguments, sentence, capsys):
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.splitlines()[-1].startswith("lra.data: ")


def test_rejects_impossible_outputs_before_preparing_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "load", lambda config: pytest.fail("prepared"))
    (tmp_path / "pathfinder128").mkdir()
    for arguments, sentence in (
        (["listops-short", "--contact_sheet=x.png"], "listops-short has no images"),
        (["retrieval", "--contact_sheet=x.png"], "retrieval has no images"),
        (
            ["pathfinder128", f"--export_tfds={tmp_path}"],
            f"{tmp_path}/pathfinder128 exists already",
        ),
    ):
        assert command.main(arguments) == 2
        assert sentence in capsys.readouterr().err


def test_a_stopped_preparation_leaves_no_files(tmp_path):
    command_line = [sys.executable, "-m", "lra.data", "pathfinder64", "--workers=1"]
    process = subprocess.Popen(command_line, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    folder = cache.cache_dir() / "data"
    deadline = time.monotonic() + 60
    while not list(folder.glob("*.partial/*.npy")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in error
    assert [path for path in folder.iterdir() if path.is_dir()] == []


def test_failed_write_of_a_contact_sheet_prints_one_sentence(tmp_path, monkeypatch, capsys):
    def fill(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert command.main(EASY) == 0
    monkeypatch.setattr(os, "fsync", fill)
    assert command.main([*EASY, f"--contact_sheet={tmp_path / 'sheet.png'}"]) == 2
    assert (
        "cannot be written (No space left on device): choose another path"
        in capsys.readouterr().err
    )
    assert list(tmp_path.glob("**/*.png*")) == []


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
