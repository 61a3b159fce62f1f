"""The former name of `run_finetune.py --config=configs/glue.py:TASK`; the next release removes it."""

import sys

from launch import huge_pages
from run_finetune import main

if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
