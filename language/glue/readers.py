"""A task's files, found and read, whatever their layout."""

from pathlib import Path

from harness.raw_files import RawFiles
from language.glue import reviews, tables
from language.glue.tables import Example, Examples
from language.glue.tasks import GlueTask

__all__ = ["Example", "Examples", "find", "read"]


def find(task: GlueTask, folder: Path) -> RawFiles:
    """The task's files in `folder`: its own, or the one above it.

    Raises:
      FileNotFoundError: Something is missing: what was looked for, and where.
    """
    return (reviews if task.layout == "reviews" else tables).find(task, folder)


def read(task: GlueTask, source: RawFiles, seed: int = 0) -> Examples:
    """Reads all splits of what `find` found.

    Args:
      task: whose files they are.
      source: the files.
      seed: chooses what is held out for validation, where that is ours to choose.

    Raises:
      ValueError: An example cannot be understood; the sentence has its file and line.
      OSError: A file cannot be read.
    """
    if task.layout == "reviews":
        return reviews.read(task, source, seed)
    return tables.read(task, source)
