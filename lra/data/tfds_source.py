"""Data sets of tensorflow-datasets (tfds), read and written without TensorFlow.

tfds can do so in one of its file formats, array_record; its default, tfrecord, needs TensorFlow.
"""

import contextlib
import dataclasses
import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from lra.data import cache, sources
from lra.data.task import PairSplit, Split, Task

VERSION = "1.0.0"  # of what `export` writes

_READ_AT_ONCE = 1_000

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class PreparedByTfds:
    """The folder of one version of a data set, in a file format that needs no TensorFlow."""

    path: Path

    @classmethod
    def find(cls, data_dir: str, name: str, *, task: str) -> Self:
        """The newest prepared version of a data set; no network is asked.

        Args:
          data_dir: the data folder of tfds; empty is its default, `$TFDS_DATA_DIR` or
            `~/tensorflow_datasets`.
          name: of the data set, with the name of its config where it has some.
          task: who needs it, in sentences.

        Raises:
          FileNotFoundError: it is not there, or only in a format that needs TensorFlow.
          ValueError: what tfds says about it is damaged.
        """
        folder = cache.user_path(
            data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        )
        formats = {
            info.parent: _file_format(info)
            for info in (folder / name).glob("*/dataset_info.json")
            if re.fullmatch(r"\d+\.\d+\.\d+", info.parent.name)
        }
        readable = [path for path, format in formats.items() if format == "array_record"]
        if readable:
            return cls(max(readable, key=_version))
        newest = max(formats, key=_version, default=None)
        found = (
            f"{newest} holds {formats[newest]}, which only TensorFlow reads"
            if newest
            else f"there is none under {folder}"
        )
        raise FileNotFoundError(
            f"{task} needs {name} prepared by tensorflow-datasets as array_record; {found}. Where"
            ' TensorFlow and a network are, run python -c "import tensorflow_datasets as tfds;'
            f" tfds.builder('{name}', data_dir='FOLDER', file_format='array_record')"
            '.download_and_prepare()" with a FOLDER of its own; then set --config.data.dir to it.'
        )

    def stamp(self) -> Mapping[str, object]:
        """Changes when a file does; see `sources.stamp`."""
        return sources.stamp({path.name: path for path in sorted(self.path.iterdir())})

    def examples(self, split: str, features: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yields the examples of a split, as and in the order that tfds stores them.

        Raises:
          ValueError: the data set lacks the split, a feature or one of its files, or a file is damaged.
        """
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(self.path)
        splits = builder.info.splits
        if split not in splits:
            raise ValueError(f"{self.path} lacks the split {split}: prepare it anew.")
        for path in splits[split].filepaths:
            if not path.exists():
                raise ValueError(f"{self.path} lacks its file {path.name}: prepare it anew.")
        source = builder.as_data_source(split=split)
        for start in range(0, len(source), _READ_AT_ONCE):
            rows = range(start, min(start + _READ_AT_ONCE, len(source)))
            try:
                examples = source.__getitems__(rows)
            except (RuntimeError, ValueError, IndexError) as error:  # of array_record
                raise ValueError(f"{self.path} is damaged ({error}): prepare it anew.") from error
            if missing := [name for name in features if name not in examples[0]]:
                raise ValueError(
                    f"{self.path} has no {' and no '.join(missing)} in its examples: prepare it anew"
                    " by tensorflow-datasets."
                )
            yield from examples


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

    dataset = task.name.replace("-", "_")
    final = data_dir / dataset
    if final.exists():
        raise FileExistsError(
            f"Exporting {task.name} needs a new folder, and {final} is there already: delete it,"
            " or choose another folder."
        )
    is_pairs = isinstance(task.splits["train"], PairSplit)
    columns = ("tokens1", "tokens2") if is_pairs else ("tokens",)
    dtype = np.int32 if task.splits["train"].sequences.first_id else np.uint8
    tokens = tfds.features.Tensor(shape=(None,), dtype=dtype, encoding="bytes")
    labels = {"names": task.class_names} if task.class_names else {"num_classes": _classes(task)}

    class Exported(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]  # untyped: mypy does not know the argument
        name = dataset
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
            tempfile.TemporaryDirectory(prefix=f".{dataset}-", dir=data_dir) as partial,
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stdout(nowhere),  # what tfds prints names the partial folder
        ):
            Exported(data_dir=partial, file_format="array_record").download_and_prepare()
            Path(partial, dataset).rename(final)
    except (OSError, RuntimeError) as error:  # array_record's of a full disk is a RuntimeError
        raise OSError(
            f"Exporting {task.name} needs to write into {data_dir}, and that failed ({error}). Make it"
            " a folder with space that you may write to, or choose another one."
        ) from error
    return final / VERSION


def _file_format(info: Path) -> str:
    try:
        return str(json.loads(info.read_text(encoding="utf-8"))["fileFormat"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{info} is damaged: prepare the data set anew.") from None


def _classes(task: Task) -> int:
    return 1 + max(int(split.labels.max()) for split in task.splits.values())


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in folder.name.split("."))
