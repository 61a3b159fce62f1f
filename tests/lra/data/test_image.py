import hashlib

import numpy as np

from lra.data import image
from tests.lra.data import fakes


def test_grey_of_every_color_equals_that_of_tensorflow():
    """The hash of the values of tf.image.rgb_to_grayscale in TensorFlow 2.21."""
    green, blue = np.indices((256, 256), np.uint8)
    digest = hashlib.sha256()
    for red in range(256):
        digest.update(
            image.to_gray(np.stack([np.full_like(green, red), green, blue], -1)).tobytes()
        )
    assert digest.hexdigest() == "824a76d81dad2c5a2cf1fa0b2c0a5afe7d871ec2970e4fa2809b53ddbecdca93"


def test_images_keep_the_order_of_the_files_and_have_names_of_classes(tmp_path):
    fakes.write_folder(tmp_path / "cifar-10-batches-bin", fakes.batches())
    task = fakes.load("image", tmp_path)
    expected, found = fakes.examples("image"), fakes.rows(task.splits["train"])
    assert fakes.rows(task.splits["test"]) == expected["test"]
    assert found == [row for row in expected["train+valid"] if row in set(found)]
    assert len(task.class_names) == 10
    assert task.decode(np.full(1024, 255)) == "\n".join(["@" * 32] * 16)
