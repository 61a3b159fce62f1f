"""Fine-tuning data from one's own files: tables, CoNLL and SQuAD. Imports no jax."""

from language.files.config import FilesConfig
from language.files.data import load, make_task, open_input

__all__ = ["FilesConfig", "load", "make_task", "open_input"]
