"""Fine-tuning on a GLUE task or on IMDb: `run_glue.py --config=configs/glue.py:TASK`.

    python run_glue.py --config=configs/glue.py:sst2 --config.data.dir=GLUE --config.init.checkpoint=MODEL
    python run_glue.py --config=configs/glue.py:mrpc --search …
    python run_glue.py --config=configs/glue.py:imdb,attention=nystrom,num_landmarks=64 …

GLUE is the folder of all GLUE tasks or of this task. MODEL is the `model` folder of a pretraining run, or
any model folder with a tokenizer that `from_pretrained` supports.

Source: Xiong et al. 2021 (arXiv:2102.03902), section 4.1: batch size 32, learning rate 3e-5, 4 epochs; for
MRPC the best of batch sizes 8, 16, 32 and rates 2, 3, 4, 5e-5 on validation (`--search`). The authors'
code/run_glue.py at 5689313: warm-up over 5 % of the steps, weight decay 0.01.
Differs: warm-up from zero and linear decay; the authors use OneCycleLR, which also cycles β₁.
The maximum lengths fit nearly all GLUE examples; IMDb reviews are truncated to 512 tokens. With 64 landmarks
the attention is exact for examples of at most 64 tokens: all of SST-2 and CoLA, most of the other tasks.
"""

from ml_collections import ConfigDict

from configs import language
from configs.common import parse
from nystromformer_jax.spelling import nearest

# Maximum number of tokens per example; longer ones are truncated.
LENGTHS = {
    "sst2": 64,
    "mrpc": 128,
    "qnli": 256,
    "qqp": 128,
    "mnli": 128,
    "cola": 64,
    "rte": 256,
    "stsb": 128,
    "wnli": 128,
    "imdb": 512,
}


def get_config(argument: str = "sst2") -> ConfigDict:
    """Returns the config for `TASK[,attention=NAME][,max_len=L][,option=value …]`."""
    task, options = parse(argument)
    if task not in LENGTHS:
        raise ValueError(f"Unknown task {task!r}{nearest(task, LENGTHS)}")
    try:
        max_len = int(options.pop("max_len", LENGTHS[task]))
    except ValueError as error:
        raise ValueError(f"max_len must be a number of tokens: {error}") from None
    config = language.base()
    config.data = {
        "task": task,
        "dir": "",
        "max_len": max_len,
        "examples": 0,
        "truncation": "head",
        "seed": 0,
        "workers": 0,
    }
    config.model = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "dtype": "float32"}
    attention = options.pop("attention", "")
    config.attention = language.attention(attention, options, of_checkpoint=True)
    config.optimizer = {
        "learning_rate": 3e-5,
        "warmup_share": 0.05,
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-6,
        "clip_norm": 0.0,
    }
    config.train = {
        "epochs": 4.0,
        "total_steps": 0,
        "batch_size": 32,
        "seed": 0,
        "accumulation": 1,
        "remat": False,
    }
    config.eval = {"every_steps": 0, "max_examples": 0, "batch_size": 0}
    config.log.every_steps = 20
    return config
