"""ListOps on trees of 101 to 499 tokens, for quick comparisons; not comparable with the benchmark.

    python run_lra.py --config=configs/listops_short.py
    python run_lra.py --config=configs/listops_short.py:softmax

Source: generator and model of `configs/listops.py`. Differs: lengths, learning rate and budget. At the
paper's rate of 1e-4 the model predicts a constant until the end; at 1e-3 it starts to learn early.
"""

from ml_collections import ConfigDict

from configs import listops


def get_config(argument: str = "nystrom") -> ConfigDict:
    """Returns the config of a run of 3,000 steps; `argument` selects the attention and its options.

    The learning rate, warm-up and number of steps are the same with a recipe.
    """
    config = listops.get_config(argument)
    config.data.task = "listops-short"
    config.data.max_len = 512
    config.data.curriculum = 0  # the curriculum of a recipe can be longer than this run
    config.model.max_len = 512
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 300
    config.train.total_steps = 3000
    config.train.budget_steps = 0
    config.eval.every_steps = 300
    return config
