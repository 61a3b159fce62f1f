"""Files of the LRA release, lra_release.gz, in one place for all tasks: finds them, and reads their lines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from dataprep import cache
from dataprep.archives import reading

URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
ADVICE = "unpack lra_release.gz again"

_T = TypeVar("_T")


def find(task: str, data_dir: str, folders: Sequence[str], names: Iterable[str]) -> Path:
    """Returns the folder with the files or folders `names` of a task.

    It is `data_dir`, or one of `folders` below it, the task's folder in the release and in the data folder
    of the official script. `data_dir` may also be the folder into which lra_release.gz was unpacked. The
    archive has a folder lra_release in a folder of the same name, and both may have a copy of a task. As in
    the official script, which deletes the outer one, the inner one comes first.

    Raises:
      FileNotFoundError: No folder has all `names`.
    """
    below = cache.user_path(data_dir)
    names = list(names)
    places = ("lra_release/lra_release", "lra_release", "")
    candidates = [below, *(below / place / folder for place in places for folder in folders)]
    missing = {
        folder: [name for name in names if not (folder / name).exists()] for folder in candidates
    }
    found = next((folder for folder in candidates if len(missing[folder]) < len(names)), below)
    if missing[found]:
        raise FileNotFoundError(
            f"{task} needs the files of the LRA release: no {', '.join(missing[found])} in {found}. Unpack"
            f" {URL} (tar -xf) and set --config.data.dir to its folder."
        )
    return found


def read_lines(path: Path, parse: Callable[[bytes], _T], *, header: bytes = b"") -> Iterator[_T]:
    """Yields `parse(line)` for each line of a file, after the header if there is one.

    Raises:
      ValueError: The file is empty, the header differs, or `parse` raises ValueError; the message names the
        file and the line.
      OSError: The file cannot be read.
    """
    size, number = path.stat().st_size, 0
    with (
        reading(path),
        path.open("rb") as file,
        tqdm(
            desc=path.name, total=size, unit="B", unit_scale=True, leave=False, disable=None
        ) as progress,
    ):
        for number, line in enumerate(file, start=1):
            progress.update(len(line))
            try:
                if number == 1 and header:
                    if line.rstrip(b"\r\n") != header:
                        raise ValueError(f"expected the header {header!r}, found {line[:40]!r}.")
                    continue
                row = parse(line)
            except ValueError as error:
                flaw = str(error).removesuffix(".")
                raise ValueError(f"{path}, line {number}: {flaw}. Fix it, or {ADVICE}.") from None
            yield row
    if number <= bool(header):
        raise ValueError(f"{path} has no examples: {ADVICE}.")


def cells(line: bytes, columns: Sequence[str]) -> list[bytes]:
    """Returns the cells of a line, separated by tabs; raises ValueError unless there is one per column."""
    found = line.rstrip(b"\r\n").split(b"\t")
    if len(found) != len(columns):
        raise ValueError(
            f"expected {len(columns)} columns ({', '.join(columns)}), found {len(found)}."
        )
    return found
