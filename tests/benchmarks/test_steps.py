"""A process that measures holds no more than it is given."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import steps

PROGRAM = """
from benchmarks import steps

MIB = 2**20
steps.limit_memory(300 * MIB)
bytearray(100 * MIB)
try:
    bytearray(400 * MIB)
    print("held")
except MemoryError:
    print("refused")
"""


@pytest.mark.skipif(not steps.STATUS.is_file(), reason="Linux's own")
def test_a_process_holds_no_more_than_its_limit():
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.stdout == "refused\n"
