import dataclasses
import errno
import hashlib
import itertools
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

from dataprep import cache
from lra import data
from lra.data import pathfinder, pathfinder_generator

CONFIG = data.DataConfig(task="pathfinder32-easy", max_len=1024, examples=7, workers=1)


def generate(start, stop, *, seed=0):
    return pathfinder_generator.generate(32, "easy", seed=seed, start=start, stop=stop)


def images_of(split):
    return split.sequences.tokens.reshape(-1, 32, 32)


# --- Generated


def test_a_shortened_split_is_the_beginning_of_the_full_one():
    task = data.load(CONFIG)
    for split, start in (("train", 0), ("valid", 160_000), ("test", 180_000)):
        drawn = generate(start, start + 7)
        np.testing.assert_array_equal(images_of(task.splits[split]), drawn.images)
        np.testing.assert_array_equal(task.splits[split].labels, drawn.labels)


def test_task_has_its_name_classes_and_shape():
    task = data.load(CONFIG)
    assert (task.name, task.image_shape) == ("pathfinder32-easy", (32, 32))
    assert data.describe(task.name).images
    assert {len(split) for split in task.splits.values()} == {7}
    tokens, label = task.splits["test"][3]
    assert tokens.shape == (1024,)
    assert task.class_names[label] in ("joined", "not joined")
    assert task.decode(tokens).count("\n") == 15  # a character is two rows high


def test_data_do_not_depend_on_processes_and_chunks(monkeypatch, tmp_path):
    first = data.load(CONFIG).sha256
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(pathfinder, "CHUNK_BYTES", 3 * 1024)
    assert data.load(dataclasses.replace(CONFIG, workers=2, max_len=7)).sha256 == first


def test_the_paths_of_a_curriculum_grow():
    """Images without a path of the full length: the first have 2 paddles, the last up to 5."""
    task = data.load(dataclasses.replace(CONFIG, examples=40, curriculum=50))
    curriculum, _ = task.open_curriculum()
    images = images_of(curriculum)
    assert len(curriculum) == len(images) == 40
    shortest = pathfinder_generator.draw(
        pathfinder_generator.parameters(32, "easy", 2), seed=0, start=0, stop=10
    )
    np.testing.assert_array_equal(images[:10], shortest.images)
    np.testing.assert_array_equal(curriculum.labels[:10], shortest.labels)
    five = pathfinder_generator.parameters(32, "easy", 5)
    longest = pathfinder_generator.draw(five, seed=0, start=0, stop=40).images
    last = [any((image == other).all() for other in longest) for image in images[30:]]
    assert 1 <= sum(last) < 10
    assert task.sha256 == data.load(dataclasses.replace(CONFIG, examples=40)).sha256
    # Golden: another hash means other images than those of the stored results.
    digest = hashlib.sha256(images.tobytes() + np.asarray(curriculum.labels).tobytes()).hexdigest()
    assert digest == "d726e8f6c1c29ed88348b5d1d051e77200fcd76415982e4d20813e82b558d81b"


def test_another_seed_gives_other_images():
    other = data.load(dataclasses.replace(CONFIG, seed=1))
    assert other.sha256 != data.load(CONFIG).sha256
    np.testing.assert_array_equal(images_of(other.splits["train"]), generate(0, 7, seed=1).images)


def test_black_pixels_are_masked_only_if_configured():
    task = data.load(CONFIG)
    rows = np.arange(7)
    batch = task.splits["train"].batch(rows, CONFIG.padding)
    assert batch["mask"].all()
    theirs = task.splits["train"].batch(rows, data.Padding(1024, 1024, zero_is_padding=True))
    np.testing.assert_array_equal(theirs["mask"], theirs["inputs"] > 0)


def test_statistics_are_stored_with_the_images():
    statistics = pathfinder.open_statistics(data.load(CONFIG), "valid")
    drawn = generate(160_000, 160_007)
    assert set(statistics) == set(pathfinder.STATISTICS)
    for name, values in statistics.items():
        np.testing.assert_array_equal(values, getattr(drawn, name).astype(np.float32))


def test_sizes_and_names_of_the_benchmark():
    assert pathfinder.SIZES == {"train": 160_000, "valid": 20_000, "test": 20_000}
    names = [
        pathfinder.task_name(resolution, difficulty)
        for resolution, difficulty in itertools.product(
            pathfinder.RESOLUTIONS, pathfinder.RELEASE_FOLDERS
        )
    ]
    assert len(set(names)) == 12
    assert set(names) < set(data.TASKS)
    assert pathfinder.task_name(32, "hard") == "pathfinder32"
    assert data.describe("pathfinder32").total_steps == 62_400
    assert pathfinder.RESOLUTIONS == pathfinder_generator.RESOLUTIONS
    assert set(pathfinder.RELEASE_FOLDERS) == set(pathfinder_generator.DIFFICULTIES)


def test_rejects_a_small_disk_before_drawing(monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=2**10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(pathfinder, "_draw_chunk", None)
    with pytest.raises(OSError, match=r"needs to write to .*0 MiB are needed.*Free some space"):
        data.load(CONFIG)
    assert [path for path in (cache.cache_dir() / "data").iterdir() if path.is_dir()] == []


# --- The release


@pytest.fixture
def release(tmp_path):
    """A folder as the release has it: 23 images in two parts."""
    from PIL import Image

    drawn = generate(0, 23)
    folder = tmp_path / "lra_release" / "pathfinder32" / "curv_baseline"
    (folder / "metadata").mkdir(parents=True)
    for part, rows in ((2, range(13)), (10, range(13, 23))):
        (folder / "imgs" / str(part)).mkdir(parents=True)
        lines = []
        for row in rows:
            name = f"sample_{row}.png"
            Image.fromarray(drawn.images[row]).save(folder / "imgs" / str(part) / name)
            lines.append(f"imgs/{part} {name} {row} {drawn.labels[row]} 1.0 6 2 2 0.5 1 1\n")
        (folder / "metadata" / f"{part}.npy").write_text("".join(lines))
    return folder


def load_release(folder, **changes):
    return data.load(dataclasses.replace(CONFIG, dir=str(folder), **{"examples": 0, **changes}))


def test_hidden_metadata_is_ignored_and_binary_metadata_is_an_error(release):
    expected = load_release(release).sha256
    (release / "metadata" / "._2.npy").write_bytes(b"\0\5\26\7")  # as macOS writes them
    assert load_release(release).sha256 == expected
    np.save(release / "metadata" / "2.npy", np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"2\.npy is an array in NumPy's binary format.*text"):
        load_release(release)


def test_every_image_of_the_release_is_in_one_split(release):
    task = load_release(release.parents[1])
    assert [len(split) for split in task.splits.values()] == [18, 2, 3]
    read = {
        (tokens.astype(np.uint8).tobytes(), label)
        for split in task.splits.values()
        for tokens, label in split
    }
    drawn = generate(0, 23)
    assert read == {
        (image.tobytes(), label)
        for image, label in zip(drawn.images, drawn.labels.tolist(), strict=True)
    }
    assert pathfinder.open_statistics(task, "train") == {}


def test_folder_may_be_a_link_with_another_name(release, tmp_path):
    (tmp_path / "link").symlink_to(release)
    assert load_release(tmp_path / "link").sha256 == load_release(release).sha256


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_folder_may_be_given_at_any_depth(release, depth):
    folder = (release, *release.parents)[depth]
    assert load_release(folder).sha256 == load_release(release.parents[2]).sha256


def test_the_order_of_the_metadata_does_not_matter(release):
    first = load_release(release).sha256
    path = release / "metadata" / "2.npy"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert load_release(release).sha256 == first


def test_another_seed_gives_other_splits(release):
    assert load_release(release, seed=1).sha256 != load_release(release).sha256


def test_an_empty_image_is_dropped_with_a_warning(release, caplog):
    (release / "imgs" / "2" / "sample_7.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        task = load_release(release)
    assert sum(len(split) for split in task.splits.values()) == 22
    assert "sample_7.png is empty and is left out" in caplog.text


def change_line(release, number, change):
    path = release / "metadata" / "10.npy"
    lines = path.read_text().splitlines()
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes("\n".join(lines).encode("latin-1"))


def cut_image(release):
    path = release / "imgs" / "2" / "sample_3.png"
    path.write_bytes(path.read_bytes()[:70])


def damage_header(release):
    path = release / "imgs" / "2" / "sample_3.png"
    content = bytearray(path.read_bytes())
    content[11] = 7  # length of the header chunk
    path.write_bytes(content)


def redraw_image(release, mode, side):
    from PIL import Image

    Image.new(mode, (side, side)).save(release / "imgs" / "2" / "sample_3.png")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda folder: change_line(folder, 3, lambda line: line + " 7"),
            r"10\.npy, line 3: expected 11 columns .* found 12",
        ),
        (
            lambda folder: change_line(folder, 1, lambda line: "imgs/10 sample_13.png"),
            r"10\.npy, line 1: expected at least 4 columns .* found 2",
        ),
        (
            lambda folder: change_line(folder, 2, lambda line: line.replace(" 14 ", " 14 3 ", 1)),
            r"10\.npy, line 2: ",
        ),
        (
            lambda folder: change_line(
                folder, 5, lambda line: f"imgs/10 sample_17.png 17 2 {line[-16:]}"
            ),
            r"10\.npy, line 5: the label in column 4 must be 0 or 1, not '2'",
        ),
        (
            lambda folder: change_line(folder, 4, lambda line: line.replace("sample", "s\xe4mple")),
            r"10\.npy, line 4: the line is not valid UTF-8",
        ),
        (cut_image, r"sample_3\.png is corrupt .*unpack lra_release\.gz again"),
        (damage_header, r"sample_3\.png is corrupt .*unpack lra_release\.gz again"),
        (
            lambda folder: redraw_image(folder, "L", 31),
            r"sample_3\.png has 31 × 31 pixels of mode L; Pathfinder needs 32 × 32",
        ),
        (
            lambda folder: redraw_image(folder, "RGB", 32),
            r"sample_3\.png has 32 × 32 pixels of mode RGB",
        ),
        (
            lambda folder: (folder / "imgs" / "2" / "sample_3.png").unlink(),
            r"2\.npy, line 4: the image .*sample_3\.png is missing; unpack",
        ),
        (
            lambda folder: change_line(
                folder, 2, lambda line: line.replace("sample_14", "sample_13")
            ),
            r"10\.npy, line 2: imgs/10/sample_13\.png occurs twice",
        ),
        (
            lambda folder: (folder / "metadata" / "10.npy").write_bytes(b""),
            r"10\.npy is empty; unpack",
        ),
        (
            lambda folder: [path.unlink() for path in (folder / "metadata").iterdir()],
            r"no \.npy in .*metadata; unpack",
        ),
        (
            lambda folder: shutil.rmtree(folder),
            r"no pathfinder32/curv_baseline/metadata under .*Unpack lra_release\.gz",
        ),
    ],
)
def test_rejects_corrupt_files_and_leaves_no_data(release, damage, sentence):
    damage(release)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        load_release(release.parents[1])
    folders = cache.cache_dir() / "data"
    assert not folders.exists() or not any(path.is_dir() for path in folders.iterdir())


@pytest.mark.parametrize(("method", "name"), [("read_bytes", "2.npy"), ("stat", "sample_3.png")])
def test_an_unreadable_file_is_not_reported_as_a_full_cache(release, method, name, monkeypatch):
    working = getattr(Path, method)

    def refused(path, **options):  # made up, because root may read everything
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return working(path, **options)

    monkeypatch.setattr(Path, method, refused)
    with pytest.raises(OSError, match=rf"{name} cannot be read \(Permission denied\): give it"):
        load_release(release)
