"""Folders that tensorflow-datasets did not prepare are rejected."""

import pytest

from dataprep.tfds_reader import PreparedByTfds


def test_rejects_a_folder_without_tfds_metadata(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path} has no dataset_info\.json"):
        PreparedByTfds.open(tmp_path, task="The corpus")
