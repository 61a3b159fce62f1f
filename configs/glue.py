"""Fine-tuning on a GLUE task or on IMDb: `run_finetune.py --config=configs/glue.py:TASK`.

    python run_finetune.py --config=configs/glue.py:sst2 --config.data.dir=GLUE --config.init.checkpoint=MODEL
    python run_finetune.py --config=configs/glue.py:imdb,attention=nystrom,num_landmarks=64 …

GLUE is the folder of all GLUE tasks or of this task. MODEL is the `model` folder of a pretraining run, or
any model folder with a tokenizer that `from_pretrained` supports.

Source: Xiong et al. 2021 (arXiv:2102.03902), section 4.1: batch size 32, learning rate 3e-5, 4 epochs; for
MRPC the best of batch sizes 8, 16, 32 and rates 2, 3, 4, 5e-5 on validation. The authors'
code/run_glue.py at 5689313: warm-up over 5 % of the steps, weight decay 0.01.
Differs: examples of similar length are batched together. The warm-up is from zero and the decay linear; the
authors use OneCycleLR, which also cycles β₁. Padding is masked; their models attend to it. All reported
metrics are of one checkpoint. The authors report the best accuracy and the best F1 over all epochs, possibly
of two checkpoints.
The maximum lengths fit nearly all GLUE examples; IMDb reviews are truncated to 512 tokens. With 64 landmarks
the attention is exact for examples of at most 64 tokens: all of SST-2 and CoLA, most of the other tasks.
"""

from ml_collections import ConfigDict

from configs import language
from configs.common import defaults, parse
from language.finetune.glue import GlueConfig
from nystromformer_jax.support.spelling import nearest

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
    data = {**defaults(GlueConfig), "task": task, "max_len": LENGTHS[task]}
    return language.finetuning(data, options)
