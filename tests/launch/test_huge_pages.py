"""A program restarts itself only where a restart gives it huge pages."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from launch import huge_pages

PROGRAM = """
import os, sys
from pathlib import Path
from launch import huge_pages

huge_pages.KERNEL_SETTING = Path(sys.argv[1])
print("start", os.getpid(), flush=True)
huge_pages.restart()
print(os.environ.get("GLIBC_TUNABLES", ""), huge_pages.in_use(), sys.argv[2:], sys.flags.optimize)
"""
LIBRARY = platform.libc_ver()[0]


def run_program(folder: Path, setting: str, tunables: str = "") -> list[str]:
    program, kernel = folder / "program.py", folder / "enabled"
    program.write_text(PROGRAM)
    kernel.write_text(setting)
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    if tunables:
        environment["GLIBC_TUNABLES"] = tunables
    output = subprocess.run(
        [sys.executable, "-O", program, kernel, "an argument", "--flag=1"],
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not output.stderr
    return output.stdout.splitlines()


@pytest.mark.skipif(LIBRARY != "glibc", reason="only glibc can be asked for huge pages")
@pytest.mark.parametrize("others", ["", "glibc.malloc.check=0"])
def test_restarts_once_with_the_same_process_and_arguments_and_keeps_other_tunables(
    tmp_path, others
):
    first, second, end = run_program(tmp_path, "always [madvise] never\n", others)
    assert first == second
    tunables = ":".join(filter(None, ["glibc.malloc.hugetlb=1", huge_pages.ARENAS, others]))
    assert end == f"{tunables} True ['an argument', '--flag=1'] 1"


@pytest.mark.parametrize(
    ("setting", "tunables"),
    [
        ("always [madvise] never\n", "glibc.malloc.hugetlb=0"),  # a choice of the user
        ("[always] madvise never\n", ""),
        ("always madvise [never]\n", ""),
        ("", ""),
    ],
)
def test_does_not_restart_after_a_choice_of_the_user_or_the_kernel(tmp_path, setting, tunables):
    _, end = run_program(tmp_path, setting, tunables)
    assert end.startswith(f"{tunables} False ")


@pytest.mark.parametrize(
    ("library", "setting"),
    [
        (("glibc", "2.35"), "missing"),
        *((other, "enabled") for other in (("", ""), ("libc", "1.2.5"), ("glibc", "2.34"))),
        *((("glibc", version), "enabled") for version in ("", "2.x")),
    ],
)
def test_does_not_restart_on_other_systems(monkeypatch, tmp_path, library, setting):
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(huge_pages, "KERNEL_SETTING", tmp_path / setting)
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    monkeypatch.setattr(sys, "argv", [__file__])
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started again"))
    huge_pages.restart()
    assert not huge_pages.in_use()
