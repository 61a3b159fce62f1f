"""Describes the prepared data of a task: sizes, labels, lengths, truncation, and what the model reads."""

import numpy as np

from dataprep import cache
from language.finetune.answering import Answers
from language.finetune.data import NOTES, TaskData
from language.finetune.examples import Split, truncated_lengths
from language.finetune.sequences import SequenceTask
from language.finetune.task import Task
from nystromformer_jax.support.durable import read_json
from reporting.tables import lengths_cell, markdown

MAX_LABELS = 20  # with more labels, only the range of their shares is shown
SHOWN = 2  # training examples


def describe_data(data: TaskData, max_len: int) -> str:
    """Returns a table of the splits and the first training examples, cut to `max_len`.

    Raises:
      ValueError, FileNotFoundError: A prepared file is modified or missing.
    """
    task, notes = data.task, read_json(data.folder / NOTES)
    num_bytes = cache.check(data.folder)
    rows = []
    for name, split in data.splits.items():
        lengths = split.lengths.sum(axis=1) + split.num_special
        row = {task.title: name, "examples": f"{len(np.unique(split.owners)):,}"}
        if "different" in notes:
            row["distinct"] = f"{notes['different'][name]:,} of {data.counts[name]:,}"
        if isinstance(task, SequenceTask):
            row[", ".join(task.labels[:MAX_LABELS]) or "scores"] = _shares(task, split)
            row |= lengths_cell(lengths, "tokens")
            is_cut = truncated_lengths(split.lengths, max_len, split.num_special) < split.lengths
            row[f"truncated at {max_len}"] = f"{100 * is_cut.any(axis=1).mean():.2f} %"
        else:  # long examples have several rows
            row |= {"rows": f"{len(split):,}", **lengths_cell(lengths, "tokens of a row")}
        rows.append(row)
    lines = [
        f"{num_bytes / 2**20:,.1f} MiB in {data.folder}, all hashes match.",
        f"SHA-256 {data.sha256}\n",
        markdown(rows),
    ]
    if shared := notes.get("shared"):
        counts = ", ".join(f"{name} {count:,}" for name, count in shared.items())
        lines.append(f"Distinct examples that two splits share, ignoring labels: {counts}.\n")
    for name, skipped in notes.get("left_out", {}).items():
        lines.append(f"Rows of {name} skipped as empty or split over lines: {len(skipped):,}.\n")
    train = data.splits["train"]
    batch = train.batch(np.arange(min(SHOWN, len(train))), max_len)
    for i, (ids, mask) in enumerate(zip(batch["inputs"], batch["mask"], strict=True)):
        lines.append(f"Training example {train.ids[i]}, label {_label(task, train, i)}:")
        lines.append(f"{data.tokenizer.decode(ids[mask])}\n")
    return "\n".join(lines)


def _shares(task: SequenceTask, split: Split) -> str:
    """Returns the share of each label, or mean and standard deviation of scores."""
    if not split.is_labeled:
        return "none"
    if task.is_regression:
        return f"{split.labels.mean(dtype=float):.2f} ± {split.labels.std(dtype=float):.2f}"
    counts = split.labels.sum(axis=0)  # several labels: ones and zeros
    if task.kind == "classification":
        counts = np.bincount(split.labels, minlength=len(task.labels))
    shares = 100 * counts / len(split)
    if len(shares) > MAX_LABELS:
        return f"{shares.min():.1f} to {shares.max():.1f} %"
    return ", ".join(f"{share:.1f} %" for share in shares)


def _label(task: Task, split: Split, row: int) -> str:
    """Returns the label of a row: a name or a score, or the tags or the first answer of its example."""
    if isinstance(task, SequenceTask):
        return task.names_of(split.labels[row : row + 1])[0]
    label = split.examples[split.owners[row]].label
    if isinstance(label, Answers):
        return label.texts[0] if label.texts else "none"
    return " ".join(label)
