"""ListOps: nested operations on digits, 501 to 1,999 tokens, ten classes. The data are generated.

    python run_lra.py --config=configs/listops.py                  # Nyström, 64 landmarks
    python run_lra.py --config=configs/listops.py:softmax
    python run_lra.py --config=configs/listops.py:nystrom,num_landmarks=32
    python run_lra.py --config=configs/listops.py:nystrom,quirks=mlpen   # as in the authors' code
    python run_lra.py --config=configs/listops.py:nystrom,recipe=fast    # 0.8 hours on one core

Source: Xiong et al. 2021 (arXiv:2102.03902) and the authors' `LRA/code/lra_config.py`: 2 layers, width
64, MLP 128, 2 heads of 32, 2,048 positions, batch size 32, 5,000 steps, peak rate 1e-4 after 1,000 steps.
Data: Tay et al. 2020 (arXiv:2011.04006): the distribution of the official generator, with brackets.
Differs: validation every 500 steps, not every 50.
recipe=fast: in addition to `configs/fast.py`, a head on the first token, the last token and the mean, a
convolution of width 35, no dropout, and 12,000 steps with batch size 16, of which the first 8,000 are on
trees of 4 to 499 tokens, whose lengths grow (`data.curriculum`).
Expected: the paper has 37.15 % (Nyström) and 37.10 % (softmax); the most frequent class has 17.25 %.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the paper's config; `argument` selects the attention and its options."""
    config = common.base(argument)
    config.data.task = "listops"
    config.data.max_len = 2048
    config.model.vocab_size = 32  # 16 are used; the authors' embedding has 32 rows
    config.model.max_len = 2048
    config.optimizer.warmup_steps = 1000
    config.train.batch_size = 32
    config.train.total_steps = 5000
    return common.finish(config, argument)
