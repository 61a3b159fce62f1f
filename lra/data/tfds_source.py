"""Exports tasks for tensorflow-datasets (tfds) without TensorFlow; see also `dataprep.tfds_reader`."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lra.data.task import Split, Task

VERSION = "1.0.0"  # of the exported datasets

_logger = logging.getLogger(__name__)


def export(task: Task, data_dir: Path) -> Path:
    """Writes a task as a dataset that tfds can read without this project and without TensorFlow.

        tfds.data_source("listops", split="train", data_dir=...)

    An example has `tokens` (`tokens1` and `tokens2` for a pair), [length] without padding, and
    `label`. Tokens are uint8, or int32 if id 0 is reserved for padding. Examples keep their order. The
    dataset is named like the task, with "_" for "-". The folder is created atomically.

    Returns:
      The folder `data_dir`/name/version.

    Raises:
      FileExistsError: The dataset exists already.
    """
    import tensorflow_datasets as tfds

    final = new_folder(task.name, data_dir)
    is_pairs = task.splits["train"].pairs is not None
    columns = ("tokens1", "tokens2") if is_pairs else ("tokens",)
    dtype = np.int32 if task.splits["train"].sequences.first_id else np.uint8
    tokens = tfds.features.Tensor(shape=(None,), dtype=dtype, encoding="bytes")
    labels: dict[str, Any] = {"names": task.class_names}
    if not task.class_names:
        labels = {"num_classes": 1 + max(int(split.labels.max()) for split in task.splits.values())}

    class Exported(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]  # tfds is untyped
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

        def _generate_examples(self, split: Split) -> Iterator[Any]:
            for row in range(len(split)):
                *sequences, label = split[row]
                ids = [sequence.astype(dtype) for sequence in sequences]
                yield row, {**dict(zip(columns, ids, strict=True)), "label": label}

    _logger.info("Exporting %s to %s.", task.name, final)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=data_dir) as partial,
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),  # the output of tfds names the temporary folder
        ):
            Exported(data_dir=partial, file_format="array_record").download_and_prepare()
            Path(partial, final.name).rename(final)
    except (OSError, RuntimeError) as error:  # array_record raises RuntimeError on a full disk
        raise OSError(
            f"Exporting {task.name} needs to write to {data_dir}, but writing failed ({error}). Free"
            " some space, make it writable, or choose another folder."
        ) from error
    return final / VERSION


def new_folder(task: str, data_dir: Path) -> Path:
    """Returns the folder to which `export` writes a task; raises FileExistsError if it exists."""
    folder = data_dir / task.replace("-", "_")
    if folder.exists():
        raise FileExistsError(
            f"Exporting {task} needs a new folder, but {folder} exists already: delete it, or choose"
            " another folder."
        )
    return folder
