"""Folders of other codes, written by hand in their layouts."""

import dataclasses
import functools
import json
import logging

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import models
from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
)
from nystromformer_jax.pretrained import ExactAttentionWarning, from_pretrained, read_config
from nystromformer_jax.pretrained.config_json import layout_of
from tests.pretrained import tiny
from tests.pretrained.tiny import CONFIG, flat, same_bits

safetensors = pytest.importorskip("safetensors", reason="needs the extra `language`")


class TestNystromformer:
    """Hugging Face's own checkpoints."""

    def test_published_checkpoint_uses_exact_attention_with_a_warning(self, tmp_path):
        tensors = tiny.published(tmp_path)
        with pytest.warns(ExactAttentionWarning, match="num_landmarks = segment_means_seq_len = 3"):
            model, variables = from_pretrained(tmp_path)
        assert isinstance(model, NystromformerForMaskedLM)
        expected = dataclasses.replace(
            CONFIG,
            attention="softmax",
            classifier_activation=None,
            attention_dropout_rate=0.0,
        )
        assert model.config == expected
        params, layer = flat(variables), "nystromformer.encoder.layer.1."
        ours = "nystromformer/encoder/layer_1/"
        embeddings = "nystromformer.embeddings."
        for path, tensor in {
            "nystromformer/embeddings/word/embedding": tensors[
                f"{embeddings}word_embeddings.weight"
            ],
            "nystromformer/embeddings/position/embedding": tensors[
                f"{embeddings}position_embeddings.weight"
            ][2:],
            f"{ours}attention/core/conv_kernel": tensors[f"{layer}attention.self.conv.weight"][
                :, 0, :, 0
            ],
            f"{ours}attention/out/kernel": tensors[f"{layer}attention.output.dense.weight"].T,
            f"{ours}attention_norm/scale": tensors[f"{layer}attention.output.LayerNorm.weight"],
            f"{ours}mlp/output/kernel": tensors[f"{layer}output.dense.weight"].T,
            "mlm/bias": tensors["cls.predictions.bias"],
        }.items():
            assert (params[path] == tensor).all(), path

    def test_no_warning_if_the_attention_is_given(self, tmp_path):
        tiny.published(tmp_path)
        for attention in ("softmax", "nystrom"):
            model, _ = from_pretrained(tmp_path, attention=attention)
            assert model.config.attention == attention
            assert model.config.conv_kernel_size == tiny.WIDTH
        assert (
            read_config(tmp_path, attention="nystrom")
            == from_pretrained(tmp_path, attention="nystrom")[0].config
        )
        with pytest.warns(ExactAttentionWarning):
            read_config(tmp_path)

    def test_fewer_landmarks_than_positions_use_landmarks(self, tmp_path):
        tiny.published(tmp_path, segment_means_seq_len=12)
        assert from_pretrained(tmp_path)[0].config.attention == "nystrom"

    def test_quirks_select_the_padding_of_hugging_face(self, tmp_path):
        tiny.published(tmp_path, segment_means_seq_len=12)
        config = from_pretrained(tmp_path, quirks="hf")[0].config
        quirks = (config.landmark_layout, config.pinv_start, config.mask_conv)
        assert quirks == ("hf", "batch_max", False)

    def test_position_table_is_repeated_or_truncated(self, tmp_path):
        table = tiny.published(tmp_path)["nystromformer.embeddings.position_embeddings.weight"][2:]
        for max_len in (30, 7):
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
        kind = NystromformerForSequenceClassification
        read = lambda seed: from_pretrained(
            tmp_path, model_class=kind, attention="softmax", num_layers=1, num_labels=3, seed=seed
        )
        with caplog.at_level(logging.INFO):
            (model, one), (_, same), (_, other) = read(0), read(0), read(1)
        assert (
            "Newly initialized from seed 0, not trained yet: dense/bias, dense/kernel"
            in caplog.text
        )
        assert model.config.num_labels == 3
        assert same_bits(one, same)
        for path in flat(one):
            drawn = path in ("dense/kernel", "output/kernel")
            assert (flat(one)[path] != flat(other)[path]).all() == drawn, path

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

    def test_fewer_layers_are_the_first_ones(self, tmp_path, caplog):
        tiny.published(tmp_path)
        with caplog.at_level(logging.INFO):
            _, variables = from_pretrained(tmp_path, attention="softmax", num_layers=1)
        assert (
            "ignored the unknown tensors nystromformer.encoder.layer.1.attention.output.Layer"
            in caplog.text
        )
        assert "nystromformer/encoder/layer_1/mlp/output/bias" not in flat(variables)

    def test_unknown_tensors_are_logged_in_one_line(self, tmp_path, caplog):
        tensors = tiny.published(tmp_path)
        with caplog.at_level(logging.INFO):
            from_pretrained(tmp_path, attention="softmax", model_class=Nystromformer)
        assert caplog.text == ""
        tensors |= {f"adapter.{i}.weight": np.ones(3, np.float32) for i in range(11)}
        tiny.write(tmp_path, tiny.config_of("nystromformer", "ForMaskedLM"), tensors)
        with caplog.at_level(logging.INFO):
            from_pretrained(tmp_path, attention="softmax")
        assert len(caplog.records) == 1
        assert "ignored the unknown tensors adapter.0.weight, adapter.1.weight" in caplog.text
        assert "and 3 more." in caplog.text


class TestBert:
    """BERT and RoBERTa."""

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
        model, variables = from_pretrained(tmp_path, attention="nystrom", num_landmarks=3)
        assert model.config.conv_kernel_size == 33
        kernel = flat(variables)["nystromformer/encoder/layer_0/attention/core/conv_kernel"]
        assert kernel.shape == (tiny.HEADS, 33)
        assert not kernel.any()
        narrow, _ = from_pretrained(tmp_path, attention="nystrom", conv_kernel_size=3)
        assert narrow.config.conv_kernel_size == 3

    def test_next_sentence_head_becomes_the_order_head(self, tmp_path):
        tensors = tiny.folder_of(tmp_path, "bert", "ForPreTraining")
        model, variables = from_pretrained(tmp_path)
        assert isinstance(model, NystromformerForPreTraining)
        params = flat(variables)
        assert (params["pooler/kernel"] == tensors["bert.pooler.dense.weight"].T).all()
        order = tensors["cls.seq_relationship.weight"].T
        assert (params["sentence_order/kernel"] == order).all()

    def test_pooler_becomes_the_first_layer_of_the_classifier(self, tmp_path):
        tensors = tiny.folder_of(tmp_path, "bert", "ForSequenceClassification")
        model, variables = from_pretrained(tmp_path)
        assert model.config.classifier_activation == "tanh"
        params = flat(variables)
        assert (params["dense/kernel"] == tensors["bert.pooler.dense.weight"].T).all()
        assert (params["output/bias"] == tensors["classifier.bias"]).all()

    def test_reads_old_names_of_layer_norms(self, tmp_path):
        tensors = tiny.tensors_of("bert", "ForMaskedLM")
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): tensor
            for name, tensor in tensors.items()
        }
        config = tiny.config_of("bert", "ForMaskedLM")
        _, expected = from_pretrained(tiny.write(tmp_path / "new", config, tensors))
        _, actual = from_pretrained(tiny.write(tmp_path / "old", config, old))
        assert same_bits(actual, expected)

    def test_reads_a_base_model_without_prefix(self, tmp_path):
        tensors = tiny.folder_of(tmp_path, "bert", "Model")
        _, variables = from_pretrained(tmp_path)
        words = tensors["embeddings.word_embeddings.weight"]
        assert (flat(variables)["embeddings/word/embedding"] == words).all()
        _, head = from_pretrained(tmp_path, model_class=NystromformerForTokenClassification)
        assert (flat(head)["nystromformer/embeddings/word/embedding"] == words).all()

    def test_the_activation_of_robertas_head_is_fixed(self, tmp_path):
        tiny.folder_of(tmp_path, "roberta", "ForMaskedLM")
        file = tmp_path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"hidden_act": "relu"}))
        with pytest.raises(ValueError, match=r"hidden_act = 'relu' .* always has \"gelu\""):
            from_pretrained(tmp_path)
        model, _ = from_pretrained(tmp_path, model_class=Nystromformer)
        assert model.config.activation == "relu"
        relu = functools.partial(dataclasses.replace, model.config, activation="relu")
        assert layout_of(NystromformerForMaskedLM, relu()) == "bert"
        assert layout_of(NystromformerForMaskedLM, relu(activation="gelu")) == "roberta"

    def test_roberta_positions_start_at_row_two(self, tmp_path):
        tensors = tiny.folder_of(tmp_path, "roberta", "ForMaskedLM")
        model, variables = from_pretrained(tmp_path)
        assert model.config.max_len == tiny.POSITIONS
        rows = flat(variables)["nystromformer/embeddings/position/embedding"]
        assert (rows == tensors["roberta.embeddings.position_embeddings.weight"][2:]).all()
        assert (flat(variables)["mlm/bias"] == tensors["lm_head.bias"]).all()

    @pytest.mark.parametrize("kind", ["bert", "roberta"])
    @pytest.mark.parametrize(
        "head", ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
    )
    def test_reads_heads(self, tmp_path, kind, head):
        tiny.folder_of(tmp_path, kind, head)
        model, _ = from_pretrained(tmp_path)
        assert type(model) is getattr(models, f"Nystromformer{head}")


class TestFiles:
    """Shards and half precision."""

    def test_reads_several_files(self, tmp_path):
        tensors = tiny.published(tmp_path / "whole")
        _, expected = from_pretrained(tmp_path / "whole", attention="softmax")
        names = sorted(tensors)
        parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        folder = tmp_path / "parts"
        for part, own in parts.items():
            tiny.write(folder, {}, {name: tensors[name] for name in own})
            (folder / "model.safetensors").rename(folder / part)
        weight_map = {name: part for part, own in parts.items() for name in own}
        index = json.dumps({"metadata": {}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(index)
        config = (tmp_path / "whole" / "config.json").read_text()
        (folder / "config.json").write_text(config)
        _, actual = from_pretrained(folder, attention="softmax")
        assert same_bits(actual, expected)

    @pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float64])
    def test_other_float_types_become_float32(self, tmp_path, dtype):
        tensors = tiny.tensors_of("bert", "ForMaskedLM")
        other = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
        tiny.write(tmp_path, tiny.config_of("bert", "ForMaskedLM"), other)
        _, variables = from_pretrained(tmp_path)
        bias = flat(variables)["mlm/bias"]
        assert bias.dtype == np.float32
        assert (bias == other["cls.predictions.bias"].astype(np.float32)).all()
