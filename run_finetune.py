"""Fine-tunes a language model on your files: `python run_finetune.py --config=configs/finetune.py:KIND …`."""

import cli
from language import program

main = program.define("finetune", "KIND", "classification")

if __name__ == "__main__":
    cli.run(main)
