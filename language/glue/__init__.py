"""GLUE's tasks and IMDb: reading, tokenization, metrics and submissions. Imports no jax."""

from language.glue.data import GlueConfig, GlueData, load
from language.glue.examples import EncodedSplit
from language.glue.metrics import predictions, score, standard_error
from language.glue.submission import read_predictions, write_predictions
from language.glue.tasks import TASKS, GlueTask, describe

__all__ = [
    "TASKS",
    "EncodedSplit",
    "GlueConfig",
    "GlueData",
    "GlueTask",
    "describe",
    "load",
    "predictions",
    "read_predictions",
    "score",
    "standard_error",
    "write_predictions",
]
