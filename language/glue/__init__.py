"""GLUE's tasks and IMDb: files, and data prepared for fine-tuning. Imports no jax."""

from language.glue.data import GlueConfig, load
from language.glue.tasks import TASKS, GlueTask, describe

__all__ = ["TASKS", "GlueConfig", "GlueTask", "describe", "load"]
