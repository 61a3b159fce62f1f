"""Retrieval: does one paper cite the other? Two texts of 4,000 bytes, a shared encoder, two classes.

    python run_lra.py --config=configs/retrieval.py --config.data.dir=FOLDER  # Nyström, 64 landmarks
    python run_lra.py --config=configs/retrieval.py:softmax --config.data.dir=FOLDER
    python run_lra.py --config=configs/retrieval.py --config.data.max_len=1000 --config.data.padded_len=1024 …
    python run_lra.py --config=configs/retrieval.py:nystrom,recipe=fast --config.data.dir=FOLDER

FOLDER is where https://storage.googleapis.com/long-range-arena/lra_release.gz was unpacked, or its folder
tsv_data, with the files new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv.

Source: Xiong et al. 2021 (arXiv:2102.03902) and the authors' `LRA/code/lra_config.py`: 2 layers, width 64,
MLP 128, 2 heads of 32, batch size 32, 30,000 steps, peak rate 1e-4 after 800; 4,000 bytes padded to 4,096.
Data: Tay et al. 2020 (arXiv:2011.04006). Differs: validation every 1,000 steps, not every 300; all test
pairs are evaluated, whereas the authors' code drops the last batch.
recipe=fast: in addition to `configs/fast.py`, a convolution of width 7, and 2,000 steps of 16 pairs.
Expected: the paper has 79.56 % (Nyström) and 79.35 % (softmax); a constant answer has 50 %.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the paper's config; `argument` selects the attention and its options."""
    config = common.base(argument)
    config.data.task = "retrieval"
    config.data.max_len = 4000
    config.data.padded_len = 4096
    config.model.vocab_size = 512  # 257 are used; the authors' embedding has 512 rows
    config.model.max_len = 4096
    config.optimizer.warmup_steps = 800
    config.train.batch_size = 32
    config.train.total_steps = 30_000
    config.eval.every_steps = 1000
    return common.finish(config, argument)
