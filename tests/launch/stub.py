"""Stands in for run_lra.py: writes the files of a run without training. `--act` selects what happens."""

import json
import os
import signal
import sys
import time
from pathlib import Path

flags = {word.partition("=")[0].lstrip("-"): word.partition("=")[2] for word in sys.argv[1:]}
folder, act = Path(flags["workdir"]), flags.get("act", "")
folder.mkdir(parents=True, exist_ok=True)
with (folder / "starts").open("a") as file:
    file.write(f"{os.environ.get('NPROC')} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
first = (folder / "starts").read_text().count("\n") == 1
valid = float(flags.get("valid", 0.4))


def wait_for(path):
    partial = folder / "partial"
    partial.write_text(str(os.getppid()))
    partial.rename(folder / "ready")
    deadline = time.monotonic() + 60  # of a test that failed
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def save(number, frame):
    time.sleep(0.5 if act == "stop slowly" else 0)
    print(
        "Stopped by SIGTERM after step 3 of 10, everything saved; the same command resumes from there."
    )
    sys.exit(143)


def write(name, values):
    partial = folder / f"{name}.partial"
    partial.write_text(json.dumps(values))
    partial.replace(folder / f"{name}.json")  # a reader never sees a part of it


signal.signal(signal.SIGTERM, save)
write("config", {"train": {"total_steps": 10}})
(folder / "metrics.jsonl").write_text('{"step": 3}\n')
(folder / "speed.jsonl").write_text('{"step": 3, "step_seconds": 720.0}\n')
if act.startswith("stop") and first:
    wait_for(folder / "never")
if act == "hold":
    wait_for(folder / "go")
if act == "kill" and first:
    print("step 3/10: loss 2", end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
if act == "full" and first:
    try:
        (folder / "checkpoint").write_bytes(bytes(10_000))
    except OSError as error:
        sys.exit(f"stub.py: {folder} cannot be written ({error.strerror}): free some space.")
if act == "full log" and first:
    print("x" * 10_000, flush=True)
if act == "diverge":
    write("result", {"state": "diverged", "step": 3})
    sys.exit("stub.py: loss became NaN or infinite")
if act == "garble":
    (folder / "result.json").write_text("{")
    sys.exit()
result = {"task": "listops", "valid_accuracy": valid, "train_seconds": 3600}
tested = {"state": "validated"} if "notest" in flags else {"test_accuracy": valid + 0.01}
write("result", result | tested)
