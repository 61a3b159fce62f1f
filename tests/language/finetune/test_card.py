"""The model card."""

import dataclasses

from language.finetune.card import license_of, model_card
from tests.language.finetune.test_trainer import config_of, opened


def test_a_model_has_a_card(tmp_path, checkpoint):
    train = {"class_weights": "balanced"}
    config = config_of(tmp_path, checkpoint, "classification", train=train)
    config["command"] = "python run_finetune.py --config=x"
    run, data = opened(config)
    metrics = {
        "valid": {"accuracy": 0.25},
        "valid_standard_error": {"accuracy": 0.125},
        "valid_examples": 8,
    }
    run = run.with_task(data.task)
    steps = run.sections["train"].in_steps(len(data.splits["train"])).total_steps
    card = model_card(run, data, metrics, steps)
    assert card.startswith("---\nlicense: apache-2.0\npipeline_tag: text-classification\n")
    row = "| valid | 8 | accuracy | 0.2500 | 0.1250 |"
    for words in (
        data.sha256,
        row,
        config["command"],
        ", ".join(data.task.labels),
        f"weights of {checkpoint.parent.name}, whose license is apache-2.0",
        "Class weights of the training loss: balanced",
        f"Training: {steps} steps of",
    ):
        assert words in card
    truncated = dataclasses.replace(run.data, truncation="head_tail")
    changed = dataclasses.replace(run, data=truncated)
    early = model_card(changed, data, {}, steps - 1)
    for words in (f"{steps - 1} of {steps} steps (stopped early)", "head_tail"):
        assert words in early
        assert words not in card


def test_a_folder_without_a_card_names_no_license(tmp_path):
    assert license_of(tmp_path) == ""
    (tmp_path / "README.md").write_text("license: mit\n")
    assert license_of(tmp_path) == ""
