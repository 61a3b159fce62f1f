"""Tokenizers must match their checkpoint, and folders of runs are not folders of models."""

import json

import numpy as np
import pytest

from configs import pretrain as pretrain_config
from language import pretrain
from language.finetune import trainer as finetune
from language.tokenizer import load_tokenizer
from nystromformer_jax.training import Workdir
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


@pytest.mark.parametrize(
    ("tokens", "changes", "sentence"),
    [
        ([*SPECIAL, *WORDS, "more"], {}, "has 12 tokens and the model 11"),
        (["[UNK]", "[PAD]", *SPECIAL[2:], *WORDS], {}, r"pad_token_id = 0 .* tokenizer has 1"),
        ([*SPECIAL, *WORDS], {"mask_token_id": 9}, r"mask_token_id = 9 .* tokenizer has 4"),
    ],
)
def test_rejects_a_tokenizer_of_another_checkpoint(tmp_path, tokens, changes, sentence):
    run = prepared(checkpoint(tmp_path, tokens, **changes))
    with pytest.raises(ValueError, match=sentence) as error:
        finetune.open_tokenizer(run)
    assert "do not match" in str(error.value)


@pytest.mark.parametrize(("rows", "warns"), [(16, False), (17, True)])
def test_accepts_spare_rows_and_warns_unless_they_round_the_vocabulary_up(
    tmp_path, caplog, rows, warns
):
    folder = checkpoint(tmp_path, [*SPECIAL, *WORDS], vocab_size=rows)
    tensors = tiny.tensors_of("bert", "ForMaskedLM")
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        tensors[name] = np.resize(tensors[name], (rows, *tensors[name].shape[1:]))
    tiny.write(folder, tiny.config_of("bert", "ForMaskedLM", vocab_size=rows), tensors)
    assert finetune.open_tokenizer(prepared(folder)).vocab_size == 11
    assert ("11 tokens, and the embedding" in caplog.text) == warns


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


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize(
    ("task", "problem_type", "labels"),
    [
        ("rte", "single_label_classification", {"0": "entailment", "1": "not_entailment"}),
        ("stsb", "regression", {"0": "LABEL_0"}),
    ],
)
def test_a_fine_tuned_model_has_the_labels_of_its_task(tmp_path, task, problem_type, labels):
    """With pairs, and a RoBERTa of one token type, in which both texts have the same type."""
    folder = tmp_path / "roberta"
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *map(chr, range(97, 103))]
    (tmp_path / "roberta").mkdir()
    tensors = tiny.tensors_of("roberta", "ForMaskedLM")
    name = "roberta.embeddings.token_type_embeddings.weight"
    tensors[name] = tensors[name][:1]
    changes = {"type_vocab_size": 1, "problem_type": "multi_label_classification"}
    tiny.write(folder, tiny.config_of("roberta", "ForMaskedLM", **changes), tensors)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    data_dir = fakes.write_task(tmp_path / "glue", task)
    config = runs.glue_sections(task, data_dir, folder, data={"max_len": 13})
    run = finetune.prepare(config)
    with Workdir(tmp_path / "run", config, paths=finetune.PATHS) as workdir:
        finetune.train(run, finetune.load_data(run), workdir)
    written = json.loads((tmp_path / "run/model/config.json").read_text())
    assert (written["model_type"], written["problem_type"]) == ("roberta", problem_type)
    assert written["id2label"] == labels
    assert written["label2id"] == {label: int(number) for number, label in labels.items()}
    assert load_tokenizer(tmp_path / "run/model").vocab_size == tiny.VOCAB
