"""What a run writes about itself, by line: metrics, speed, TensorBoard events.

`metrics.jsonl` holds deterministic values only, so that a run that was killed and resumed leaves
the same bytes as one that was not; wall-clock figures go to `speed.jsonl`.
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.training.events import Events

__all__ = ["JsonLines", "RunLog"]


class JsonLines:
    """A file of one JSON object a line. Opening it drops everything behind `keep_bytes`."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        """Opens `path`, made if missing; a line cut in two by a crash is dropped as well."""
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115  # lives as long as this object, whose close closes it
        whole = path.read_bytes()
        kept = whole if keep_bytes is None else whole[:keep_bytes]
        kept = kept[: kept.rfind(b"\n") + 1]
        if keep_bytes is not None and len(kept) < keep_bytes:
            logging.getLogger(__name__).warning(
                "%s lost lines: the checkpoint knows of %d bytes, %d are there.",
                path,
                keep_bytes,
                len(kept),
            )
        if len(kept) < len(whole):
            self._file.truncate(len(kept))  # one system call: a kill leaves either length
            self.sync()

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends a line and hands it to the system, so that a kill of this process keeps it."""
        self._file.write(json.dumps(dict(values)).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Waits until the disk has every line; returns the size in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size  # not tell(), which a cut does not move

    def lines(self) -> Iterator[dict[str, Any]]:
        """Reads the lines back."""
        with open(self.path, "rb") as file:
            yield from map(json.loads, file)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RunLog:
    """`metrics.jsonl`, `speed.jsonl` and `events/` of one run.

    Events are derived data: the old ones are removed and written anew from `metrics.jsonl`, so
    they are never ahead of it and never doubled.
    """

    def __init__(
        self, folder: Path, *, keep_bytes: int = 0, events: bool = True, silent: bool = False
    ) -> None:
        """Cuts `metrics.jsonl` back to `keep_bytes`, the size its checkpoint recorded.

        Args:
            folder: The run's.
            keep_bytes: Of `metrics.jsonl`.
            events: Whether to write TensorBoard's, too.
            silent: Whether to write nothing at all, as all processes of a run but the first.
        """
        self._silent = silent
        if silent:
            return
        self._metrics = JsonLines(folder / "metrics.jsonl", keep_bytes)
        self._speed = JsonLines(folder / "speed.jsonl")
        self._events = _open_events(folder / "events") if events else None
        for line in self._metrics.lines():
            self._write_events(line)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *error: object) -> None:
        if self._silent:
            return
        with contextlib.ExitStack() as each:  # on a full disk every one of them fails
            for file in (self._metrics, self._speed, self._events):
                if file is not None:
                    each.callback(file.close)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Records deterministic values. json writes floats with repr, so their bits can be compared."""
        if self._silent:
            return
        line = {"step": step, **values}
        self._metrics.write(line)
        self._write_events(line)

    def speed(self, step: int, values: Mapping[str, float]) -> None:
        """Records wall-clock figures."""
        if not self._silent:
            self._speed.write({"step": step, **values})

    def sync(self) -> int:
        """Puts metrics and events on the disk; returns the size of `metrics.jsonl`, for a checkpoint."""
        if self._silent:
            return 0
        if self._events is not None:
            self._events.flush()
        return self._metrics.sync()

    def _write_events(self, line: Mapping[str, Any]) -> None:
        if self._events is not None:
            self._events.write(line)


def _open_events(folder: Path) -> Events | None:
    """Fresh events under `folder`; None where tensorboardX is not installed."""
    try:
        return Events(folder)
    except ModuleNotFoundError:
        logging.getLogger(__name__).warning(
            "No TensorBoard events: tensorboardX is not installed (metrics.jsonl has the same values)."
        )
        return None
