"""Properties of every reader of files, with a row per task. test_corruption.py has damaged files."""

import collections
import logging
import os
import pathlib
import shutil

import numpy as np
import pytest

from lra import data
from lra.data import release
from tests.helpers import data_folders
from tests.lra.data import fakes

every_task = pytest.mark.parametrize("task", fakes.FOLDERS)
# Tasks whose archive may be read as it was downloaded, and that may be read from tfds.
downloads = pytest.mark.parametrize(
    ("task", "archive"), [("text", "aclImdb_v1.tar.gz"), ("image", "cifar-10-binary.tar.gz")]
)
# Tasks in the LRA release, and their folder in the data folder of the official script.
released = pytest.mark.parametrize(
    ("task", "other"),
    [
        ("listops", "listops"),
        ("retrieval", "aan"),
        ("pathfinder32-easy", "pathfinder/pathfinder32/curv_baseline"),
    ],
)

# The end of the name of the folder of prepared data, which is a hash of their fingerprint, and their hash.
GOLDEN = {
    "text": "43e278a3600d 5e08c600c8de88bca2787046063684f5aa129880e2fafbb0780090e8565c8aef",
    "image": "72545fd6bc6b 45e26d82c89501f6ff8e93152c89fc524dabfc63605d5bd5dc4165731a3d6236",
    "listops": "ac2422de06f2 2d906392351c91ee3424c3fc8395a0707d3d7981f92923dab2954f4da2574f3c",
    "retrieval": "dff5f5d03139 3ecedde0a605659fe6377502873e48689c63e01a427343beffac7c3adc252dd1",
    "pathfinder32-easy": (
        "2c5e5c1d7621 3bca979eaf253cc324260e68e57c040f97c4f878c51a93a429d8015b90b34063"
    ),
}


@pytest.fixture
def folder(tmp_path, task):
    """The folder of a task, whose parent or grandparent is the folder of all data."""
    return fakes.write_folder(tmp_path / "data" / fakes.FOLDERS[task], fakes.files(task))


def all_rows(task):
    return {name: fakes.rows(split) for name, split in task.splits.items()}


@every_task
def test_every_example_is_read_once_and_prepared_data_never_change(task, folder):
    """Golden: with another hash, the data are not those of the stored results.

    With another folder, data that an earlier version prepared would be prepared again.
    """
    for path in folder.rglob("*"):
        os.utime(path, ns=(5, 5))
    loaded = fakes.load(task, folder)
    assert loaded.name == task
    rows = all_rows(loaded)
    for splits, expected in fakes.examples(task).items():
        found = [row for split in splits.split("+") for row in rows[split]]
        assert collections.Counter(found) == collections.Counter(expected)
    assert f"{loaded.folder.name} {loaded.sha256}" == f"{task}-{GOLDEN[task]}"


@downloads
def test_seed_changes_only_the_held_out_examples(task, archive, folder):
    first, second = (all_rows(fakes.load(task, folder, seed=seed)) for seed in (0, 1))
    assert first["test"] == second["test"]
    assert first["valid"] != second["valid"]
    assert [len(rows) for rows in second.values()] == [len(rows) for rows in first.values()]
    with pytest.raises(ValueError, match=r"12,500|5,000"):  # the official sizes are the default
        data.load(data.DataConfig(task=task, dir=str(folder), max_len=7))


@every_task
def test_prepares_data_once_and_again_after_a_change(task, folder, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    first = fakes.load(task, folder)
    with (
        monkeypatch.context() as patch
    ):  # a label, so that only the metadata of Pathfinder are read
        patch.setattr(release, "read_lines", lambda *_, **__: pytest.fail("read again"))
        patch.setattr(data.task.cache, "_build", lambda *_: pytest.fail("built again"))
        assert fakes.load(task, folder, examples=0, max_len=7).sha256 == first.sha256
    (message,) = (text for text in caplog.messages if text.startswith("Preparing "))
    assert str(folder) in message
    assert pathlib.Path(message.split("saved to ")[1]) == first.folder

    name = next(name for name in fakes.files(task) if not name.endswith(".png"))
    path = folder / name
    changed = {
        "text": b"Changed.",
        "image": fakes.files(task)[name][:-1] + b"\0",
    }.get(task) or b"".join(reversed(path.read_bytes().splitlines(keepends=True)[1:]))
    if task == "listops":
        changed = b"Source\tTarget\r\n" + changed
    path.write_bytes(changed)
    fakes.load(task, folder)
    assert len(data_folders()) == 2


@downloads
def test_folder_parent_and_archive_give_the_same_data(task, archive, folder, tmp_path):
    files = fakes.files(task)
    others = {"train/unsup/0_0.txt": b"\xff", "README": b"\xff", "train/urls_pos.txt": b"\xff"}
    fakes.write_folder(folder, others)
    root = fakes.FOLDERS[task]
    for number, prefix in enumerate((f"{root}/", f"{tmp_path}/elsewhere/{root}/")):
        content = dict(reversed({**others, **files}.items())) if number else {**others, **files}
        fakes.write_archive(tmp_path / str(number) / archive, content, prefix)
    (tmp_path / "link").symlink_to(folder)
    places = (folder, folder.parent, tmp_path / "link", *(tmp_path / name for name in "01"))
    places += (tmp_path / "0" / archive,)
    assert len({fakes.load(task, place).sha256 for place in places}) == 1
    assert [path.name for path in (tmp_path / "0").iterdir()] == [archive]
    assert not (tmp_path / "elsewhere").exists()


@released
@pytest.mark.parametrize("place", ["", "lra_release", "lra_release/lra_release", "other"])
def test_files_of_the_release_are_found_below_the_folder(task, other, place, folder, tmp_path):
    expected = fakes.load(task, folder).sha256
    unpacked = tmp_path / "unpacked"
    target = unpacked / (other if place == "other" else pathlib.Path(place, fakes.FOLDERS[task]))
    target.parent.mkdir(parents=True)
    folder.rename(target)
    (tmp_path / "link").symlink_to(unpacked)
    assert fakes.load(task, tmp_path / "link").sha256 == expected


@released
def test_the_inner_copy_of_the_release_is_read(task, other, folder, tmp_path):
    """As in the official script, which deletes the outer copy."""
    expected = fakes.load(task, folder).sha256
    outer = tmp_path / "lra_release"
    shutil.copytree(folder, outer / "lra_release" / fakes.FOLDERS[task])
    fakes.write_folder(outer / fakes.FOLDERS[task], dict.fromkeys(fakes.files(task), b"damaged"))
    for place in (tmp_path, outer / "lra_release"):
        assert fakes.load(task, place).sha256 == expected


@every_task
def test_missing_files_are_named_with_their_source_and_the_flag(task, tmp_path):
    (tmp_path / "nowhere" / "cifar-10-batches-py").mkdir(parents=True)  # pickles are not read
    with pytest.raises(FileNotFoundError, match=r"nowhere.*https://.*--config\.data\.dir"):
        fakes.load(task, tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"data\.(dir|source)"):
        fakes.load(task, "", source="files" if task != "retrieval" else "tfds")
    assert data_folders() == []


@every_task
def test_an_unreadable_file_is_not_reported_as_a_full_cache(task, folder, monkeypatch):
    refused = next(name for name in fakes.files(task) if not name.endswith(".png"))
    working = {name: getattr(pathlib.Path, name) for name in ("read_bytes", "open")}

    def refuse(method):  # made up, because root may read everything
        def call(path, *arguments, **options):
            if str(path).endswith(refused):
                raise PermissionError(13, "Permission denied", str(path))
            return working[method](path, *arguments, **options)

        return call

    for method in working:
        monkeypatch.setattr(pathlib.Path, method, refuse(method))
    with pytest.raises(OSError, match="Permission denied") as error:
        fakes.load(task, folder)
    assert refused in str(error.value)
    assert "Free some space" not in str(error.value)


@downloads
def test_equal_examples_are_in_the_same_split(task, archive, folder):
    """Half of a class is repeated; images in other colors of the same gray."""
    if task == "text":
        for i in range(0, 16, 2):
            content = (folder / f"train/neg/{i}_2.txt").read_bytes().strip()
            (folder / f"train/neg/{i + 1}_2.txt").write_bytes(content + b"\n")
    else:
        records = fakes.records((folder / "data_batch_1.bin").read_bytes())
        records[:, 1:] = np.tile(records[:, 1:1025], 3)  # gray
        (folder / "data_batch_1.bin").write_bytes(records.tobytes())
        records[:, 2049:] |= 1  # change of blue that does not change the gray value
        (folder / "data_batch_2.bin").write_bytes(records.tobytes())
    rows = all_rows(fakes.load(task, folder))
    assert len(set(rows["train"])) < len(rows["train"])
    assert set(rows["valid"]).isdisjoint(rows["train"])
    labels = [label for _, label in rows["valid"]]
    assert set(np.bincount(labels)) == {2}
