"""The model card: README.md in the folder of a fine-tuned model, as model hubs show it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from language.finetune.data import TaskData
from language.finetune.run import FineTuning

PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multi_label": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
}


def model_card(run: FineTuning, data: TaskData, metrics: Mapping[str, Any], last_step: int) -> str:
    """Returns the card of a model: its task, data, training, metrics and command.

    Args:
      run: The run, with the task of `data`.
      data: The data of the run.
      metrics: Metrics and standard errors by split, as in `result.json`.
      last_step: Number of training steps; fewer than planned after an early stop.
    """
    task, config = data.task, run.model.config
    # New weights are not a work of the authors of the folder, which has only their sizes.
    license_name = "" if run.init.from_scratch else license_of(run.init.folder)
    head = [f"license: {license_name}"] if license_name else []
    head += [f"pipeline_tag: {PIPELINES[task.kind]}", "tags:", "- nystromformer-jax"]
    start = "sizes of" if run.init.from_scratch else "weights of"
    train = run.sections["train"].in_steps(len(data.splits["train"]))
    folder = run.init.folder.absolute()
    # The name of a run says more than that of its folder `model`.
    if folder.name == "model" and (folder.parent / "config.json").is_file():
        folder = folder.parent
    weights = run.sections["train"].class_weights
    settings = [f"Class weights of the training loss: {weights}"] if weights else []
    if run.data.truncation != "head":
        settings.append(f"Truncation of long texts: {run.data.truncation}")
    if run.init.quirks != "none":
        settings.append(f"Padding: init.quirks={run.init.quirks}")
    early = f" of {train.total_steps:,}" if last_step < train.total_steps else ""
    lines = [
        f"This model was fine-tuned with nystromformer-jax for {task.title} ({task.kind}).",
        "",
        f"* Labels: {', '.join(task.labels) or 'none'}",
        f"* Attention: {config.attention}, at most {run.data.max_len} tokens",
        f"* Start: {start} {folder.name}"
        + (f", whose license is {license_name}" if license_name else ""),
        f"* Data: {len(data.splits['train']):,} training examples, SHA-256 of all splits {data.sha256}",
        f"* Training: {last_step:,}{early} steps{' (stopped early)' if early else ''} of {train.batch_size}"
        f" examples, peak learning rate {run.sections['optimizer'].learning_rate:g}, seed {train.seed}",
        *(f"* {setting}" for setting in settings),
        "",
        "| split | examples | metric | value | standard error |",
        "|---|---:|---|---:|---:|",
        *_rows(metrics),
    ]
    if command := run.config.get("command"):
        lines += ["", "```bash", str(command), "```"]
    return "\n".join(["---", *head, "---", "", f"# {task.title}", "", *lines, ""])


def license_of(folder: Path) -> str:
    """Returns the license that the README.md of a model's folder names in its header; empty if none."""
    file = folder / "README.md"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    header = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = re.search(r"^license: *(\S+) *$", header[1], re.MULTILINE) if header else None
    return found[1] if found else ""


def _rows(metrics: Mapping[str, Any]) -> list[str]:
    splits = [name for name, value in metrics.items() if isinstance(value, Mapping)]
    return [
        f"| {split} | {metrics[f'{split}_examples']:,} | {name} | {value:.4f} |"
        f" {metrics[f'{split}_standard_error'].get(name, float('nan')):.4f} |"
        for split in splits
        if not split.endswith("_standard_error")
        for name, value in metrics[split].items()
    ]
