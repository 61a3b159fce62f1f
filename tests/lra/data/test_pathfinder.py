import dataclasses
import hashlib
import logging

import numpy as np
import pytest

from dataprep import cache
from lra import data
from lra.data import pathfinder, pathfinder_generator
from tests.lra.data import fakes

CONFIG = data.DataConfig(task="pathfinder32-easy", max_len=1024, examples=7, workers=1)


def generate(start, stop, *, seed=0):
    return pathfinder_generator.generate(32, "easy", seed=seed, start=start, stop=stop)


def images_of(split):
    return split.sequences.tokens.reshape(-1, 32, 32)


# --- Generated


def test_a_shortened_split_and_its_statistics_are_the_beginning_of_the_full_one():
    task, other = data.load(CONFIG), data.load(dataclasses.replace(CONFIG, seed=1))
    for split, start in (("train", 0), ("valid", 160_000), ("test", 180_000)):
        drawn = generate(start, start + 7)
        np.testing.assert_array_equal(images_of(task.splits[split]), drawn.images)
        np.testing.assert_array_equal(task.splits[split].labels, drawn.labels)
        statistics = np.load(task.folder / f"{split}_statistics.npy")
        expected = np.stack([getattr(drawn, name) for name in pathfinder.STATISTICS], axis=1)
        np.testing.assert_array_equal(statistics, expected.astype(np.float32))
    np.testing.assert_array_equal(images_of(other.splits["train"]), generate(0, 7, seed=1).images)


def test_data_do_not_depend_on_processes_and_chunks(monkeypatch, tmp_path):
    first = data.load(CONFIG).sha256
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(pathfinder, "CHUNK_BYTES", 3 * 1024)
    assert data.load(dataclasses.replace(CONFIG, workers=2, max_len=7)).sha256 == first


def test_the_paths_of_a_curriculum_grow_and_never_change(monkeypatch):
    """Images without a path of the full length: the first have 2 paddles, the last up to 5.

    Golden: other hashes mean other images than those of the stored results. With several chunks the
    random numbers depend on the number of the chunk.
    """
    config = dataclasses.replace(CONFIG, examples=40, curriculum=50)
    task = data.load(config)
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
    digest = hashlib.sha256(images.tobytes() + np.asarray(curriculum.labels).tobytes()).hexdigest()
    assert digest == "d726e8f6c1c29ed88348b5d1d051e77200fcd76415982e4d20813e82b558d81b"
    monkeypatch.setattr(pathfinder, "CHUNK_BYTES", 7 * 1024)
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", f"{cache.cache_dir()}-other")
    _, prepared = data.load(config).open_curriculum()
    assert prepared.sha256 == "a55e89e98ae9d0036350706a252d4e64141134ac161569ca3e25296b68ca2e82"


# --- The release


@pytest.fixture
def release(tmp_path):
    return fakes.write_folder(tmp_path / fakes.FOLDERS[CONFIG.task], fakes.files(CONFIG.task))


def load_release(folder, **changes):
    return fakes.load(CONFIG.task, folder, **changes)


def test_hidden_metadata_and_the_order_of_the_lines_do_not_matter(release):
    expected = load_release(release).sha256
    (release / "metadata" / "._2.npy").write_bytes(b"\0\5\26\7")  # as macOS writes them
    path = release / "metadata" / "2.npy"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert load_release(release).sha256 == expected


def test_the_release_is_split_by_the_seed(release):
    task = load_release(release.parents[1])
    assert [len(split) for split in task.splits.values()] == [18, 2, 3]
    assert load_release(release, seed=1).sha256 != task.sha256


def test_an_empty_image_is_dropped_with_a_warning(release, caplog):
    (release / "imgs" / "2" / "sample_7.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        task = load_release(release)
    assert sum(len(split) for split in task.splits.values()) == 22
    assert "sample_7.png is empty and is left out" in caplog.text
