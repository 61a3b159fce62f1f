"""Data sets of tensorflow-datasets (tfds), read without TensorFlow.

tfds can do so in one of its file formats, array_record; its default, tfrecord, needs TensorFlow.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from harness import cache, raw_files

INFO = "dataset_info.json"

_READ_AT_ONCE = 1_000


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
            for info in (folder / name).glob(f"*/{INFO}")
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
        raise _not_found(name, task, found)

    @classmethod
    def open(cls, path: Path, *, task: str) -> Self:
        """The version whose folder is `path`; `find` says what the rest is."""
        if not (path / INFO).is_file():
            raise _not_found(path.parent.name, task, f"there is no {INFO} in {path}")
        format = _file_format(path / INFO)
        if format != "array_record":
            found = f"{path} holds {format}, which only TensorFlow reads"
            raise _not_found(path.parent.name, task, found)
        return cls(path)

    def stamp(self) -> Mapping[str, object]:
        """Changes when a file does; see `raw_files.stamp`."""
        return raw_files.stamp({path.name: path for path in sorted(self.path.iterdir())})

    def num_examples(self, split: str) -> int:
        """How many examples a split has, which is read from what tfds says about it."""
        return self._builder(split).info.splits[split].num_examples

    def examples(
        self, split: str, features: Sequence[str], within: range | None = None
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the examples of a split, as and in the order that tfds stores them.

        Args:
          split: its name.
          features: what every example must have.
          within: the rows to read, one after the other; all where that is not said.

        Raises:
          ValueError: the data set lacks the split, a feature or one of its files, or a file is damaged.
        """
        source = self._builder(split).as_data_source(split=split)
        within = range(len(source)) if within is None else within
        for start in range(within.start, within.stop, _READ_AT_ONCE):
            rows = range(start, min(start + _READ_AT_ONCE, within.stop))
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

    def _builder(self, split: str) -> Any:
        """The data set as tfds sees it, the files of `split` looked for."""
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(self.path)
        splits = builder.info.splits
        if split not in splits:
            raise ValueError(f"{self.path} lacks the split {split}: prepare it anew.")
        for path in splits[split].filepaths:
            if not path.exists():
                raise ValueError(f"{self.path} lacks its file {path.name}: prepare it anew.")
        return builder


def _not_found(name: str, task: str, found: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{task} needs {name} prepared by tensorflow-datasets as array_record; {found}. Where"
        ' TensorFlow and a network are, run python -c "import tensorflow_datasets as tfds;'
        f" tfds.builder('{name}', data_dir='FOLDER', file_format='array_record')"
        '.download_and_prepare()" with a FOLDER of its own; then set --config.data.dir to it.'
    )


def _file_format(info: Path) -> str:
    try:
        return str(json.loads(info.read_text(encoding="utf-8"))["fileFormat"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{info} is damaged: prepare the data set anew.") from None


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in folder.name.split("."))
