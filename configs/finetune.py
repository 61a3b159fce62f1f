"""Fine-tuning on your own files: `run_finetune.py --config=configs/finetune.py:KIND`.

    python run_finetune.py --config=configs/finetune.py:classification \
        --config.data.train_file=train.csv --config.init.checkpoint=MODEL
    python run_finetune.py --config=configs/finetune.py:question_answering,attention=nystrom,max_len=4096 …
    python run_finetune.py --mode=predict --workdir=RUN --input=FILE --output=FILE

KIND is classification, regression or multi_label (.tsv, .csv or .jsonl files, of texts or pairs of texts),
token_classification (CoNLL files) or question_answering (SQuAD's JSON). MODEL is the `model` folder of a
pretraining run, or any model folder with a tokenizer that `from_pretrained` supports.

Source: the schedule of configs/glue.py, from Xiong et al. 2021. For question answering, 384 tokens and
2 epochs as in google-research/bert, README.md at eedf571. Differs: neighboring windows share 128 tokens,
where BERT starts a window every 128 tokens.
"""

from ml_collections import ConfigDict

from configs import language
from configs.common import defaults, parse
from language.finetune.files import FilesConfig
from nystromformer_jax.support.spelling import nearest

MAX_LEN = {
    "classification": 128,
    "regression": 128,
    "multi_label": 128,
    "token_classification": 128,
    "question_answering": 384,
}


def get_config(argument: str = "classification") -> ConfigDict:
    """Returns the config for `KIND[,attention=NAME][,max_len=L][,option=value …]`."""
    kind, options = parse(argument)
    if kind not in MAX_LEN:
        raise ValueError(f"Unknown kind {kind!r}{nearest(kind, MAX_LEN)}")
    data = {**defaults(FilesConfig), "kind": kind, "max_len": MAX_LEN[kind]}
    config = language.finetuning(data, options)
    if kind == "question_answering":
        config.data.overlap = min(128, config.data.max_len // 3)
        config.train.epochs = 2.0
    return config
