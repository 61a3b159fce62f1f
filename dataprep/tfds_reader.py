"""Reads datasets prepared by tensorflow-datasets (tfds) without TensorFlow.

Only the file format array_record is supported; the default of tfds, tfrecord, needs TensorFlow.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from dataprep import archives, cache

INFO = "dataset_info.json"
FORMAT = "array_record"

_BATCH_ROWS = 1_000


@dataclasses.dataclass(frozen=True)
class PreparedByTfds:
    """Folder of one version of a dataset, in a file format that can be read without TensorFlow."""

    path: Path

    @classmethod
    def find(cls, data_dir: str, name: str, *, task: str) -> Self:
        """Finds the latest prepared version of a dataset, without network access.

        If `data_dir` is empty, it is `$TFDS_DATA_DIR` or `~/tensorflow_datasets`. `name` ends in `/config` if
        the dataset has configs. Error messages name the `task` that needs the dataset.

        Raises:
          FileNotFoundError: The dataset is missing, or prepared only in a format that needs TensorFlow.
          ValueError: The metadata is corrupt.
        """
        folder = cache.user_path(
            data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
        )
        versions = [
            info.parent
            for info in (folder / name).glob(f"*/{INFO}")
            if re.fullmatch(r"\d+\.\d+\.\d+", info.parent.name)
        ]
        if not versions:
            raise _not_found(name, task, f"{folder} has none")
        readable = [path for path in versions if _file_format(path) == FORMAT]
        newest = max(readable or versions, key=lambda path: [*map(int, path.name.split("."))])
        return cls.open(newest, name=name, task=task)

    @classmethod
    def open(cls, path: Path, *, task: str, name: str = "") -> Self:
        """Opens the version of a dataset in the folder `path`; raises the same errors as `find`."""
        name = name or path.parent.name
        if not (path / INFO).is_file():
            raise _not_found(name, task, f"{path} has no {INFO}")
        if (format := _file_format(path)) != FORMAT:
            raise _not_found(name, task, f"{path} contains {format}, which only TensorFlow reads")
        return cls(path)

    def stamp(self) -> Mapping[str, object]:
        """Returns a fingerprint of all files; see `archives.stamp`."""
        return archives.stamp({path.name: path for path in sorted(self.path.iterdir())})

    def examples(self, split: str, features: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Yields the examples of a split in stored order.

        Raises:
          ValueError: The split, a feature or a file is missing, or a file is corrupt.
        """
        source = self._builder(split).as_data_source(split=split)
        for start in range(0, len(source), _BATCH_ROWS):
            rows = range(start, min(start + _BATCH_ROWS, len(source)))
            try:
                examples = source.__getitems__(rows)
            except (RuntimeError, ValueError, IndexError) as error:  # from array_record
                raise ValueError(f"{self.path} is corrupt ({error}): prepare it again.") from error
            if missing := [name for name in features if name not in examples[0]]:
                raise ValueError(
                    f"The examples of {self.path} lack {', '.join(missing)}: prepare it again with"
                    " tensorflow-datasets."
                )
            yield from examples

    def _builder(self, split: str) -> Any:
        """Returns the tfds builder; raises ValueError unless all files of `split` exist."""
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(self.path)
        splits = builder.info.splits
        if split not in splits:
            raise ValueError(f"{self.path} lacks the split {split}: prepare it again.")
        for path in splits[split].filepaths:
            if not path.exists():
                raise ValueError(f"{self.path} lacks its file {path.name}: prepare it again.")
        return builder


def _not_found(name: str, task: str, found: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{task} needs {name} prepared by tensorflow-datasets as array_record; {found}. With"
        ' TensorFlow and network access, run python -c "import tensorflow_datasets as tfds;'
        f" tfds.builder('{name}', data_dir='FOLDER', file_format='array_record')"
        '.download_and_prepare()" with a FOLDER of its own; then set --config.data.dir to it.'
    )


def _file_format(path: Path) -> str:
    info = path / INFO
    try:
        return str(json.loads(info.read_text(encoding="utf-8"))["fileFormat"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{info} is corrupt: prepare the dataset again.") from None
