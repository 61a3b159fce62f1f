"""Submits the jobs of a sweep to a cluster through submitit, as one array."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.jobs import Job
from launch.runner import Queue
from nystromformer_jax.support.durable import read_json, write_json

DEFAULTS = {"name": "sweep", "timeout_min": 24 * 60}
MAX_TIMEOUTS = 1000  # a job that reaches its time limit is requeued and resumes


def submit(
    folder: Path,
    todo: Sequence[Job],
    cluster: str,
    workers: int,
    parameters: Mapping[str, str | None],
) -> str:
    """Submits jobs, `workers` per array task; returns a sentence. Queued jobs are not submitted again.

    `parameters` are keyword arguments of `submitit.AutoExecutor.update_parameters`, as JSON or as strings;
    None is true.

    Raises:
      ValueError: submitit is not installed, or the cluster or a parameter is invalid.
    """
    # Otherwise submitit replaces all log handlers.
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    try:
        import submitit
    except ModuleNotFoundError:
        raise ValueError('--submit needs submitit: pip install -e ".[sweep]"') from None
    record = folder / "submitit" / "submitted.json"
    known: dict[str, str] = read_json(record) if record.is_file() else {}
    if cluster == "slurm":
        ids = {known[job.name] for job in todo if job.name in known}
        queued = {one for one in ids if not submitit.SlurmJob(record.parent, one).done()}
        todo = [job for job in todo if known.get(job.name) not in queued]
        if not todo:
            return f"All unfinished jobs are already submitted: {', '.join(sorted(queued))}."
    try:
        executor = submitit.AutoExecutor(
            record.parent, cluster=cluster, slurm_max_num_timeout=MAX_TIMEOUTS
        )
        executor.update_parameters(
            **DEFAULTS, **{name: _value(text) for name, text in parameters.items()}
        )
        size = max(1, workers)
        batches = [todo[i : i + size] for i in range(0, len(todo), size)]
        tasks = executor.map_array(Queue(folder, workers), batches)
    except (AssertionError, NameError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"--submit={cluster}: {reason}") from None
    for task, batch in zip(tasks, batches, strict=True):
        known |= dict.fromkeys((job.name for job in batch), task.job_id)
    write_json(record, known)
    return f"Jobs submitted: {len(todo)}, as the tasks {', '.join(x.job_id for x in tasks)}."


def _value(text: str | None) -> Any:
    """Parses a JSON value; other text stays a string."""
    try:
        return True if text is None else json.loads(text)
    except ValueError:
        return text
