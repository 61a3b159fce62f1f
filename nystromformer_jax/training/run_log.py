"""Writes the logs of a run: `metrics.jsonl`, `speed.jsonl`, TensorBoard events and Weights & Biases.

`metrics.jsonl` contains only deterministic values, so it is byte-identical after a kill and resume.
`speed.jsonl` contains wall-clock times.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.support.durable import read_json, write_json

FLUSH_SECONDS = 60  # every save also flushes


class JsonLines:
    """A file with one JSON object per line. Opening it truncates it to `keep_bytes`."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        """Opens or creates `path`; drops an incomplete last line."""
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115  # closed by close
        whole = path.read_bytes()
        kept = whole if keep_bytes is None else whole[:keep_bytes]
        kept = kept[: kept.rfind(b"\n") + 1]
        if keep_bytes is not None and len(kept) < keep_bytes:
            logging.getLogger(__name__).warning(
                "%s has lost lines: the checkpoint recorded %d bytes, but the file has %d.",
                path,
                keep_bytes,
                len(kept),
            )
        if len(kept) < len(whole):
            self._file.truncate(len(kept))  # one system call, so a kill leaves either length
            self.sync()

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends a line and flushes it, so the line is kept if this process is killed."""
        self._file.write(json.dumps(dict(values)).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Syncs the file to disk and returns the size in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size  # tell() ignores a truncation

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yields the parsed lines.

        Raises:
          ValueError: A line is corrupt.
        """
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(
                        f"{self.path}, line {number}, is corrupt ({error}): restore the file, or pass"
                        " another --workdir."
                    ) from None

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class RunLog:
    """`metrics.jsonl`, `speed.jsonl` and `events/` of one run, and its page in Weights & Biases.

    On a resume the events are rewritten from `metrics.jsonl`, so both logs contain the same steps. Weights
    & Biases ignores the steps that it already has.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_bytes: int = 0,
        events: bool = True,
        wandb: bool = False,
        silent: bool = False,
    ) -> None:
        """Opens the logs in `folder` and truncates `metrics.jsonl` to `keep_bytes`.

        With `silent` nothing is written. All processes except the primary one are silent.

        Raises:
          ModuleNotFoundError: `wandb` is True and the package is not installed.
          ValueError: A line of `metrics.jsonl` is corrupt.
        """
        self._silent = silent
        if silent:
            return
        writers: list[Events | Wandb | None] = [Wandb(folder)] if wandb else []
        self._metrics = JsonLines(folder / "metrics.jsonl", keep_bytes)
        self._speed = JsonLines(folder / "speed.jsonl")
        writers += [_open_events(folder / "events")] if events else []
        self._writers = [writer for writer in writers if writer is not None]
        try:
            for line in self._metrics.lines():
                self._write_events(line)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *error: object) -> None:
        if self._silent:
            return
        with contextlib.ExitStack() as each:  # each close may fail on a full disk
            for file in (self._metrics, self._speed, *self._writers):
                each.callback(file.close)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Records deterministic values in full precision."""
        if self._silent:
            return
        line = {"step": step, **values}
        self._metrics.write(line)
        self._write_events(line)

    def speed(self, step: int, values: Mapping[str, float]) -> None:
        """Records wall-clock times."""
        if not self._silent:
            self._speed.write({"step": step, **values})

    def sync(self) -> int:
        """Flushes events and syncs metrics to disk; returns the size of `metrics.jsonl` in bytes."""
        if self._silent:
            return 0
        for writer in self._writers:
            writer.flush()
        return self._metrics.sync()

    def _write_events(self, line: Mapping[str, Any]) -> None:
        for writer in self._writers:
            writer.write(line)


class Events:
    """Writer of a new TensorBoard events file in `folder`; older files are removed.

    Events are written in the caller's thread, so a full disk raises an error instead of a hang.

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
        """Adds every value of a line of `metrics.jsonl`, at the step of the line."""
        from tensorboardX.summary import scalar

        for name, value in line.items():
            if name != "step":
                self._add(step=line["step"], summary=scalar(name, value))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Flushes all events to disk."""
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()

    def _add(self, **values: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._file.write(Event(wall_time=time.time(), **values).SerializeToString())


class Wandb:
    """A run of Weights & Biases, with the config of the run folder.

    Its id is in `wandb.json`, so that a resumed run continues on the same page. The project is
    `$WANDB_PROJECT` or "nystromformer-jax".

    Raises:
      ModuleNotFoundError: The package wandb is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            if error.name != "wandb":
                raise
            raise ModuleNotFoundError(
                "--config.log.wandb=True needs the package wandb: pip install wandb."
            ) from None

        file, config = folder / "wandb.json", folder / "config.json"
        if not file.exists():
            write_json(file, {"id": secrets.token_hex(4)})
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "nystromformer-jax"),
            name=folder.name,
            dir=str(folder),
            config=read_json(config) if config.exists() else None,
            resume="allow",
            **read_json(file),
        )
        self._known_step = self._run.step  # the next step; larger than 0 after a resume

    def write(self, line: Mapping[str, Any]) -> None:
        """Adds the values of a line of `metrics.jsonl`, except those of known steps."""
        values = {name: value for name, value in line.items() if name != "step"}
        if line["step"] >= self._known_step:
            self._run.log(values, step=line["step"])

    def flush(self) -> None:
        """Does nothing: wandb sends the values in another process."""

    def close(self) -> None:
        """Waits until all values are sent."""
        self._run.finish()


def _open_events(folder: Path) -> Events | None:
    """Returns a new events file, or None if tensorboardX is not installed."""
    try:
        return Events(folder)
    except ModuleNotFoundError:
        logging.getLogger(__name__).warning(
            "TensorBoard events are not written, because tensorboardX is not installed (metrics.jsonl has the"
            " same values)."
        )
        return None
