import io

import numpy as np
import pytest
from PIL import Image

from lra import data
from lra.data import image, listops, pathfinder, retrieval, text
from tests.lra.data import fakes


def test_error_suggests_the_nearest_task():
    with pytest.raises(ValueError, match=r"Unknown task 'listop'; did you mean listops"):
        data.load(data.DataConfig(task="listop", max_len=7))


def test_error_lists_all_tasks_if_none_is_near():
    with pytest.raises(ValueError, match=r"; known: image, listops, .*, retrieval, text\.$"):
        data.load(data.DataConfig(task="#", max_len=7))


def test_model_size_is_known_before_the_data_are_prepared():
    info = data.describe("listops")
    assert (info.vocab_size, info.num_classes) == (16, 10)


@pytest.fixture
def upstream_files():
    """Small files of the release, by path below the unpacked folder."""
    png = io.BytesIO()
    Image.fromarray(np.full((32, 32), 7, np.uint8)).save(png, "PNG")
    drawn = f"pathfinder32/{pathfinder.RELEASE_FOLDERS['hard']}"
    rows = "".join(f"imgs/0 {row}.png {row} {row % 2}\n" for row in range(10))
    return {
        **{
            f"listops-1000/{name}": b"Source\tTarget\n( ( ( [MAX 1 ) 2 ) ] )\t2\n"
            for name in listops.OFFICIAL_FILES.values()
        },
        **{
            f"tsv_data/{name}": b"1.0\ta\tb\tA text.\tAnother.\n"
            for name in retrieval.OFFICIAL_FILES.values()
        },
        f"{drawn}/metadata/0.npy": rows.encode(),
        **{f"{drawn}/imgs/0/{row}.png": png.getvalue() for row in range(10)},
    }


@pytest.mark.parametrize("outer", ["a complete copy", "an incomplete copy"])
def test_the_inner_copy_of_the_release_is_read(tmp_path, upstream_files, outer):
    """As in the official script, which deletes the outer copy."""
    fakes.write_folder(tmp_path / "lra_release" / "lra_release", upstream_files)
    copy = dict(upstream_files)
    for name in listops.OFFICIAL_FILES.values():
        copy[f"listops-1000/{name}"] = b"Source\tTarget\n1\t1\n2\t2\n"
    if outer == "an incomplete copy":
        copy = {name: copy[name] for name in sorted(copy) if "test" not in name}
    fakes.write_folder(tmp_path / "lra_release", copy)
    for folder in (tmp_path, tmp_path / "lra_release", tmp_path / "lra_release" / "lra_release"):
        config = data.DataConfig(task="listops", dir=str(folder), max_len=7)
        assert len(data.load(config).splits["train"]) == 1
    config = data.DataConfig(task="retrieval", dir=str(tmp_path), max_len=7)
    assert len(data.load(config).splits["train"]) == 1


def test_the_data_folder_of_the_official_script_serves_every_task(tmp_path, upstream_files):
    names = {
        "listops-1000": "listops",
        "tsv_data": "aan",
        "pathfinder32": "pathfinder/pathfinder32",
    }
    renamed = {
        "/".join([names[name.split("/")[0]], *name.split("/")[1:]]): content
        for name, content in upstream_files.items()
    }
    fakes.write_folder(tmp_path, renamed)
    for task in ("listops", "retrieval", "pathfinder32"):
        data.load(data.DataConfig(task=task, dir=str(tmp_path), max_len=7))


@pytest.mark.parametrize("place", [".", "lra_release", "lra_release/lra_release"])
def test_one_folder_serves_every_task(tmp_path, upstream_files, place):
    fakes.write_folder(tmp_path / place, upstream_files)
    fakes.write_folder(tmp_path / "aclImdb", fakes.reviews())
    fakes.write_folder(tmp_path / "cifar-10-batches-bin", fakes.batches())

    def config(task):
        return data.DataConfig(task=task, dir=str(tmp_path), max_len=7)

    assert len(data.load(config("listops")).splits["train"]) == 1
    assert len(data.load(config("retrieval")).splits["train"]) == 1
    assert len(data.load(config("pathfinder32")).splits["train"]) == 8
    reviews = text.load(config("text"), per_class=fakes.REVIEWS_PER_CLASS)
    assert len(reviews.splits["test"]) == 2 * fakes.REVIEWS_PER_CLASS
    images = image.load(config("image"), images_per_file=fakes.IMAGES_PER_FILE)
    assert len(images.splits["test"]) == fakes.IMAGES_PER_FILE
