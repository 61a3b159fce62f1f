"""Pathfinder: does a dashed path connect two dots? 32 × 32 pixels as 1,024 tokens. The data are generated.

    python run_lra.py --config=configs/pathfinder.py                          # Nyström, 64 landmarks
    python run_lra.py --config=configs/pathfinder.py:softmax
    python run_lra.py --config=configs/pathfinder.py:nystrom,resolution=64
    python run_lra.py --config=configs/pathfinder.py:nystrom,difficulty=easy  # easy, intermediate or hard
    python run_lra.py --config=configs/pathfinder.py --config.data.dir=FOLDER # files of the release
    python run_lra.py --config=configs/pathfinder.py:nystrom,recipe=fast      # 2.8 hours on one core

FOLDER is where https://storage.googleapis.com/long-range-arena/lra_release.gz was unpacked, or its
folder lra_release or pathfinder32.

Source: Xiong et al. 2021 (arXiv:2102.03902) and the authors' `LRA/code/lra_config.py`: 2 layers, width
64, MLP 128, 2 heads of 32, batch size 256, 62,400 steps, peak rate 1e-4 after 312 steps. Larger images, which
the paper does not use, are trained for the same number of epochs with smaller batches.
Data: Tay et al. 2020 (arXiv:2011.04006) and Kim et al. 2020 (arXiv:1906.01558), 160,000/20,000/20,000.
Differs: black pixels are real tokens; the code of both LRA papers masks them (`quirks=mlpen`). Validation
every 1,000 steps, not every 312.
recipe=fast: in addition to `configs/fast.py`, 14 convolutions of width 3 instead of the two of width 5, along
rows and columns in turn, that reach 1, 2 and 4 pixels; the first 96,000 training examples are generated
images whose paths grow from 2 paddles to one fewer than in the task, 13 if hard (`data.curriculum`); pixel
embeddings initialized with Fourier features, a convolution of width 2 × resolution + 3 (which covers the
pixels above and below), no dropout, and 6,000 steps with batch size 32.
Expected: the paper has 70.94 % (Nyström) and 74.16 % (softmax) on hard 32 × 32; a constant answer has 50 %.
"""

from ml_collections import ConfigDict

from configs import common

BATCH_SIZES = {32: 256, 64: 128, 128: 64, 256: 16}
EPOCHS = 99.84  # 62,400 steps of 256 on 160,000 training images, as in the paper


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the paper's config; `argument` selects attention, resolution and difficulty."""
    options = {"resolution": tuple(BATCH_SIZES), "difficulty": ("hard", "intermediate", "easy")}
    argument, selected = common.extract_options(argument, options)
    resolution, difficulty = int(selected["resolution"]), selected["difficulty"]
    config = common.base(argument)
    config.data.task = f"pathfinder{resolution}{'' if difficulty == 'hard' else f'-{difficulty}'}"
    config.data.max_len = resolution**2
    config.model.vocab_size = 512  # 256 are used; the authors' embedding has 512 rows
    config.model.max_len = resolution**2
    config.train.batch_size = BATCH_SIZES[resolution]
    config.train.total_steps = round(EPOCHS * 160_000 / config.train.batch_size)
    config.optimizer.warmup_steps = config.train.total_steps // 200
    config.eval.every_steps = 1000
    return common.finish(config, argument)
