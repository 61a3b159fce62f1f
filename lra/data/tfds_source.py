"""Tasks written for tensorflow-datasets (tfds), without TensorFlow; `harness.tfds_reader` reads."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lra.data.task import PairSplit, Split, Task

VERSION = "1.0.0"  # of what `export` writes

_logger = logging.getLogger(__name__)


def export(task: Task, data_dir: Path) -> Path:
    """Writes a task for others to read through tfds, without our code and without TensorFlow.

        tfds.data_source("listops", split="train", data_dir=...)

    An example has `tokens` (`tokens1` and `tokens2` in a pair), [length] without padding, uint8 or,
    where ids keep 0 for padding, int32; and `label`. Their order is that of the task. The folder
    appears whole or not at all.

    Args:
      task: its name is that of the data set, with _ for -.
      data_dir: where the data set's folder is created.

    Returns:
      The folder `data_dir`/name/version.

    Raises:
      FileExistsError: the data set is there already.
    """
    import tensorflow_datasets as tfds

    final = new_folder(task.name, data_dir)
    is_pairs = isinstance(task.splits["train"], PairSplit)
    columns = ("tokens1", "tokens2") if is_pairs else ("tokens",)
    dtype = np.int32 if task.splits["train"].sequences.first_id else np.uint8
    tokens = tfds.features.Tensor(shape=(None,), dtype=dtype, encoding="bytes")
    labels = {"names": task.class_names} if task.class_names else {"num_classes": _classes(task)}

    class Exported(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]  # untyped: mypy does not know the argument
        name = final.name
        VERSION = tfds.core.Version(VERSION)

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(
                builder=self,
                description=f"{task.name} of the Long Range Arena, SHA-256 {task.sha256}.",
                features=tfds.features.FeaturesDict(
                    {
                        **dict.fromkeys(columns, tokens),
                        "label": tfds.features.ClassLabel(**labels),
                    }
                ),
                disable_shuffling=True,
            )

        def _split_generators(self, dl_manager: Any) -> Any:
            return {name: self._generate_examples(split) for name, split in task.splits.items()}

        def _generate_examples(self, split: Split | PairSplit) -> Iterator[Any]:
            for row in range(len(split)):
                *sequences, label = split[row]
                ids = [sequence.astype(dtype) for sequence in sequences]
                yield row, {**dict(zip(columns, ids, strict=True)), "label": label}

    _logger.info("Exporting %s: into %s", task.name, final)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=data_dir) as partial,
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),  # what tfds prints names the partial folder
        ):
            Exported(data_dir=partial, file_format="array_record").download_and_prepare()
            Path(partial, final.name).rename(final)
    except (OSError, RuntimeError) as error:  # array_record's of a full disk is a RuntimeError
        raise OSError(
            f"Exporting {task.name} needs to write into {data_dir}, and that failed ({error}). Make it"
            " a folder with space that you may write to, or choose another one."
        ) from error
    return final / VERSION


def new_folder(task: str, data_dir: Path) -> Path:
    """Where `export` writes the task of this name, before its data are there.

    Raises:
      FileExistsError: the data set is there already.
    """
    folder = data_dir / task.replace("-", "_")
    if folder.exists():
        raise FileExistsError(
            f"Exporting {task} needs a new folder, and {folder} is there already: delete it, or choose"
            " another folder."
        )
    return folder


def _classes(task: Task) -> int:
    return 1 + max(int(split.labels.max()) for split in task.splits.values())
