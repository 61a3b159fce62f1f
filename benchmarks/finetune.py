"""Fine-tuning a published BERT on GLUE beside transformers' model in PyTorch: times of steps, and scores.

    python -m benchmarks.finetune --model MODEL --dir GLUE --out results/benchmarks/finetune
    python -m benchmarks.finetune --model MODEL --dir GLUE --tasks mrpc --seeds 3 --learning_rate 1e-4 \
        --out results/benchmarks/finetune-mrpc

MODEL is the folder of a BERT with its tokenizer. All models take the same batches of `configs/glue.py` with
the same padding, rates of dropout, schedule and AdamW. Times are medians of blocks of steps, in turn. With
`--seeds`, transformers' model is trained instead and scored on the validation set after each epoch;
`run_finetune.py` trains ours. The same command resumes.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from benchmarks.steps import step_call
from benchmarks.table import Row, Table, parser_for, this_machine, use_cpu
from benchmarks.timing import in_blocks
from cli.commands import number, run_to_end
from configs.glue import get_config
from language.finetune import trainer
from language.finetune.data import TaskData
from language.finetune.glue_tasks import TASKS
from language.finetune.run import FineTuning
from nystromformer_jax.training import TrainSpec, make_schedule
from nystromformer_jax.training.pipeline import evaluation_batches, training_batches
from reporting.statistics import format_spread, summarize
from reporting.tables import format_3sf
from reporting.tables import markdown as markdown_table

PEER = "transformers"
MODELS = {"softmax": "softmax", "nystrom-64": "nystrom,num_landmarks=64", PEER: "softmax"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json` and `.md`; returns the exit code."""
    parser = parser_for("benchmarks.finetune", __doc__)
    add, positive = parser.add_argument, number(int, 1)
    tasks = sorted(name for name, task in TASKS.items() if not task.is_regression)
    add("--model", required=True, help="folder of a BERT with its tokenizer")
    add("--dir", required=True, help="folder of GLUE's tasks")
    add("--tasks", nargs="+", choices=tasks, default=["mrpc", "sst2"])
    add("--batches", type=positive, default=8, help="steps of a timed call")
    add("--rounds", type=positive, default=5, help="timed rounds of blocks")
    add("--seeds", type=positive, help="train transformers' model with so many seeds instead")
    add("--epochs", type=positive, default=3, help="with --seeds")
    add("--learning_rate", type=float, default=3e-5, help="with --seeds: peak rate")
    add("--examples", type=number(int, 0), default=0, help="training examples; 0: all")
    given = parser.parse_args(arguments)

    def make_table() -> None:
        use_cpu()
        keys = ("epochs", "learning_rate", "examples") if given.seeds else ("batches", "rounds")
        settings = this_machine("torch", PEER) | {key: getattr(given, key) for key in keys}
        name = "benchmarks.finetune"
        table = Table(name, given.out, settings, markdown, arguments=arguments)
        if given.seeds:
            cells = itertools.product(given.tasks, range(given.seeds))
            table.fill(("task", "seed"), cells, functools.partial(score_peer, given))
        else:
            cells = itertools.product(given.tasks, MODELS)
            table.fill(("task", "model"), cells, functools.partial(time_steps, given), peers=True)
        table.finish()

    return run_to_end("benchmarks.finetune", make_table)


def open_task(
    given: argparse.Namespace, task: str, model: str, seed: int = 0
) -> tuple[FineTuning, TaskData, TrainSpec]:
    """Returns the run of a task, its data and its `TrainSpec`."""
    config = get_config(f"{task},attention={MODELS[model]}").to_dict()
    config["init"]["checkpoint"] = given.model
    config["data"] |= {"dir": given.dir, "examples": given.examples}
    config["optimizer"]["learning_rate"] = given.learning_rate
    config["train"] |= {"epochs": float(given.epochs), "seed": seed}
    run = trainer.prepare(config)
    data = trainer.load_data(run)
    run = run.with_task(data.task)
    return run, data, trainer.make_spec(run, len(data.splits["train"]), data.splits["valid"])


def first_batches(run: FineTuning, data: TaskData, spec: TrainSpec, count: int) -> list[Any]:
    """Returns the first training batches of a run."""
    train = spec.config.train
    batches = training_batches(
        run.examples(data.splits["train"]), batch_size=train.batch_size, seed=train.seed
    )
    return list(itertools.islice(batches, count))


def time_steps(given: argparse.Namespace, task: str, models: Sequence[str]) -> list[Row]:
    """Returns a row for each model, with the seconds of a step on the same batches."""
    cases: dict[str, Callable[[], Any]] = {}
    for model in models:
        run, data, spec = open_task(given, task, model)
        batches = first_batches(run, data, spec, given.batches)
        if model == PEER:
            cases[model] = functools.partial(_each, Peer(given.model, spec).step, batches)
        else:
            cases[model] = step_call(spec, batches, spec.make_train_step())
    tokens = [batch["inputs"].shape[1] for batch in batches]
    rows = []
    for model, times in in_blocks(cases, rounds=given.rounds, budget_seconds=600.0).items():
        seconds = {key: times[key] / given.batches for key in ("median", "min", "max")}
        row = {"task": task, "model": model, "tokens": tokens, "runs": times["runs"]}
        rows.append({**row, "seconds": seconds})
    return rows


def _each(step: Callable[[Any], Any], batches: Sequence[Any]) -> None:
    for batch in batches:
        step(batch)


def score_peer(given: argparse.Namespace, task: str, seed: int) -> Row:
    """Trains transformers' model; returns its validation metrics at the best epoch."""
    run, data, spec = open_task(given, task, PEER, seed)
    peer, config = Peer(given.model, spec), spec.config
    steps = config.train.total_steps
    valid = run.examples(data.splits["valid"])
    scores: list[dict[str, float]] = []
    for done, batch in enumerate(first_batches(run, data, spec, steps), 1):
        peer.step(batch)
        if done % config.eval.every_steps == 0 or done == steps:
            batches = evaluation_batches(valid, batch_size=config.train.batch_size)
            scores.append(spec.summarize([peer.evaluate(batch) for batch in batches]))
    best = max(scores, key=lambda values: values[data.task.select_by])
    return {"task": task, "seed": seed, "valid": best, "evaluations": scores}


class Peer:
    """transformers' classifier in PyTorch with the schedule and AdamW of a `TrainSpec`."""

    def __init__(self, folder: str, spec: TrainSpec) -> None:
        """Loads the weights; the head is random and depends on the seed."""
        import torch
        from transformers import AutoModelForSequenceClassification

        config, total = spec.config.optimizer, spec.config.train.total_steps
        torch.set_num_threads(this_machine()["cpu_threads"])
        torch.manual_seed(spec.config.train.seed)
        self._torch = torch
        self._model = AutoModelForSequenceClassification.from_pretrained(folder)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=1.0,  # times the rate of the schedule
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        rates = np.asarray(make_schedule(config, total)(jnp.arange(total + 1))).tolist()
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: rates[min(step, total)]
        )

    def step(self, batch: Mapping[str, Any]) -> float:
        """Makes an update; returns the loss."""
        self._model.train()
        self._optimizer.zero_grad()
        loss = self._model(**self._tensors(batch)).loss
        loss.backward()
        self._optimizer.step()
        self._schedule.step()
        return float(loss.item())

    def evaluate(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the outputs of a batch, as a spec's `eval_step` does."""
        self._model.eval()
        tensors = self._tensors(batch)
        labels = tensors.pop("labels")
        with self._torch.no_grad():
            logits = self._model(**tensors).logits
            loss = self._torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return {
            "outputs": {"logits": logits.numpy()},
            "loss": loss.numpy(),
            "count": np.ones(len(loss)),
            "rows": batch["rows"],
            "weights": batch["weights"],
        }

    def _tensors(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        names = {
            "inputs": "input_ids",
            "mask": "attention_mask",
            "types": "token_type_ids",
            "labels": "labels",
        }
        return {
            theirs: self._torch.from_numpy(batch[ours].astype(np.int64))
            for ours, theirs in names.items()
        }


def markdown(results: Mapping[str, Any]) -> str:
    """Returns a table with a row per task: seconds of a step beside transformers', or scores over seeds."""
    shown: list[Row] = []
    for task, group in itertools.groupby(results["rows"], key=lambda row: row["task"]):
        own, metric = list(group), TASKS[task].select_by
        row: Row = {"task": TASKS[task].title}
        if "seed" in own[0]:
            scores = summarize([100 * one["valid"][metric] for one in own])
            row |= {"metric": metric, "seeds": f"{scores.n}"}
            row[f"{PEER}, %"] = format_spread(scores.mean, scores.deviation)
        else:
            times = {one["model"]: one["seconds"]["median"] for one in own}
            for model, seconds in times.items():
                ratio = f" ({seconds / times[PEER]:.2f}×)" if model != PEER in times else ""
                row[f"{model}, s per step"] = f"{format_3sf(seconds)}{ratio}"
        shown.append(row)
    return markdown_table(pd.DataFrame(shown))


if __name__ == "__main__":
    sys.exit(main())
