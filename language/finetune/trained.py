"""The model of a finished run: predictions and export."""

import contextlib
import dataclasses
import tempfile
from pathlib import Path

from language import files
from language.files import FilesConfig
from language.finetune.run import FineTuning, examples_of
from language.finetune.spec import collate
from language.glue import TASKS, GlueConfig
from language.heads import HEADS
from language.tasks.sequences import SequenceTask
from language.tasks.task import Task
from language.tokenizer import load_tokenizer
from nystromformer_jax import training
from nystromformer_jax.export import export_model
from nystromformer_jax.pretrained import LanguageModel, load
from nystromformer_jax.support.durable import read_config, write_bytes


@dataclasses.dataclass(frozen=True)
class Trained:
    """The model of a finished run, with its own weights and tokenizer, and its task."""

    folder: Path  # of the model
    data: GlueConfig | FilesConfig
    task: Task
    language_model: LanguageModel


def open_trained(folder: Path) -> Trained:
    """Opens the model in a run's folder; needs neither the initial checkpoint nor the data.

    Raises:
      FileNotFoundError: The folder has no config or no model.
      ValueError: The folder is not that of a run.
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: pass the folder of a finished run.")
    config = read_config(folder)
    if not {"data", "train", "init"} <= config.keys() or "objective" in config:
        raise ValueError(
            f"{folder} is not the folder of a fine-tuned model: pass the folder of a finished run of"
            " run_finetune.py, not that of a model."
        )
    if not (folder / "model").is_dir():
        raise FileNotFoundError(
            f"{folder} has no subfolder model/, because its run is not finished: resume the run with the"
            " command that started it."
        )
    section = dict(config["data"])
    section.pop("workers", None)  # of older runs
    data: GlueConfig | FilesConfig
    if "task" in section:
        data = training.from_mapping(GlueConfig, section, "data")
    else:
        data = training.from_mapping(FilesConfig, section, "data")
    rows, parts = config["train"]["batch_size"], config["train"].get("accumulation") or 1
    language_model = load(
        folder / "model",
        batch_size=config.get("eval", {}).get("batch_size") or min(rows, 4 * rows // parts),
        dtype=config["model"].get("dtype", "float32"),
    )
    metadata = language_model.model.config.metadata
    if isinstance(data, GlueConfig):
        task: Task = TASKS[data.task]
    else:
        names = metadata["id2label"]
        labels = [names[i] for i in sorted(names, key=int)]
        task = files.make_task(data, labels, metadata.get("has_unanswerable", False))
    if isinstance(task, SequenceTask):
        task = dataclasses.replace(task, threshold=metadata.get("decision_threshold"))
    return Trained(folder / "model", data, task, language_model)


def predict(trained: Trained, source: Path, output: Path) -> int:
    """Writes predictions for the examples in the file `source` to `output`; returns their number.

    The formats are those of the training files and of the predictions of a run. Labels in the file are
    ignored.

    Raises:
      ValueError: An example is invalid; nothing is written.
    """
    task, data, language_model = trained.task, trained.data, trained.language_model
    if isinstance(data, GlueConfig):
        assert isinstance(task, SequenceTask)
        text, *second = task.texts
        data = FilesConfig(
            kind=task.kind,
            text=text,
            text_pair=second[0] if second else "",
            max_len=data.max_len,
            truncation=data.truncation,
            group_by_length=data.group_by_length,
        )
    if source.resolve() == output.resolve():
        raise ValueError(f"--output: {output} is also the input; pass another file.")
    if output.is_dir():
        raise ValueError(f"--output: {output} is a folder; pass the path of a file.")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = load_tokenizer(trained.folder)
        split = files.open_input(data, task, source, tokenizer, Path(folder))
        examples = examples_of(split, language_model.model.config, data)
        batches = training.evaluation_batches(examples, batch_size=language_model.batch_size)
        with contextlib.closing(batches):
            found = [
                {**batch, "outputs": HEADS[task.kind].outputs(language_model.apply(batch))}
                for batch in batches
            ]
        predicted = task.predict(split, collate(found))
        with training.writing_to(output.parent):
            task.write(output, split, predicted)
    return len(predicted)


def write_export(run: FineTuning, workdir: training.Workdir) -> Path:
    """Exports the model of a finished run to a file that needs only jax and flatbuffers; returns its path.

    Raises:
      NotFinished: The run has no result yet.
      LossNotFinite: The run diverged.
      CannotWrite: The disk is full or the folder is read-only.
    """
    workdir.require_result()
    file = workdir.path / "model.jax_export"
    with training.sync_errors(), training.writing_to(workdir.path):
        if training.is_primary():
            language_model = open_trained(workdir.path).language_model
            exported = export_model(
                language_model.model, language_model.variables, length=run.data.max_len
            )
            write_bytes(file, exported.serialize())
    return file
