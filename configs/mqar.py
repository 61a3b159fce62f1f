"""MQAR, multi-query associative recall of K key-value pairs. The data are generated.

    python run_lra.py --config=configs/mqar.py                                   # 16 pairs, 256 tokens
    python run_lra.py --config=configs/mqar.py:softmax,pairs=64,length=512
    python run_lra.py --config=configs/mqar.py:nystrom,pairs=64,length=512,num_landmarks=128
    python run_lra.py --config=configs/mqar.py:nystrom,landmark_selection=kmeans

Not a task of the Long Range Arena. It measures how many tokens an attention can distinguish: each query needs
one of K tokens. A model that cannot distinguish the keys can answer with the most frequent value of the
sequence, which is right in 10 % of the cases with 16 pairs, and in 5 % with 64. Accuracy is measured at the
tokens `?`, whose labels are the answers.

Model: 2 layers of width 64, 2 heads of 32, and a dense convolution of width 3 before the first block, which
adds each key to its value's features. Without position embeddings and other convolutions, only the attention
can connect a query to its pair.
Training: 600 steps of 32 sequences, about two minutes on one CPU core; Muon and AdamW, peak rate 2e-3, linear
decay.
Source: Arora et al. 2023, arXiv:2312.04927; `lra/data/mqar.py` lists the differences.
"""

from ml_collections import ConfigDict

from configs import common


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the config; `argument` selects attention, length and number of pairs.

    Raises:
      ValueError: An option is invalid.
    """
    argument, selected = common.extract_options(argument, {"length": 256, "pairs": 16})
    length, pairs = int(selected["length"]), int(selected["pairs"])
    config = common.base(argument)
    config.data.task = f"mqar-{length}-{pairs}"
    config.data.max_len = length
    config.model.vocab_size = 256
    config.model.max_len = length
    config.model.stem = (3,)
    config.model.positions = "none"
    config.model.dropout_rate = 0.0
    _, given = common.parse(argument)
    for option, off in {"conv_kernel_size": 0, "dropout_rate": 0.0}.items():
        if option in config.attention and option not in given:
            config.attention[option] = off
    config.optimizer.method = "muon"
    config.optimizer.learning_rate = 2e-3
    config.optimizer.schedule = "linear"
    config.optimizer.clip_norm = 1.0
    config.optimizer.warmup_steps = 30
    config.train.batch_size = 32
    config.train.total_steps = 600
    config.eval.every_steps = 200
    return common.finish(config, argument)
