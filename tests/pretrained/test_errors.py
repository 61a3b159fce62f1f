"""Every error is one sentence: its type, and a word that says what to change."""

import dataclasses
import json
import math
import sys

import jax
import numpy as np
import pytest

from nystromformer_jax import SelfAttention, make_core
from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import NystromformerForMaskedLM
from nystromformer_jax.pretrained import from_pretrained, save_pretrained
from tests.pretrained import tiny
from tests.pretrained.tiny import CONFIG, random_variables

pytest.importorskip("safetensors", reason="needs the extra `language`")

LAYER = "nystromformer.encoder.layer.1."


@pytest.fixture
def folder(tmp_path):
    tiny.folder_of(tmp_path, "nystromformer", "ForMaskedLM")
    return tmp_path


def change_tensors(folder, **changes):
    """Replaces tensors of the last layer or the head; None removes one."""
    tensors = tiny.tensors_of("nystromformer", "ForMaskedLM") | {
        name if name.startswith("cls") else LAYER + name: tensor for name, tensor in changes.items()
    }
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    tiny.write(folder, tiny.config_of("nystromformer", "ForMaskedLM"), tensors)


@pytest.mark.parametrize(
    ("kind", "changes", "word"),
    [
        ("nystromformer", {"model_type": "robert"}, "did you mean roberta or bert"),
        ("nystromformer", {"model_type": None}, "model_type"),
        ("nystromformer", {"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ("nystromformer", {"hidden_act": "swish"}, "hidden_act"),
        ("nystromformer", {"hidden_act": ["gelu"]}, "hidden_act"),
        ("nystromformer", {"id2label": ["no", "yes"]}, "id2label"),
        ("nystromformer", {"id2label": {"no": 0}}, "id2label"),
        ("nystromformer", {"hidden_size": "12"}, "hidden_size"),
        ("nystromformer", {"layer_norm_eps": None}, "layer_norm_eps"),
        ("nystromformer", {"layer_norm_eps": math.nan}, "layer_norm_eps"),
        ("nystromformer", {"layer_norm_eps": math.inf}, "layer_norm_eps"),
        ("nystromformer", {"num_attention_heads": 5}, "num_heads"),
        ("nystromformer", {"conv_kernel_size": 4}, "odd"),
        ("nystromformer", {"architectures": None}, "model_class"),
        ("nystromformer", {"architectures": ["NystromformerForSpeech"]}, "ForSpeech"),
        ("nystromformer", {"nystromformer_jax": {"pinv_itres": 6}}, "pinv_iters"),
        ("nystromformer", {"nystromformer_jax": {"pinv_iters": "6"}}, "pinv_iters"),
        ("nystromformer", {"nystromformer_jax": {"attention": "no"}}, "attention"),
        ("nystromformer", {"nystromformer_jax": [1]}, "JSON object"),
        ("nystromformer", {"vocab_size": 30600}, r"word_embeddings.weight is \[11, 6\]"),
        ("nystromformer", {"hidden_size": 8}, r"needs \[8\]"),
        ("nystromformer", {"type_vocab_size": 3}, "token_type_embeddings"),
        ("nystromformer", {"max_position_embeddings": 12}, "position_embeddings"),
        ("nystromformer", {"num_hidden_layers": 3}, r"layer.2.* is missing"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"architectures": ["BertForNextSentencePrediction"]}, "model_class"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act"),
        ("roberta", {"pad_token_id": "one"}, "pad_token_id"),
    ],
)
def test_config_that_is_invalid_or_of_other_weights(tmp_path, no_annotations, kind, changes, word):
    tiny.folder_of(tmp_path, kind, "ForMaskedLM", **changes)
    with pytest.raises(ValueError, match=word):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{,}", "JSON"),
        ("[1]", "JSON object"),
        ('{"model": {"num_head": 2}}', "pass the file"),
        ('{"data": {}, "model": {}, "optimizer": {}, "train": {}}', "folder of a run"),
    ],
)
def test_config_of_something_else(folder, text, word):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=word):
        from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"max_length": 7}, "did you mean max_len"),
        ({"quirks": "mlpen"}, "quirks"),
        ({"model_class": SelfAttention}, "model_class"),
        ({"vocab_size": 30}, r"needs \[30, 6\]"),
        ({"num_types": 1}, r"needs \[1, 6\]"),
        ({"num_layers": 3}, "layer.2.* is missing"),
        ({"num_heads": 3}, "num_heads"),
        ({"conv_kernel_size": 3}, "conv_kernel_size"),
    ],
)
def test_arguments_that_the_weights_do_not_support(folder, no_annotations, changes, word):
    with pytest.raises(ValueError, match=word):
        from_pretrained(folder, **{"attention": "softmax", **changes})


def test_saving_what_is_not_a_model_with_its_parameters(tmp_path):
    folder, model = tmp_path / "new", NystromformerForMaskedLM(CONFIG)
    small = random_variables(Nystromformer(dataclasses.replace(CONFIG, vocab_size=7)))
    for other, variables, words in (
        (SelfAttention(2, make_core("softmax")), {}, "SelfAttention"),
        (model, small["params"], "params"),
        (model, small, r"mlm/bias .* and 36 more; unknown: emb"),
        (Nystromformer(CONFIG), small, r"word/embedding .*\(7, 6\), needs \(11, 6\)"),
    ):
        with pytest.raises(ValueError, match=words):
            save_pretrained(folder, other, variables)
    assert not folder.exists()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        save_pretrained(tmp_path / "file", model, random_variables(model))


@pytest.mark.parametrize("kept", [0, 20, -3])
def test_corrupt_weights(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model.safetensors is .*corrupt"):
        from_pretrained(folder, attention="softmax")


@pytest.mark.parametrize(
    ("index", "kind", "word"),
    [
        ({"weight_map": {"a": "1.safetensors"}}, FileNotFoundError, "1.safetensors"),
        ({"weight_map": {"a": "../1.safetensors"}}, ValueError, "same folder"),
        ({"weights": {}}, ValueError, "weight_map"),
    ],
)
def test_invalid_index(folder, index, kind, word):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(kind, match=word):
        from_pretrained(folder, attention="softmax")


def test_all_mismatches_are_reported_together(folder):
    changes = {
        "output.dense.bias": None,
        "cls.predictions.transform.dense.weight": None,
        "intermediate.dense.weight": np.ones((6, 5), np.float32),
        "attention.self.conv.weight": np.ones((2, 1, 3, 1), np.float32),
        "attention.self.query.weight": np.ones((6, 6), np.int8),
        "lora.weight": np.ones(3, np.float32),
    }
    change_tensors(folder, **changes)
    with pytest.raises(ValueError, match="do not match") as error:
        from_pretrained(folder, attention="softmax")
    for part in (
        f"{LAYER}output.dense.bias is missing",
        "cls.predictions.transform.dense.weight is missing",
        f"{LAYER}intermediate.dense.weight is [6, 5], needs [5, 6]",
        f"{LAYER}attention.self.conv.weight is [2, 1, 3, 1], needs [2, 1, 5, 1]",
        f"{LAYER}attention.self.query.weight is of int8",
        f"unknown: {LAYER}lora.weight",
    ):
        assert part in str(error.value)


def test_untied_decoder(folder):
    change_tensors(folder, **{"cls.predictions.decoder.weight": np.ones((11, 6), np.float32)})
    with pytest.raises(ValueError, match="tie_word_embeddings=False"):
        from_pretrained(folder, attention="softmax")
    _, variables = from_pretrained(folder, attention="softmax", tie_word_embeddings=False)
    assert any(leaf.shape == (11, 6) and (leaf == 1).all() for leaf in jax.tree.leaves(variables))
    from_pretrained(folder, attention="softmax", model_class=Nystromformer)


def test_missing_package(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)  # as if it were not installed
    with pytest.raises(ImportError, match="language"):
        from_pretrained(folder, attention="softmax")
    model = Nystromformer(CONFIG)
    with pytest.raises(ImportError, match="language"):
        save_pretrained(folder / "new", model, random_variables(model))
    assert not (folder / "new").exists()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="torch"):
        from_pretrained(folder, attention="softmax")
