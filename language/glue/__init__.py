"""GLUE's tasks and IMDb, from their files to scores and submissions; no jax in here."""

from language.glue.data import GlueConfig, GlueData, load
from language.glue.examples import EncodedSplit, Tokenizer
from language.glue.metrics import predictions, score, standard_error
from language.glue.submission import read_predictions, write_predictions
from language.glue.tasks import TASKS, GlueTask, Metric, describe

__all__ = [
    "TASKS",
    "EncodedSplit",
    "GlueConfig",
    "GlueData",
    "GlueTask",
    "Metric",
    "Tokenizer",
    "describe",
    "load",
    "predictions",
    "read_predictions",
    "score",
    "standard_error",
    "write_predictions",
]
