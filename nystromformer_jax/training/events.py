"""TensorBoard's events, written in the caller's own thread: a full disk is an error there, not a hang."""

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Events"]

# For those who watch a run; a save flushes besides.
FLUSH_SECONDS = 60


class Events:
    """A fresh events file under `folder`; older ones are removed.

    Raises:
        ModuleNotFoundError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX import record_writer

        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._file: Any = record_writer.RecordWriter(str(folder / name))
        self._flushed = time.monotonic()
        self._add(file_version="brain.Event:2")

    def write(self, line: Mapping[str, Any]) -> None:
        """Adds every value of a line at its `step`."""
        from tensorboardX.summary import scalar

        for name, value in line.items():
            if name != "step":
                self._add(step=line["step"], summary=scalar(name, value))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Waits until the disk has them."""
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and closes."""
        self._file.close()

    def _add(self, **values: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._file.write(Event(wall_time=time.time(), **values).SerializeToString())
