"""The model of a finished run: predictions and export."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax

from language import files
from language.files import FilesConfig
from language.finetune.run import Run, prepare
from language.finetune.spec import collate, make_spec
from language.glue import GlueConfig
from language.initial import read_params
from language.tasks.sequences import SequenceTask
from language.tokenizer import Tokenizer, load_tokenizer
from nystromformer_jax import training
from nystromformer_jax.export import export_model
from nystromformer_jax.support.durable import read_config, write_bytes


@dataclasses.dataclass(frozen=True)
class Trained:
    """The model of a finished run: with its own weights and tokenizer, on one device."""

    run: Run
    params: Any
    tokenizer: Tokenizer


def open_trained(folder: Path) -> Trained:
    """Opens the model in a run's folder; needs neither the initial checkpoint nor the data.

    Raises:
      FileNotFoundError: The folder has no config or no model.
      ValueError: The folder is not that of a run.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: pass the folder of a finished run.")
    config = read_config(folder)
    if not {"data", "train"} <= config.keys():
        raise ValueError(
            f"{folder / 'config.json'} is not the config of a run: pass the folder of a finished run, not"
            " that of a model."
        )
    if "init" not in config or "objective" in config:
        raise ValueError(
            f"{folder} is not the folder of a fine-tuned model: pass one of run_finetune.py."
        )
    if not (folder / "model").is_dir():
        raise FileNotFoundError(
            f"{folder} has no subfolder model/, because its run is not finished: resume the run with the"
            " command that started it."
        )
    config = {
        **config,
        # Only older runs have the key workers.
        "data": {key: value for key, value in config["data"].items() if key != "workers"},
        "init": {"checkpoint": str(folder / "model")},
        "attention": {"name": ""},
        "mesh": {"data": 1},
        "eval": {"batch_size": config.get("eval", {}).get("batch_size", 0)},
        "train": {**config["train"], "remat": False, "accumulation": 0},
    }
    run = prepare(config, jax.local_devices()[:1])
    metadata = run.model.config.metadata
    task = run.task
    if isinstance(run.data, FilesConfig):
        labels = [
            label for _, label in sorted((int(i), x) for i, x in metadata["id2label"].items())
        ]
        task = files.make_task(run.data, labels, metadata.get("has_unanswerable", False))
    if isinstance(task, SequenceTask):
        task = dataclasses.replace(task, threshold=metadata.get("decision_threshold"))
    run = run.with_task(task)
    params = read_params(run.init, run.model.config, run.head.model_class, seed=0)
    return Trained(run, params, load_tokenizer(run.init.folder))


def predict(trained: Trained, source: Path, output: Path) -> int:
    """Writes predictions for the examples in the file `source` to `output`; returns their number.

    The formats are those of the training files and of the predictions of a run. Labels in the file are
    ignored.

    Raises:
      ValueError: An example is invalid; nothing is written.
    """
    run = trained.run
    data = run.data
    if isinstance(data, GlueConfig):
        assert isinstance(run.task, SequenceTask)
        text, *second = run.task.texts
        data = FilesConfig(
            kind=run.task.kind,
            text=text,
            text_pair=second[0] if second else "",
            max_len=data.max_len,
            truncation=data.truncation,
        )
    if source.resolve() == output.resolve():
        raise ValueError(f"--output: {output} is also the input; pass another file.")
    if output.is_dir():
        raise ValueError(f"--output: {output} is a folder; pass the path of a file.")
    with tempfile.TemporaryDirectory() as folder:
        split = files.open_input(data, run.task, source, trained.tokenizer, Path(folder))
        spec = make_spec(run, examples=1)
        outputs, _ = training.evaluate_split(spec, trained.params, run.examples(split), collate)
        predicted = run.task.predict(split, outputs)
        with training.writing_to(output.parent):
            run.task.write(output, split, predicted)
    return len(predicted)


def write_export(run: Run, workdir: training.Workdir) -> Path:
    """Exports the model of a finished run to a file that needs only jax and flatbuffers; returns its path.

    Raises:
      NotFinished: The run has no result yet.
      LossNotFinite: The run diverged.
      CannotWrite: The disk is full or the folder is read-only.
    """
    workdir.require_result()
    trained = open_trained(workdir.path)
    file = workdir.path / "model.jax_export"
    with training.sync_errors(), training.writing_to(workdir.path):
        if training.is_primary():
            exported = export_model(
                trained.run.model, {"params": trained.params}, length=run.data.max_len
            )
            write_bytes(file, exported.serialize())
    return file
