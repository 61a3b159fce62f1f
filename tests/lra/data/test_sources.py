import dataclasses

import pytest

from lra import data
from lra.data import sources

CONFIG = data.DataConfig(task="text", max_len=100)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"source": "generated", "dir": "x"}, r"no source 'generated': set data\.source to auto"),
        ({"source": "auto"}, r"Text needs the reviews: set --config\.data\.dir to .*source=tfds"),
        ({"source": "files"}, r"Text needs the reviews: set --config\.data\.dir"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        sources.from_tfds(dataclasses.replace(CONFIG, **changes), task="Text", needs="the reviews")


def test_files_or_tfds():
    for source, dir, tfds in [
        ("auto", "x", False),
        ("files", "x", False),
        ("tfds", "x", True),
        ("tfds", "", True),
    ]:
        config = dataclasses.replace(CONFIG, source=source, dir=dir)
        assert sources.from_tfds(config, task="Text", needs="the reviews") == tfds
