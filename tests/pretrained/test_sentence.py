"""A folder of sentence-transformers, beside embeddings made by hand."""

import dataclasses
import json

import numpy as np
import pytest

from nystromformer_jax import Nystromformer
from nystromformer_jax.models import NystromformerForMaskedLM
from nystromformer_jax.pretrained import TruncationWarning, load, save_pretrained
from tests.helpers import REFERENCE, assert_close
from tests.pretrained import tiny
from tests.pretrained.test_language_model import (
    SMALL,
    TEXTS,
    WORDS,
    last_hidden_states,
    padded,
)

NAMES = ["Transformer", "Pooling", "Normalize"]


def write_settings(
    folder, pooling="pooling_mode_mean_tokens", names=tuple(NAMES), tokens=None, **whole
):
    """Writes the files of sentence-transformers beside a model."""
    modules = [
        {"type": f"sentence_transformers.models.{name}", "path": f"{i}_{name}" if i else ""}
        for i, name in enumerate(names)
    ]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = pooling if isinstance(pooling, dict) else {pooling: True, "pooling_mode_other": False}
    for name, content in {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": tiny.EMBED, **flags},
        "sentence_bert_config.json": {"max_seq_length": None, **(tokens or {})},
        "config_sentence_transformers.json": whole,
    }.items():
        (folder / name).write_text(json.dumps(content))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of one layer with its tokenizer."""
    path = tmp_path_factory.mktemp("model")
    model = NystromformerForMaskedLM(dataclasses.replace(tiny.CONFIG, **SMALL))
    save_pretrained(path, model, tiny.random_variables(model))
    tiny.write_tokenizer(path, WORDS)
    return path


def by_hand(hidden, mask, pooling):
    rows = [own[real] for own, real in zip(np.asarray(hidden), np.asarray(mask), strict=True)]
    pool = {
        "mean_tokens": lambda row: row.mean(axis=0),
        "cls_token": lambda row: row[0],
        "max_tokens": lambda row: row.max(axis=0),
        "mean_sqrt_len_tokens": lambda row: row.sum(axis=0) / len(row) ** 0.5,
    }[pooling]
    return np.stack([pool(row) for row in rows])


@pytest.mark.parametrize(
    "pooling", ["mean_tokens", "cls_token", "max_tokens", "mean_sqrt_len_tokens"]
)
def test_embeddings_follow_pooling_and_normalization(folder, pooling):
    write_settings(folder, f"pooling_mode_{pooling}")
    model = load(folder, batch_size=3)
    batch = padded(TEXTS)
    expected = by_hand(last_hidden_states(model, batch), batch[1], pooling)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = model.embed(TEXTS)
    assert_close(found, expected, REFERENCE)
    write_settings(folder, {"pooling_mode": pooling.removesuffix("_tokens")}, NAMES[:2])
    if pooling in ("mean_tokens", "max_tokens"):  # the names of newer folders
        raw = load(folder, batch_size=3).embed(TEXTS)
        assert_close(raw / np.linalg.norm(raw, axis=1, keepdims=True), expected, REFERENCE)


def test_texts_have_the_length_the_case_and_the_prompt_of_the_folder(folder):
    tokens = {"max_seq_length": 5, "do_lower_case": True}
    write_settings(folder, tokens=tokens, prompts={"query": "dog ", "none": ""})
    model = load(folder)
    with pytest.warns(
        TruncationWarning, match=r"truncated to 5 tokens, .*max_seq_length.*max_len=13"
    ):
        cut = model.embed(["a cat sat on a mat"])
    assert_close(cut, model.embed(["a cat sat"]), REFERENCE)
    assert_close(model.embed([" A CAT "]), model.embed(["a cat"]), REFERENCE)
    assert_close(model.embed(["a cat"], prompt="query"), model.embed(["dog a cat"]), REFERENCE)
    assert load(folder, max_len=9).embed(["a cat sat on a mat"]).shape == (1, tiny.EMBED)
    short = load(folder, attention="nystrom", num_landmarks=7, quirks="hf")  # padded to 7 tokens
    with pytest.warns(TruncationWarning, match="truncated to 5 tokens"):
        assert short.embed(["a cat sat on a mat"]).all()
    write_settings(folder, prompts={"query": "dog "}, default_prompt_name="query")
    assert_close(load(folder).embed(["a cat"]), model.embed(["dog a cat"]), REFERENCE)
    for arguments, word in (
        ({"texts": ["a"], "prompt": "passage"}, "its prompts are query"),
        ({"input_ids": [[2, 3]], "prompt": "query"}, "prompt needs texts"),
    ):
        with pytest.raises(ValueError, match=word):
            model.embed(**arguments)


def test_the_weights_may_lack_the_head_of_config_json(tmp_path):
    """Older folders have the config.json of the model that they were trained from."""
    model = Nystromformer(dataclasses.replace(tiny.CONFIG, **SMALL))
    save_pretrained(tmp_path, model, tiny.random_variables(model))
    tiny.write_tokenizer(tmp_path, WORDS)
    write_settings(tmp_path)
    (tmp_path / "sentence_bert_config.json").rename(tmp_path / "sentence_roberta_config.json")
    (tmp_path / "sentence_roberta_config.json").write_text('{"max_seq_length": 4}')
    file = tmp_path / "config.json"
    named = json.loads(file.read_text()) | {"architectures": ["BertForMaskedLM"]}
    file.write_text(json.dumps(named))
    with pytest.warns(TruncationWarning, match="truncated to 4 tokens"):
        assert load(tmp_path).embed(["a cat sat on a mat"]).shape == (1, tiny.EMBED)
    with pytest.raises(ValueError, match="is missing"):
        load(tmp_path, model_class=NystromformerForMaskedLM)


def test_a_head_in_the_weights_is_kept(folder):
    write_settings(folder)
    assert load(folder).fill_mask("a [MASK] cat")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"pooling": "pooling_mode_lasttoken"}, "the pooling lasttoken is unsupported"),
        ({"pooling": {"pooling_mode": "weightedmean"}}, "the pooling weightedmean is"),
        ({"pooling": dict.fromkeys(["pooling_mode_cls_token", "pooling_mode_max_tokens"], True)},
         "the pooling cls_token, max_tokens is unsupported"),
        ({"pooling": {}}, "the pooling none"),
        ({"names": [*NAMES[:2], "Dense"]}, "Dense"),
        ({"names": []}, "modules none"),
        ({"pooling": {"pooling_mode": "mean", "include_prompt": False}, "prompts": {"q": "a"}},
         "include_prompt"),
    ],
)  # fmt: skip
def test_unsupported_modules_and_poolings_fail_only_in_embed_without_pooling(
    folder, settings, word
):
    write_settings(folder, **settings)
    model = load(folder)
    with pytest.raises(ValueError, match=word):
        model.embed(TEXTS)
    assert model.embed(TEXTS, pooling="first").shape == (len(TEXTS), tiny.EMBED)
    assert model.fill_mask("a [MASK] cat")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"tokens": {"max_seq_length": 0}}, "max_seq_length"),
        ({"prompts": {"query": 3}}, "prompts"),
        ({"default_prompt_name": "query"}, "query"),
    ],
)
def test_invalid_folders_are_errors(folder, settings, word):
    write_settings(folder, **settings)
    with pytest.raises(ValueError, match=word):
        load(folder)
    (folder / "modules.json").write_text('{"type": 1}')
    with pytest.raises(ValueError, match=r"modules\.json must be a JSON list"):
        load(folder)
