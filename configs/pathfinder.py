"""Pathfinder: does a dashed path join the two dots? 32 × 32 pixels as 1,024 tokens. The data are generated.

    python run_lra.py --config=configs/pathfinder.py                          # Nyström, 64 landmarks
    python run_lra.py --config=configs/pathfinder.py:softmax
    python run_lra.py --config=configs/pathfinder.py:nystrom,resolution=64
    python run_lra.py --config=configs/pathfinder.py:nystrom,difficulty=easy  # easy, intermediate or hard
    python run_lra.py --config=configs/pathfinder.py --config.data.dir=FOLDER # files of the release
    python run_lra.py --config=configs/pathfinder.py:nystrom,recipe=fast      # an hour on two cores

FOLDER is lra_release of https://storage.googleapis.com/long-range-arena/lra_release.gz, or its pathfinder32.

Source: Xiong et al. 2021 (arXiv:2102.03902) and the authors' `LRA/code/lra_config.py`: 2 layers, width
64, MLP 128, 2 heads of 32, batch 256, 62,400 steps, peak rate 1e-4 after 312. Larger images, which the
paper lacks, train on as many examples in smaller batches.
Data: Tay et al. 2020 (arXiv:2011.04006) and Kim et al. 2020 (arXiv:1906.01558), 160,000/20,000/20,000.
Differs: black pixels are real tokens, in both their codes they are padding (`quirks=mlpen`); validation every
1,000 steps, theirs every 312.
recipe=fast: besides the values that `configs/fast.py` sets on every task, four layers, pixel embeddings that
start as Fourier features, a convolution of 2 × resolution + 3 (it reads the pixels above and below), no
dropout, and 10,000 steps of 32 examples.
Expected: the paper has 70.94 % (Nyström) and 74.16 % (softmax) on the hard 32 × 32; a constant gives 50 %.
"""

from ml_collections import ConfigDict

from configs import common

BATCH_SIZES = {32: 256, 64: 128, 128: 64, 256: 16}
# Gradient accumulation, to save memory; theirs: 2 at 32 × 32.
PARTS = {32: 2, 64: 4, 128: 8, 256: 4}
PASSES = 99.84  # over 160,000 training images: the paper's 62,400 steps of 256


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the paper's run; `argument` selects attention, resolution and difficulty."""
    options = {"resolution": tuple(BATCH_SIZES), "difficulty": ("hard", "intermediate", "easy")}
    argument, selected = common.extract_options(argument, options)
    resolution, difficulty = int(selected["resolution"]), selected["difficulty"]
    config = common.base(argument)
    config.data.task = f"pathfinder{resolution}{'' if difficulty == 'hard' else f'-{difficulty}'}"
    config.data.max_len = resolution**2
    config.model.vocab_size = 512  # 256 occur; the authors' table has 512
    config.model.max_len = resolution**2
    config.train.batch_size = BATCH_SIZES[resolution]
    config.train.accumulation = PARTS[resolution]
    config.train.total_steps = round(PASSES * 160_000 / config.train.batch_size)
    config.optimizer.warmup_steps = config.train.total_steps // 200
    config.eval.every_steps = 1000
    config.eval.batch_size = max(8, config.train.batch_size // 4)
    return common.finish(config, argument)
