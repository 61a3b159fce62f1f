"""A tokenizer larger than the embedding is an error, and so is the folder of a run in place of a model."""

import numpy as np
import pytest

from configs import pretrain as pretrain_config
from language import pretrain
from language.finetune import trainer as finetune
from nystromformer_jax.pretrained.config_json import write_config
from tests.language import runs, texts
from tests.language.finetune import glue_fakes as fakes
from tests.pretrained import tiny

pytest.importorskip("safetensors", reason="needs the extra `language`")

SPECIAL = texts.SPECIAL
WORDS = [f"w{i}" for i in range(tiny.VOCAB - len(SPECIAL))]


def checkpoint(folder, tokens=(*SPECIAL, *WORDS), **changes):
    tiny.folder_of(folder, "bert", "ForMaskedLM", **changes)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return folder


def prepared(folder, task="rte", **changes):
    return finetune.prepare(
        runs.glue_sections(task, folder, folder, **{"data": {"max_len": 13}, **changes})
    )


def test_rejects_a_tokenizer_with_more_tokens_than_the_model(tmp_path):
    run = prepared(checkpoint(tmp_path, [*SPECIAL, *WORDS, "more"]))
    with pytest.raises(ValueError, match="has 12 tokens and the model 11"):
        finetune.open_tokenizer(run)


def test_accepts_spare_rows(tmp_path):
    folder = checkpoint(tmp_path, [*SPECIAL, *WORDS], vocab_size=17)
    assert finetune.open_tokenizer(prepared(folder)).vocab_size == 11


def test_from_scratch_accepts_another_tokenizer(tmp_path):
    run = prepared(checkpoint(tmp_path, [*SPECIAL, *WORDS[:-1]]), init={"from_scratch": True})
    assert finetune.open_tokenizer(run).vocab_size == tiny.VOCAB - 1


def test_pretraining_rejects_a_vocabulary_other_than_the_checkpoints(tmp_path):
    folder = checkpoint(tmp_path / "bert")
    other = texts.write_vocabulary(tmp_path, *reversed(WORDS))
    config = runs.changed(
        pretrain_config.get_config("checkpoint"),
        {
            "init": {"checkpoint": str(folder)},
            "data": {"max_len": 13, "tokenizer": str(other)},
        },
    )
    with pytest.raises(ValueError, match=r"other tokens than the tokenizer of .*bert"):
        pretrain.open_tokenizer(pretrain.prepare(config))


@pytest.mark.parametrize(
    ("task", "problem_type", "labels"),
    [
        ("rte", "single_label_classification", {"0": "entailment", "1": "not_entailment"}),
        ("stsb", "regression", {"0": "LABEL_0"}),
    ],
)
def test_a_fine_tuned_model_has_the_labels_of_its_task(tmp_path, task, problem_type, labels):
    """With pairs, and a model of one token type, in which both texts have the same type."""
    changes = {"type_vocab_size": 1, "problem_type": "multi_label_classification"}
    data_dir = fakes.write_task(tmp_path / "glue", task)
    folder = checkpoint(tmp_path / "bert", **changes)
    run = prepared(folder, task, data={"dir": str(data_dir), "max_len": 13})
    split = finetune.load_data(run).splits["valid"]
    assert not run.examples(split).fetch(np.arange(2))["types"].any()
    written = write_config(type(run.model), run.model.config, finetune._description(run.task))
    assert (written["problem_type"], written["id2label"]) == (problem_type, labels)
    assert written["label2id"] == {label: int(number) for number, label in labels.items()}
