"""README's code runs, and its two commands are where CI looks for them."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_code_to_run():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block):
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["output"].shape == names["exact"].shape == names["query"].shape
    assert names["y"].shape == names["x"].shape


@pytest.mark.parametrize("marker", ["main-job", "tests"])
def test_the_commands_that_ci_runs_are_one_line_each(marker):
    block = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert block[1].count("\n") == 1
    assert block[1].startswith("python3 -m venv .venv && .venv/bin/pip install")
