"""run_finetune.py as processes: killed, resumed and predicted in a fresh process; and its errors."""

import json
import signal

import pytest

from tests import programs
from tests.language.finetune import fakes, glue_fakes


def flags(tmp_path, workdir, model, kind="question_answering"):
    """The flags of a run on one's own files of a kind, or on GLUE's MRPC."""
    own = [f"--config=configs/finetune.py:{kind},max_len=19"]
    if kind == "mrpc":
        own = ["--config=configs/glue.py:mrpc,max_len=19"]
        own += [f"--config.data.dir={glue_fakes.write_task(tmp_path, kind)}"]
    else:
        for split in ("train", "test"):
            own += [f"--config.data.{split}_file={write(tmp_path, kind, split)}"]
    return [
        *own,
        f"--config.init.checkpoint={model}",
        "--config.train.total_steps=60",
        "--config.train.batch_size=8",
        "--config.optimizer.learning_rate=1e-2",
        "--config.eval.every_steps=20",
        "--config.log.every_steps=5",
        "--config.log.events=False",
        f"--workdir={workdir}",
    ]


def write(folder, kind, name, **options):
    if kind == "mrpc":
        file = folder / f"{name}.tsv"
        file.write_text("#1 String\t#2 String\n" + "good film\tbad plot\n" * options["count"])
        return file
    return fakes.write(folder, kind, name, **options)


def content(run):
    """Everything that a run leaves, without times."""
    result = json.loads((run / "result.json").read_text())
    times = ("train_seconds", "step_seconds", "examples_per_second", "input_share", "peak_bytes")
    files = [run / "metrics.jsonl", *(run / "model").iterdir(), *(run / "predictions").iterdir()]
    return {name: result[name] for name in result if name not in times}, {
        file.name: file.read_bytes() for file in files
    }


@pytest.mark.slow(minutes=0.3)
@pytest.mark.parametrize("kind", ["question_answering", "mrpc"])
def test_a_killed_run_resumes_to_the_same_bits_and_predicts_in_a_fresh_process(tmp_path, kind):
    model = fakes.checkpoint(tmp_path / "model")
    environment = {"NYSTROMFORMER_JAX_CACHE": tmp_path / "cache"}

    def start(*arguments):
        return programs.start("run_finetune.py", *arguments, **environment)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert programs.finish(start(*flags(tmp_path, whole, model, kind))).code == 0
    process = start(*flags(tmp_path, killed, model, kind))
    programs.wait_for_lines(killed, 5, process)
    process.kill()
    assert programs.finish(process).code == -signal.SIGKILL
    assert not (killed / "result.json").exists()
    assert programs.finish(start(*flags(tmp_path, killed, model, kind))).code == 0
    assert content(killed) == content(whole)

    file = write(tmp_path, kind, "new", count=5)
    output = tmp_path / "answers.json"
    arguments = [f"--workdir={whole}", f"--input={file}", f"--output={output}"]
    answer = programs.finish(start("--mode=predict", *arguments))
    assert answer.code == 0, answer
    assert answer.output == f"Wrote predictions for 5 examples to {output}.\n"
    if kind == "question_answering":
        assert json.loads(output.read_text()) == {f"q{i}": "rome" for i in range(5)}


FILES, GLUE = "--config=configs/finetune.py:", "--config=configs/glue.py:"
PREDICT = ["--mode=predict", "--input=x", "--output=y"]
INVALID = [
    ([f"{FILES}clasification"], "did you mean classification or"),
    (["--config=configs/listops.py"], "configs/listops.py is a config of run_lra.py: use"),
    ([f"{FILES}regression"], "init.checkpoint: needs the folder"),
    ([f"{FILES}regression", "--input=x"], "need --mode=predict"),
    ([*PREDICT, f"{FILES}regression"], "leave --config out"),
    (PREDICT, "needs --workdir=RUN of a finished run, --input=FILE"),
    ([*PREDICT, "--workdir=none"], "none has no config.json: pass"),
]


@pytest.mark.parametrize(("arguments", "sentence"), INVALID)
def test_rejects_invalid_flags(in_repository, arguments, sentence):
    programs.assert_refused(programs.call("run_finetune", *arguments), "run_finetune", sentence)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (("data", "train", "init"), "contains no finished run"),
        (("data", "train", "init", "objective"), "is not the folder of a fine-tuned model"),
        (("vocab_size",), "is not the folder of a fine-tuned model"),
    ],
)
def test_predicting_with_another_folder_is_an_error(in_repository, tmp_path, sections, words):
    (tmp_path / "config.json").write_text(json.dumps({name: {} for name in sections}))
    answer = programs.call("run_finetune", *PREDICT, f"--workdir={tmp_path}")
    programs.assert_refused(answer, "run_finetune", f"{tmp_path} {words}")


def test_invalid_files_leave_no_run(in_repository, tmp_path):
    model = fakes.checkpoint(tmp_path / "model")
    arguments = flags(tmp_path, tmp_path / "run", model, "classification")
    answer = programs.call("run_finetune", *arguments, "--config.data.label=lable")
    assert answer.code == 2
    assert "the column 'lable' (data.label) is missing" in answer.errors.splitlines()[-1]
    assert not (tmp_path / "run").exists()
    answer = programs.call("run_finetune", *arguments, "--config.data.labels=neg,fine")
    assert "the label 'pos' is not among the labels neg, fine" in answer.errors


def test_data_are_described_without_a_run(in_repository, tmp_path):
    model = fakes.checkpoint(tmp_path / "model")
    arguments = flags(tmp_path, tmp_path / "run", model, "classification")
    answer = programs.call("run_finetune", *arguments, "--mode=data")
    assert (answer.code, "| train | " in answer.output) == (0, True)
    assert not (tmp_path / "run").exists()
