"""Labels and commands of a user's own task."""

import sys
import types

import pytest

from configs import common, listops
from lra import data
from lra.report.labels import config_values, track_of
from lra.report.page import command
from tests.lra.report.runs import groups_in, write_run


def get_config(argument="nystrom"):
    config = common.base(argument)
    config.data.task = "majority"
    config.data.max_len = config.model.max_len = 64
    config.model.vocab_size = 3
    config.optimizer.warmup_steps = 5
    config.train.batch_size = 32
    config.train.total_steps = 20
    config.eval.every_steps = 20
    return common.finish(config, argument)


@pytest.fixture
def own_task(monkeypatch):
    row = data.TaskInfo(3, num_classes=2, load=None, sizes={}, total_steps=20)
    monkeypatch.setitem(data.TASKS, "majority", row)
    config_values.cache_clear()
    yield
    config_values.cache_clear()


def write(folder, **sections):
    config = get_config().to_dict()
    for section, changes in sections.items():
        config[section].update(changes)
    attention = config.pop("attention")
    return write_run(
        folder, task="majority", attention=attention, steps=(10, 20), config=config, seed=0
    )


@pytest.mark.usefixtures("own_task")
def test_labels_without_a_config_file_contain_the_differences(tmp_path):
    write(tmp_path / "plain")
    (alone,) = groups_in(tmp_path)
    assert alone.label == "nystrom-64"
    write(tmp_path / "shorter", data={"max_len": 33})
    assert {group.label for group in groups_in(tmp_path)} == {
        "nystrom-64, max len 33",
        "nystrom-64, max len 64",
    }
    assert {track_of(group.setting) for group in groups_in(tmp_path)} == {"other"}


@pytest.mark.usefixtures("own_task")
def test_command_without_a_config_file_has_a_placeholder(tmp_path):
    write(tmp_path / "shorter", data={"max_len": 33})
    (group,) = groups_in(tmp_path)
    assert command(group.runs[0], group) == (
        "python run_lra.py --config=FILE --config.train.seed=0 --workdir=shorter"
        "  # FILE: the config file of majority, with the values of shorter/config.json"
    )


def _of_nystrom_alone(argument="nystrom"):
    return {"nystrom": get_config}[argument](argument)


@pytest.mark.usefixtures("own_task")
@pytest.mark.parametrize("own", [get_config, _of_nystrom_alone])
def test_label_and_command_contain_one_override_of_a_config_file(own, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "configs.majority", types.SimpleNamespace(get_config=own))
    write(tmp_path / "shorter", data={"max_len": 33})
    (group,) = groups_in(tmp_path)
    assert group.label == "nystrom-64, max len 33"
    line = command(group.runs[0], group)
    assert " --config=configs/majority.py:nystrom --config.data.max_len=33 " in line


@pytest.mark.usefixtures("own_task")
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"get_config": lambda: get_config()},
        {"get_config": lambda argument: listops.get_config()},
    ],
)
def test_ignores_a_module_without_the_config_of_the_task(own, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "configs.majority", types.SimpleNamespace(**own))
    write(tmp_path / "plain")
    (group,) = groups_in(tmp_path)
    assert group.label == "nystrom-64"
    assert " --config=FILE " in command(group.runs[0], group)
