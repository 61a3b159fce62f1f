"""Published numbers: Table 2 of the paper."""

from collections.abc import Mapping

from language.finetune.task import Metric

SOURCE = "Xiong et al. 2021, Table 2"
URL = "https://arxiv.org/abs/2102.03902"
REMARK = (
    "The paper: 12 layers of width 768, pretrained on English Wikipedia and BookCorpus; F1 for MRPC and"
    " QQP, accuracy for the others, on the validation set. It has no RTE and no CoLA, whose metric is"
    " Matthews' correlation."
)


# Task, split and metric of each column. The paper does not specify the validation set of IMDb; the test set
# is used here.
COLUMNS: Mapping[str, tuple[str, str, Metric]] = {
    "SST-2": ("sst2", "valid", "accuracy"),
    "MRPC, F1": ("mrpc", "valid", "f1"),
    "QNLI": ("qnli", "valid", "accuracy"),
    "QQP, F1": ("qqp", "valid", "f1"),
    "MNLI-m": ("mnli", "valid", "accuracy"),
    "MNLI-mm": ("mnli", "valid_mismatched", "accuracy"),
    "IMDb, test": ("imdb", "test", "accuracy"),
    "RTE": ("rte", "valid", "accuracy"),
    "CoLA, Matthews": ("cola", "valid", "matthews"),
}

PAPER_COLUMNS = tuple(COLUMNS)[:7]
# In the order of PAPER_COLUMNS, in percent.
TABLE_2: Mapping[str, tuple[float, ...]] = {
    "BERT-base": (90.0, 88.4, 90.3, 87.3, 82.4, 82.4, 93.3),
    "Nyströmformer": (91.4, 88.1, 88.7, 86.3, 80.9, 82.2, 93.2),
}
