"""A run's folder, by --workdir or without it."""

from pathlib import Path

import pytest

from harness import command_line


@pytest.fixture(autouse=True)
def default(monkeypatch, tmp_path):
    monkeypatch.setattr(command_line, "default_folder", lambda: "runs/listops")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_one_run_has_the_folder_itself_and_several_have_their_seeds_behind_it(tmp_path):
    assert command_line.run_folder("runs/x", 3, alone=True) == Path("runs/x")
    assert command_line.run_folder("runs/x", 3, alone=False) == Path("runs/x-seed3")
    assert command_line.run_folder("runs/x/", 3, alone=False) == Path("runs/x-seed3")
    for flag in (None, ""):
        for alone in (True, False):
            folder = command_line.run_folder(flag, 3, alone=alone)
            assert folder == Path("runs/listops-seed3")


def test_a_tilde_is_the_users_home(tmp_path):
    assert command_line.run_folder("~/x", 3, alone=True) == tmp_path / "x"
    assert command_line.run_folder("~/x", 3, alone=False) == tmp_path / "x-seed3"
    with pytest.raises(ValueError, match="no such user"):
        command_line.run_folder("~nobody-of-that-name/x", 3, alone=True)


@pytest.mark.parametrize("flag", [".", "..", "a/..", "/"])
def test_seeds_need_a_name_to_stand_behind(flag):
    assert command_line.run_folder(flag, 3, alone=True) == Path(flag)
    with pytest.raises(ValueError, match=r"has no name to put -seed3 behind: pass one, such as "):
        command_line.run_folder(flag, 3, alone=False)
