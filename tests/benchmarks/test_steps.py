"""A process that measures holds no more than it is given, and starts its peak anew."""

import subprocess
import sys
from pathlib import Path

import pytest

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
print(steps._peak_kibibytes() // 1024)
steps._forget_peak()
print(steps._peak_kibibytes() // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux's own")
def test_a_process_holds_no_more_than_its_limit():
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    said, before, after = output.stdout.split()
    assert said == "refused"
    assert int(before) - int(after) > 50
