"""A program restarts itself only where a restart gives it huge pages."""

import platform

import pytest

from launch import huge_pages
from tests.programs import finish, start

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


def run_program(folder, setting, tunables=""):
    program, kernel = folder / "program.py", folder / "enabled"
    program.write_text(PROGRAM)
    kernel.write_text(setting)
    words = ("-O", program, kernel, "an argument", "--flag=1")
    answer = finish(start(*words, GLIBC_TUNABLES=tunables))
    assert (answer.code, answer.errors) == (0, ""), answer
    return answer.output.splitlines()


@pytest.mark.skipif(LIBRARY != "glibc", reason="only glibc can be asked for huge pages")
def test_restarts_once_with_the_same_process_and_arguments_and_keeps_other_tunables(tmp_path):
    others = "glibc.malloc.check=0"
    first, second, end = run_program(tmp_path, "always [madvise] never\n", others)
    assert first == second
    tunables = ":".join(["glibc.malloc.hugetlb=1", huge_pages.ARENAS, others])
    assert end == f"{tunables} True ['an argument', '--flag=1'] 1"


@pytest.mark.parametrize(
    ("setting", "tunables"),
    [
        ("always [madvise] never\n", "glibc.malloc.hugetlb=0"),  # a choice of the user
        ("[always] madvise never\n", ""),
        ("", ""),
    ],
)
def test_does_not_restart_after_a_choice_of_the_user_or_the_kernel(tmp_path, setting, tunables):
    _, end = run_program(tmp_path, setting, tunables)
    assert end.startswith(f"{tunables} False ")
