"""Folders of other codes, written by hand in their layouts."""

import dataclasses
import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained import ExactAttentionWarning, from_pretrained, read_config
from nystromformer_jax.pretrained.config_json import layout_of
from nystromformer_jax.pretrained.names import MODELS
from tests.pretrained import tiny
from tests.pretrained.tiny import CONFIG, flat, same_bits

pytest.importorskip("safetensors", reason="needs the extra `language`")


class TestNystromformer:
    """Hugging Face's own checkpoints."""

    def test_published_checkpoint_uses_exact_attention_with_a_warning(self, tmp_path):
        tensors = tiny.published(tmp_path)
        with pytest.warns(ExactAttentionWarning, match="num_landmarks = segment_means_seq_len = 3"):
            model, variables = from_pretrained(tmp_path)
        fields = {"classifier_activation": None, "attention_dropout_rate": 0.0}
        expected = dataclasses.replace(CONFIG, attention="softmax", **fields)
        assert model == NystromformerForMaskedLM(expected)
        theirs = lambda name: tensors[f"nystromformer.{name}"]
        embeddings, layer, attention = (
            "embeddings.",
            "encoder.layer.1.",
            "encoder.layer.1.attention.",
        )
        for path, tensor in {
            "embeddings/word/embedding": theirs(f"{embeddings}word_embeddings.weight"),
            "embeddings/position/embedding": theirs(f"{embeddings}position_embeddings.weight")[2:],
            "encoder/layer_1/attention/core/conv_kernel": theirs(f"{attention}self.conv.weight")[:, 0, :, 0],
            "encoder/layer_1/attention/out/kernel": theirs(f"{attention}output.dense.weight").T,
            "encoder/layer_1/attention_norm/scale": theirs(f"{attention}output.LayerNorm.weight"),
            "encoder/layer_1/mlp/output/kernel": theirs(f"{layer}output.dense.weight").T,
        }.items():  # fmt: skip
            assert (flat(variables)[f"nystromformer/{path}"] == tensor).all(), path
        assert (flat(variables)["mlm/bias"] == tensors["cls.predictions.bias"]).all()

    def test_no_warning_if_the_attention_is_given(self, tmp_path):
        tiny.published(tmp_path)
        for attention in ("softmax", "nystrom"):
            model, _ = from_pretrained(tmp_path, attention=attention)
            assert model.config.attention == attention
            assert model.config.conv_kernel_size == tiny.WIDTH
            assert read_config(tmp_path, attention=attention) == model.config
        with pytest.warns(ExactAttentionWarning):
            read_config(tmp_path)

    def test_fewer_landmarks_than_positions_use_landmarks_with_the_quirks_given(self, tmp_path):
        tiny.published(tmp_path, segment_means_seq_len=12)
        ours, theirs = read_config(tmp_path), read_config(tmp_path, quirks="hf")
        assert (ours.attention, ours.pinv_start, ours.mask_conv) == ("nystrom", "exact", True)
        assert (theirs.landmark_layout, theirs.pinv_start) == ("hf", "batch_max")
        assert not theirs.mask_conv

    @pytest.mark.parametrize("max_len", [30, 7])
    def test_position_table_is_repeated_or_truncated(self, tmp_path, max_len):
        table = tiny.published(tmp_path)["nystromformer.embeddings.position_embeddings.weight"][2:]
        _, variables = from_pretrained(tmp_path, attention="softmax", max_len=max_len)
        rows = flat(variables)["nystromformer/embeddings/position/embedding"]
        assert (rows == table[np.arange(max_len) % tiny.POSITIONS]).all()

    def test_convolution_kernel_is_widened_with_zeros_or_dropped(self, tmp_path):
        tensors = tiny.published(tmp_path)
        path = "nystromformer/encoder/layer_0/attention/core/conv_kernel"
        _, wider = from_pretrained(tmp_path, attention="softmax", conv_kernel_size=9)
        kernel = tensors["nystromformer.encoder.layer.0.attention.self.conv.weight"][:, 0, :, 0]
        assert (flat(wider)[path] == np.pad(kernel, ((0, 0), (2, 2)))).all()
        _, without = from_pretrained(tmp_path, attention="softmax", conv_kernel_size=0)
        assert path not in flat(without)

    def test_a_missing_head_is_initialized_from_the_seed(self, tmp_path, caplog):
        tiny.published(tmp_path)
        changes = {"attention": "softmax", "num_layers": 1, "num_labels": 3}
        changes["model_class"] = NystromformerForSequenceClassification
        read = lambda seed: flat(from_pretrained(tmp_path, seed=seed, **changes)[1])
        with caplog.at_level(logging.INFO):
            one, same, other = read(0), read(0), read(1)
        assert "from seed 0, not trained yet: dense/bias, dense/kernel" in caplog.text
        assert one["output/kernel"].shape == (tiny.EMBED, 3)
        for path in one:
            assert (one[path] == same[path]).all()
            drawn = path in ("dense/kernel", "output/kernel")
            assert (one[path] != other[path]).all() == drawn, path

    def test_a_classifier_for_other_labels_is_initialized(self, tmp_path, caplog):
        head = "ForSequenceClassification"
        tensors = tiny.folder_of(tmp_path, "nystromformer", head, segment_means_seq_len=12)
        with caplog.at_level(logging.INFO):
            _, variables = from_pretrained(tmp_path, num_labels=2)
        assert "not trained yet: output/bias, output/kernel." in caplog.text
        assert (flat(variables)["dense/kernel"] == tensors["classifier.dense.weight"].T).all()

    def test_a_token_classifier_is_not_used_for_sequences(self, tmp_path):
        """The two heads have a tensor of the same name and shape; it must not be loaded."""
        tensors = tiny.folder_of(tmp_path, "bert", "ForTokenClassification")
        _, variables = from_pretrained(tmp_path, model_class=NystromformerForSequenceClassification)
        assert (flat(variables)["output/kernel"] != tensors["classifier.weight"].T).all()

    def test_unknown_tensors_and_layers_after_the_last_are_ignored(self, tmp_path, caplog):
        """Buffers and other heads are not logged."""
        tensors = tiny.published(tmp_path)
        caplog.set_level(logging.INFO)
        from_pretrained(tmp_path, attention="softmax", model_class=Nystromformer)
        assert caplog.text == ""
        tensors |= {f"adapter.{i}.weight": np.ones(3, np.float32) for i in range(11)}
        tiny.write(tmp_path, tiny.config_of("nystromformer", "ForMaskedLM"), tensors)
        _, variables = from_pretrained(tmp_path, attention="softmax", num_layers=1)
        assert "ignored the unknown tensors adapter.0.weight, adapter.1.weight" in caplog.text
        assert "nystromformer/encoder/layer_1/mlp/output/bias" not in flat(variables)


class TestBert:
    """BERT and RoBERTa; tests/peers compares each head with transformers."""

    def test_bert_has_softmax_attention_and_no_convolution(self, tmp_path):
        tiny.folder_of(tmp_path, "bert", "ForMaskedLM")
        model, variables = from_pretrained(tmp_path)
        expected = dataclasses.replace(
            CONFIG,
            attention="softmax",
            conv_kernel_size=0,
            num_landmarks=64,
            activation="gelu",
            layer_norm_epsilon=1e-12,
            choice_activation="tanh",
        )
        assert model == NystromformerForMaskedLM(expected)
        assert not [path for path in flat(variables) if path.endswith("conv_kernel")]

    def test_bert_with_landmarks_gets_a_zero_convolution(self, tmp_path):
        tiny.folder_of(tmp_path, "bert", "ForMaskedLM")
        _, variables = from_pretrained(tmp_path, attention="nystrom", num_landmarks=3)
        kernel = flat(variables)["nystromformer/encoder/layer_0/attention/core/conv_kernel"]
        assert kernel.shape == (tiny.HEADS, 33)
        assert not kernel.any()
        narrow = read_config(tmp_path, attention="nystrom", conv_kernel_size=3)
        assert narrow.conv_kernel_size == 3

    @pytest.mark.parametrize(
        ("new", "old"),
        [
            ("LayerNorm.weight", "LayerNorm.gamma"),
            ("LayerNorm.bias", "LayerNorm.beta"),
            ("bert.", "module.bert."),
            ("bert.", "_orig_mod.bert."),
            ("bert.", ""),
            ("cls.predictions.bias", "cls.predictions.decoder.bias"),
        ],
    )
    def test_reads_other_names_of_tensors(self, tmp_path, new, old):
        tensors = tiny.folder_of(tmp_path / "new", "bert", "ForMaskedLM")
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        tiny.write(tmp_path / "old", tiny.config_of("bert", "ForMaskedLM"), tensors)
        (_, expected), (_, actual) = (from_pretrained(tmp_path / x) for x in ("new", "old"))
        assert same_bits(actual, expected)

    @pytest.mark.parametrize("architectures", [None, ["BertCrfForTokenClassification"]])
    def test_the_head_is_read_also_if_config_json_names_no_architecture(
        self, tmp_path, architectures
    ):
        """Another architecture's classifier is another layer."""
        changes = {"architectures": architectures}
        tensors = tiny.folder_of(tmp_path, "bert", "ForSequenceClassification", **changes)
        kind = NystromformerForSequenceClassification
        _, variables = from_pretrained(tmp_path, model_class=kind)
        is_read = (flat(variables)["output/kernel"] == tensors["classifier.weight"].T).all()
        assert is_read == (architectures is None)

    @pytest.mark.parametrize(
        ("head", "activations", "layout"),
        [
            ("MaskedLM", {}, "bert"),
            ("MaskedLM", {"conv_kernel_size": 3}, "nystromformer"),
            ("SequenceClassification", {"classifier_activation": "tanh"}, "bert"),
            ("SequenceClassification", {"classifier_activation": None}, "nystromformer"),
            ("MultipleChoice", {"choice_activation": "tanh"}, "bert"),
            ("MultipleChoice", {"choice_activation": "relu"}, "nystromformer"),
        ],
    )
    def test_softmax_without_convolution_is_a_bert_if_its_head_is(self, head, activations, layout):
        config = dataclasses.replace(CONFIG, attention="softmax", conv_kernel_size=0)
        config = dataclasses.replace(config, **activations)
        assert layout_of(MODELS[f"NystromformerFor{head}"], config) == layout

    def test_the_activation_of_robertas_head_is_fixed(self, tmp_path):
        tiny.folder_of(tmp_path, "roberta", "ForMaskedLM", hidden_act="relu")
        model, _ = from_pretrained(tmp_path, model_class=Nystromformer)
        assert model.config.activation == "relu"
        gelu = dataclasses.replace(model.config, activation="gelu")
        assert layout_of(NystromformerForMaskedLM, model.config) == "bert"
        assert layout_of(NystromformerForMaskedLM, gelu) == "roberta"


def test_reads_several_files(tmp_path):
    tensors = tiny.published(tmp_path / "whole")
    names, folder = sorted(tensors), tmp_path / "parts"
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, own in parts.items():
        config = tiny.config_of("nystromformer", "ForMaskedLM")
        tiny.write(folder, config, {name: tensors[name] for name in own})
        (folder / "model.safetensors").rename(folder / part)
    index = {"weight_map": {name: part for part, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _, expected = from_pretrained(tmp_path / "whole", attention="softmax")
    _, actual = from_pretrained(folder, attention="softmax")
    assert same_bits(actual, expected)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float64])
def test_other_float_types_become_float32(tmp_path, dtype):
    tensors = tiny.tensors_of("bert", "ForMaskedLM")
    other = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    tiny.write(tmp_path, tiny.config_of("bert", "ForMaskedLM"), other)
    _, variables = from_pretrained(tmp_path)
    bias = flat(variables)["mlm/bias"]
    assert bias.dtype == np.float32
    assert (bias == other["cls.predictions.bias"].astype(np.float32)).all()
