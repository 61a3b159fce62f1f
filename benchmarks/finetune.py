"""Fine-tuning on GLUE or IMDb beside transformers' BERT in PyTorch: seconds of a step, or its scores.

    python -m benchmarks.finetune --config=configs/glue.py:mrpc --config.data.dir=GLUE \
        --config.init.checkpoint=BERT --out results/benchmarks/finetune
    python -m benchmarks.finetune --train --config=configs/glue.py:mrpc --config.data.dir=GLUE \
        --config.init.checkpoint=BERT --config.train.epochs=3 --out results/benchmarks/finetune

The config and its flags are those of `run_finetune.py`; BERT is the folder of a BERT with its tokenizer. Both
models make the same number of steps on the first batches of the run, with the same padding, schedule and
AdamW. A time is the median over rounds; in a round, each model makes `--batches` steps. With `--train`,
transformers' model is trained on all batches of the run and evaluated as often; `run_finetune.py` trains
ours. More commands with the same `--out` add rows. Needs the extra `peers`.

Differs from ours: transformers' head has no dropout before its first dense layer. PyTorch is not compiled.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from benchmarks.steps import step_call
from benchmarks.table import Row, Table, parser_for, this_machine, use_cpu
from benchmarks.timing import in_blocks
from cli import configs
from cli.commands import number, run_to_end
from language.checkpoint import weights_sha256
from language.finetune import trainer
from language.finetune.data import TaskData
from language.finetune.run import FineTuning
from launch import huge_pages
from nystromformer_jax.training import TrainSpec, make_schedule
from nystromformer_jax.training.pipeline import evaluation_batches, training_batches

OURS, PEER = "ours", "transformers"


class Opened(NamedTuple):
    """A run with its data, and what its rows share."""

    run: FineTuning
    data: TaskData
    spec: TrainSpec
    row: Row


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json`; returns the exit code."""
    parser = parser_for("benchmarks.finetune", __doc__)
    add, positive, example = parser.add_argument, number(int, 1), "configs/glue.py:mrpc"
    add("--config", required=True, help=f"{example}, with the flags of run_finetune.py")
    add("--train", action="store_true", help="train transformers' model; no timing")
    add("--batches", type=positive, default=8, help="training steps per timed call")
    add("--rounds", type=positive, default=5, help="timed rounds of blocks")
    words, texts = configs.split_dotted(sys.argv[1:] if arguments is None else arguments, "config")
    given = parser.parse_args(words)

    def make_table() -> None:
        use_cpu()
        config = configs.read(given.config, texts, "run_finetune.py", example).record({})
        if given.train:
            _require_supported(config)
        opened = open_run(config)
        settings = this_machine("torch", PEER)
        name, parts = "benchmarks.finetune", ("rows", "scores")
        table = Table(name, given.out, settings, parts=parts, arguments=arguments)
        cell = (opened.row["task"], opened.row["label"])
        if given.train:
            runs = [(*cell, config["train"]["seed"])]
            table.fill(
                ("task", "label", "seed"), runs, lambda *_: train_peer(opened), part="scores"
            )
        else:
            axes = ("task", "label", "batches", "model")
            cells = [(*cell, given.batches, model) for model in (OURS, PEER)]
            measure = functools.partial(time_steps, opened, given.batches, given.rounds)
            table.fill(axes, cells, lambda *values: measure(values[-1]), peers=True)
        table.finish(_show)

    return run_to_end("benchmarks.finetune", make_table)


def open_run(config: Mapping[str, Any]) -> Opened:
    """Returns the run of a config.

    Raises:
      ValueError: The task is a regression. Further errors are those of `trainer.prepare`.
    """
    run = trainer.prepare(config)
    if run.task.kind != "classification":
        raise ValueError(f"{run.task.title} is a {run.task.kind}: pass a task with classes.")
    data = trainer.load_data(run)
    run = run.with_task(data.task)
    row: Row = {"task": data.task.name, "label": config["label"], "data_sha256": data.sha256}
    row["init_sha256"] = weights_sha256(run.init)
    spec = trainer.make_spec(run, len(data.splits["train"]), data.splits["valid"])
    return Opened(run, data, spec, row)


def batches_of(opened: Opened, count: int) -> Iterator[Any]:
    """Yields the first `count` training batches."""
    train = opened.spec.config.train
    examples = opened.run.examples(opened.data.splits["train"])
    batches = training_batches(examples, batch_size=train.batch_size, seed=train.seed)
    return itertools.islice(batches, count)


def peer_of(opened: Opened) -> Any:
    """Returns transformers' model with the settings of the run, see `peers.BertTraining`.

    Raises:
      ImportError: The extra `peers` is not installed.
    """
    try:
        from benchmarks.peers import BertTraining
    except ModuleNotFoundError as error:
        raise ImportError(
            f"the package {error.name} is not installed: pip install -e '.[language,peers]'."
        ) from error
    run, config = opened.run, opened.spec.config
    total = config.train.total_steps
    return BertTraining(
        str(run.init.folder),
        num_labels=run.task.num_labels,
        dropout_rate=run.model.config.dropout_rate,
        attention_dropout_rate=run.model.config.attention_dropout_rate,
        optimizer=config.optimizer,
        rates=np.asarray(make_schedule(config.optimizer, total)(jnp.arange(total))).tolist(),
        seed=config.train.seed,
        threads=this_machine()["cpu_threads"],
    )


def time_steps(opened: Opened, count: int, rounds: int, models: Sequence[str]) -> list[Row]:
    """Returns a row for each of `models`, with the seconds of a step on the same `count` batches."""
    batches = list(batches_of(opened, count))
    peer = peer_of(opened)
    tensors = [peer.tensors(batch) for batch in batches]
    cases: dict[str, Callable[[], Any]] = {
        OURS: step_call(opened.spec, batches, opened.spec.make_train_step()),
        PEER: lambda: [peer.step(batch) for batch in tensors],
    }
    cases = {model: cases[model] for model in models}
    tokens = [batch["inputs"].shape[1] for batch in batches]
    rows = []
    for model, times in in_blocks(cases, rounds=rounds, budget_seconds=600.0).items():
        seconds = {key: times[key] / count for key in ("median", "min", "max")}
        own = {
            "model": model,
            "batches": count,
            "tokens": tokens,
            "seconds": seconds,
            "runs": times["runs"],
        }
        rows.append({**opened.row, **own})
    return rows


def train_peer(opened: Opened) -> Row:
    """Trains transformers' model; returns its validation metrics at the best evaluation, and all of them."""
    spec, peer = opened.spec, peer_of(opened)
    train = spec.config.train
    valid = opened.run.examples(opened.data.splits["valid"])
    evaluations: list[dict[str, float]] = []
    for done, batch in enumerate(batches_of(opened, train.total_steps), 1):
        peer.step(peer.tensors(batch))
        if done % spec.config.eval.every_steps == 0 or done == train.total_steps:
            batches = evaluation_batches(valid, batch_size=train.batch_size)
            outputs = [peer.outputs(batch) for batch in batches]
            evaluations.append({"step": done, **spec.summarize(outputs)})
    best = max(evaluations, key=lambda values: (values[spec.select], -values["loss"]))
    return {**opened.row, "seed": train.seed, "valid": best, "evaluations": evaluations}


def _require_supported(config: Mapping[str, Any]) -> None:
    """Raises ValueError if the config has a value that the training of transformers' model does not use."""
    supported = {
        "attention.name": ("", "softmax"),
        "init.from_scratch": (False,),
        "model.dtype": ("float32",),
        "optimizer.clip_norm": (0,),
        "train.class_weights": ("",),
        "eval.max_examples": (0,),
        "eval.patience": (0,),
    }
    for key, values in supported.items():
        section, _, name = key.partition(".")
        if config[section][name] not in values:
            raise ValueError(f"{key}={config[section][name]} is not supported with --train.")


def _show(results: Mapping[str, Any]) -> str:
    """Returns the seconds of steps, and the validation scores of transformers' model."""
    shown = []
    for part, others in (("rows", ["model", "seconds.median"]), ("scores", ["seed"])):
        if results[part]:
            table = pd.json_normalize(results[part])
            names = ["task", "label", *others, *(x for x in table if x.startswith("valid."))]
            shown.append(table[names].to_string(index=False))
    return "\n\n".join(shown)


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
