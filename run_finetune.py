"""Fine-tunes a language model on your files: `python run_finetune.py --config=configs/finetune.py:KIND …`."""

import cli
from language import program

main = program.define(
    "configs/finetune.py:KIND[,attention=NAME][,option=value …]",
    "configs/finetune.py:classification",
    ("finetune",),
)

if __name__ == "__main__":
    cli.run(main)
