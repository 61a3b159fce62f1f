"""Definitions of the GLUE tasks and IMDb: files, labels and metrics."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from language.finetune.sequences import SequenceTask
from nystromformer_jax.support.spelling import nearest


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask(SequenceTask):
    """Description of one task.

    Args:
      title: Name of the task in GLUE, also the name of the folder.
      files: File of each split in the task's folder.
      optional: Splits that may be missing.
      label: Column of the label; test splits of tables have no labels.
      index: Column of the id in a submission; without it rows are counted from 0.
      headerless: Columns of files without a header.
      submissions: Files of predictions by split for GLUE's server; by default TITLE.tsv for the test split.
      max_malformed_rows: Maximum number of training or validation rows that may be skipped because they are
        empty or split over several lines, as in the official files of some tasks.
    """

    files: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
    )
    optional: tuple[str, ...] = ()
    label: str = "label"
    index: str = "index"
    headerless: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    submissions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_malformed_rows: int = 0

    label_advice: ClassVar[str] = "correct it, or unpack the task again."

    def file_name(self, split: str) -> str:
        """Returns the name that GLUE's server requires, or `<task>-<split>.tsv` for other splits."""
        names = {"test": f"{self.title}.tsv"} if self.files else {}
        return (self.submissions or names).get(split) or super().file_name(split)


def _sizes(train: int, valid: int, test: int) -> dict[str, int]:
    return {"train": train, "valid": valid, "test": test}


_COLA = ("source", "label", "mark", "sentence")
_ENTAILMENT = ("entailment", "not_entailment")

# Source: Wang et al. 2019 (arXiv:1804.07461), Table 1, for metrics and sizes; gluebenchmark.com/faq for the
# names of submissions. Class numbers are from huggingface/transformers, data/processors/glue.py at 00e12e7,
# which the authors' run_glue.py uses.
# Differs: class numbers do not depend on the tokenizer. With RoBERTa's tokenizer, which the authors use,
# transformers swaps two classes of MNLI, to suit weights that were fine-tuned elsewhere.
TASKS: Mapping[str, GlueTask] = {
    task.name: task
    for task in (
        GlueTask(
            name="sst2",
            title="SST-2",
            texts=("sentence",),
            sizes=_sizes(67_349, 872, 1_821),
        ),
        GlueTask(
            name="mrpc",
            title="MRPC",
            texts=("#1 String", "#2 String"),
            label="Quality",
            metrics=("f1", "accuracy"),
            sizes=_sizes(3_668, 408, 1_725),
        ),
        GlueTask(
            name="qnli",
            title="QNLI",
            texts=("question", "sentence"),
            labels=_ENTAILMENT,
            sizes=_sizes(104_743, 5_463, 5_463),
        ),
        GlueTask(
            name="qqp",
            title="QQP",
            texts=("question1", "question2"),
            label="is_duplicate",
            index="id",
            metrics=("f1", "accuracy"),
            sizes=_sizes(363_846, 40_430, 390_965),
            max_malformed_rows=100,
        ),
        GlueTask(
            name="mnli",
            title="MNLI",
            files={
                "train": "train.tsv",
                "valid": "dev_matched.tsv",
                "valid_mismatched": "dev_mismatched.tsv",
                "test": "test_matched.tsv",
                "test_mismatched": "test_mismatched.tsv",
                "test_diagnostic": "../diagnostic/diagnostic.tsv",
            },
            optional=("test_diagnostic",),
            texts=("sentence1", "sentence2"),
            label="gold_label",
            labels=("contradiction", "entailment", "neutral"),
            submissions={
                "test": "MNLI-m.tsv",
                "test_mismatched": "MNLI-mm.tsv",
                "test_diagnostic": "AX.tsv",
            },
            sizes={
                **_sizes(392_702, 9_815, 9_796),
                "valid_mismatched": 9_832,
                "test_mismatched": 9_847,
            },
        ),
        GlueTask(
            name="cola",
            title="CoLA",
            texts=("sentence",),
            headerless={"train.tsv": _COLA, "dev.tsv": _COLA},
            metrics=("matthews", "accuracy"),
            sizes=_sizes(8_551, 1_043, 1_063),
        ),
        GlueTask(
            name="rte",
            title="RTE",
            texts=("sentence1", "sentence2"),
            labels=_ENTAILMENT,
            sizes=_sizes(2_490, 277, 3_000),
        ),
        GlueTask(
            name="stsb",
            title="STS-B",
            texts=("sentence1", "sentence2"),
            label="score",
            kind="regression",
            labels=(),
            clip=(0, 5),
            metrics=("pearson", "spearman"),
            sizes=_sizes(5_749, 1_500, 1_379),
        ),
        GlueTask(
            name="wnli",
            title="WNLI",
            texts=("sentence1", "sentence2"),
            sizes=_sizes(635, 71, 146),
        ),
        # Maas et al. 2011. A tenth of the training reviews is held out for validation. Test reviews have
        # labels.
        GlueTask(
            name="imdb",
            title="IMDb",
            files={},
            texts=("review",),
            labels=("neg", "pos"),
            sizes=_sizes(22_500, 2_500, 25_000),
        ),
    )
}


def describe(name: str) -> GlueTask:
    """Returns the task with this name; raises ValueError if it is unknown."""
    if name not in TASKS:
        raise ValueError(f"The task {name!r} is unknown{nearest(name, TASKS)}")
    return TASKS[name]
