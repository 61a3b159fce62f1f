"""A folder that tensorflow-datasets did not prepare is refused in a sentence."""

import pytest

from dataprep.tfds_reader import PreparedByTfds


def test_a_folder_without_what_tfds_says_of_it_is_a_sentence(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=rf"The corpus needs .*{tmp_path} has no dataset_info\.json\.",
    ):
        PreparedByTfds.open(tmp_path, task="The corpus")
