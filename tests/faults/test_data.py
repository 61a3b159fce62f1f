"""A run has no result if its data change."""

import json

import pytest

from lra import data, train
from nystromformer_jax.training import ConfigDiffers, Workdir, loop
from tests.lra.test_train import small_config


def change_a_label(folder):
    """Changes a file in place, as another program would, so that memory maps see the change."""
    with (folder / "test_labels.npy").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """A run whose test set changes after it was opened, while the run trains; and its task."""
    config = small_config()
    prepared = train.prepare(config)
    task = data.load(prepared.data)
    fit = loop.fit

    def fit_and_change(*arguments, **options):
        fit_result = fit(*arguments, **options)
        change_a_label(task.folder)
        return fit_result

    monkeypatch.setattr(loop, "fit", fit_and_change)
    return config, prepared, task


@pytest.mark.slow(minutes=0.4)
def test_run_has_no_result_if_its_data_change(changed, tmp_path):
    config, prepared, task = changed
    with (
        Workdir(tmp_path / "run", config) as workdir,
        pytest.raises(ConfigDiffers, match=r"data of .*/run changed during the run") as refused,
    ):
        train.train(prepared, task, workdir)
    assert f"{task.folder}/test_labels.npy was modified" in str(refused.value)
    assert "another --workdir" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run/result.json").exists()
    recorded = json.loads((tmp_path / "run/config.json").read_text())["hashes"]
    assert recorded["sha256"] == task.sha256  # the report still knows the group of the run
    with pytest.raises(ValueError, match=r"test_labels\.npy was modified"):
        data.load(prepared.data)
    change_a_label(task.folder)  # the data are restored, but the run has used the changed ones
    again = data.load(prepared.data)
    assert again.sha256 == task.sha256
    with (
        Workdir(tmp_path / "run", config) as workdir,
        pytest.raises(ConfigDiffers, match="will have no result: train again in another"),
    ):
        train.train(prepared, again, workdir)
