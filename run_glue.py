"""The former name of `run_finetune.py --config=configs/glue.py:TASK`; the next release removes it."""

import sys
from pathlib import Path

from launch import huge_pages
from run_finetune import main

if __name__ == "__main__":
    huge_pages.restart()
    sys.argv[0] = str(Path(__file__).with_name("run_finetune.py"))  # the name that a run records
    sys.exit(main())
