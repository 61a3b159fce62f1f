"""Fine-tunes pretrained models on GLUE, IMDb and one's own files."""

from language.finetune.run import FineTuning, is_partial, load_data, open_tokenizer, prepare
from language.finetune.spec import make_spec
from language.finetune.trained import Trained, open_trained, predict, write_export
from language.finetune.trainer import describe_result, evaluate_checkpoint, train

__all__ = [
    "PATHS",
    "FineTuning",
    "Trained",
    "describe_result",
    "evaluate_checkpoint",
    "is_partial",
    "load_data",
    "make_spec",
    "open_tokenizer",
    "open_trained",
    "predict",
    "prepare",
    "train",
    "write_export",
]

# Config keys of file locations, which may change when a run resumes. Only older runs have data.workers.
PATHS = ("data.dir", "data.workers", "data.train_file", "data.valid_file", "data.test_file")
