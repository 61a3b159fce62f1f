"""The model card."""

from language.finetune.card import license_of, model_card
from tests.language.finetune.test_trainer import config_of, opened


def test_a_model_has_a_card(tmp_path, checkpoint):
    config = config_of(tmp_path, checkpoint, "classification")
    config["command"] = "python run_finetune.py --config=x"
    run, data = opened(config)
    metrics = {
        "valid": {"accuracy": 0.25},
        "valid_standard_error": {"accuracy": 0.125},
        "valid_examples": 8,
    }
    card = model_card(run.with_task(data.task), data, metrics)
    assert card.startswith("---\nlicense: apache-2.0\npipeline_tag: text-classification\n")
    row = "| valid | 8 | accuracy | 0.2500 | 0.1250 |"
    for words in (data.sha256, row, config["command"], ", ".join(data.task.labels)):
        assert words in card


def test_a_folder_without_a_card_names_no_license(tmp_path):
    assert license_of(tmp_path) == ""
    (tmp_path / "README.md").write_text("license: mit\n")
    assert license_of(tmp_path) == ""
