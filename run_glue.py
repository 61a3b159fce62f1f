"""Fine-tunes a language model on GLUE or IMDb: `python run_glue.py --config=configs/glue.py:sst2 …`."""

import cli
from language import program

main = program.define("glue", "TASK", "sst2")

if __name__ == "__main__":
    cli.run(main)
