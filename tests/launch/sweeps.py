"""Jobs of a sweep that do not train; see stub.py."""

import json

from launch.jobs import Job, write_jobs
from tests.programs import ROOT

STUB = ROOT / "tests" / "launch" / "stub.py"


def job(folder, name, *flags, config="listops"):
    words = ("python", str(STUB), f"--config={config}", *flags, f"--workdir={folder / name}")
    return Job(folder, words)


def write_stubs(folder, **acts):
    """Writes a jobs.txt; returns its jobs."""
    folder.mkdir(exist_ok=True)
    jobs = [job(folder, name, f"--act={act}") for name, act in acts.items()]
    write_jobs(folder, jobs)
    return jobs


def finish(job, accuracy, **values):
    """Writes the result of a run; it diverged if the accuracy is None."""
    found = {"valid_accuracy": accuracy} | (values or {"state": "validated"})
    if accuracy is None:
        found = {"state": "diverged", "step": 3}
    job.folder.mkdir(parents=True, exist_ok=True)
    (job.folder / "result.json").write_text(json.dumps(found))


def starts(jobs):
    """Returns how often each job has been started."""
    return [(job.folder / "starts").read_text().count("\n") for job in jobs]
