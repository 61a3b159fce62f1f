"""The tiny model that fine-tuning starts from."""

import pytest

from tests.language.finetune import fakes


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """The folder of a tiny model with a vocabulary, written without training.

    It is in the folder of a run, and has a license.
    """
    folder = fakes.checkpoint(tmp_path_factory.mktemp("mine") / "model")
    (folder.parent / "config.json").write_text("{}")
    (folder / "README.md").write_text("---\ntags:\n- a\nlicense: apache-2.0\n---\nlicense: mit\n")
    return folder
