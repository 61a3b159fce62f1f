"""The folder of a run, with and without --workdir."""

from pathlib import Path

import pytest

import cli


@pytest.fixture(autouse=True)
def default(monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "default_folder", lambda: "runs/listops")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_run_folders_of_several_seeds_have_suffixes(tmp_path):
    assert cli.run_folder("runs/x", "-seed3", alone=True) == Path("runs/x")
    assert cli.run_folder("runs/x", "-seed3", alone=False) == Path("runs/x-seed3")
    assert cli.run_folder("runs/x/", "-seed3", alone=False) == Path("runs/x-seed3")
    for flag in (None, ""):
        for alone in (True, False):
            folder = cli.run_folder(flag, "-seed3", alone=alone)
            assert folder == Path("runs/listops-seed3")


def test_tilde_is_expanded(tmp_path):
    assert cli.run_folder("~/x", "-seed3", alone=True) == tmp_path / "x"
    assert cli.run_folder("~/x", "-seed3", alone=False) == tmp_path / "x-seed3"
    with pytest.raises(ValueError, match="this user does not exist"):
        cli.run_folder("~nobody-of-that-name/x", "-seed3", alone=True)


@pytest.mark.parametrize("flag", [".", "..", "a/..", "/"])
def test_rejects_a_folder_without_a_name_for_several_seeds(flag):
    assert cli.run_folder(flag, "-seed3", alone=True) == Path(flag)
    with pytest.raises(
        ValueError, match=r"no folder name to which -seed3 can be added: pass a path such as "
    ):
        cli.run_folder(flag, "-seed3", alone=False)
