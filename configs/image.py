"""Image: classify grayscale CIFAR-10 images, 32 × 32 pixels as 1,024 tokens, ten classes.

    python run_lra.py --config=configs/image.py --config.data.dir=FOLDER      # Nyström, 64 landmarks
    python run_lra.py --config=configs/image.py:softmax --config.data.dir=FOLDER
    python run_lra.py --config=configs/image.py --config.data.source=tfds     # prepared cifar10
    python run_lra.py --config=configs/image.py:nystrom,quirks=mlpen --config.data.dir=FOLDER
    python run_lra.py --config=configs/image.py:nystrom,recipe=fast --config.data.dir=FOLDER  # 1.8 hours

FOLDER holds cifar-10-binary.tar.gz (https://www.cs.toronto.edu/~kriz/cifar.html) or cifar-10-batches-bin/.

Source: Xiong et al. 2021 (arXiv:2102.03902) and the authors' `LRA/code/lra_config.py`: 2 layers, width
64, MLP 128, 2 heads of 32, batch size 256, 35,000 steps, peak rate 1e-4 after 175 steps.
Data: Tay et al. 2020 (arXiv:2011.04006). Differs: black pixels are real tokens; the code of both papers masks
them (`quirks=mlpen`). Validation every 500 steps, not every 175.
recipe=fast: in addition to `configs/fast.py`, pixel embeddings initialized with Fourier features, a
convolution of width 67 (which covers the pixels above and below), no dropout, weight decay 0.05, and 4,500
steps with batch size 64.
Expected: the paper has 41.58 % (Nyström) and 38.20 % (softmax); a constant answer has 10 %.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the paper's config; `argument` selects the attention and its options."""
    config = common.base(argument)
    config.data.task = "image"
    config.data.max_len = 1024
    config.model.vocab_size = 512  # 256 are used; the authors' embedding has 512 rows
    config.model.max_len = 1024
    config.optimizer.warmup_steps = 175
    config.train.batch_size = 256
    config.train.total_steps = 35_000
    return common.finish(config, argument)
