"""Every error is one sentence that says what to do."""

import dataclasses
import json
import math
import sys

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


def read(folder, **changes):
    return from_pretrained(folder, **{"attention": "softmax", **changes})


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def change_tensors(folder, change):
    tensors = tiny.tensors_of("nystromformer", "ForMaskedLM")
    change(tensors)
    tiny.write(folder, tiny.config_of("nystromformer", "ForMaskedLM"), tensors)


class TestConfig:
    """config.json."""

    def test_no_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"none does not exist: pass"):
            read(tmp_path / "none")

    def test_no_config(self, folder):
        (folder / "config.json").unlink()
        with pytest.raises(FileNotFoundError, match=r"contains no config.json"):
            read(folder)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [("{,}", "cannot be read as JSON"), ("[1]", "must contain a JSON object, not a list")],
    )
    def test_invalid_json(self, folder, text, sentence):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=sentence):
            read(folder)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"model_type": "robert"}, "model_type, 'robert'; did you mean roberta or bert?"),
            ({"model_type": None}, "model_type, None; known: bert, camembert, nystromformer"),
            ({"tie_word_embeddings": "no"}, "tie_word_embeddings = 'no' .* must be true or false"),
            ({"hidden_act": "swish"}, "hidden_act, 'swish'; known: gelu, "),
            ({"hidden_act": ["gelu"]}, r"hidden_act, \['gelu'\]; did you mean gelu"),
            ({"id2label": ["no", "yes"]}, r"id2label in .* by its number, .* got \['no', 'yes'\]"),
            ({"id2label": {"no": 0}}, r"id2label in .* by its number, .* got {'no': 0}"),
            ({"hidden_size": "12"}, "hidden_size = '12' in its config.json; it must be an integer"),
            ({"layer_norm_eps": None}, "layer_norm_eps = None .* must be a finite number"),
            ({"layer_norm_eps": math.nan}, "layer_norm_eps = nan .* must be a finite number"),
            ({"num_attention_heads": 5}, "embed_dim must be a multiple of num_heads, got 6 and 5"),
            ({"conv_kernel_size": 4}, "conv_kernel_size must be odd .* got 4"),
            (
                {"architectures": None},
                "architecture in .* got None: pass model_class, one of Nystr",
            ),
            ({"architectures": ["NystromformerForSpeech"]}, "got 'NystromformerForSpeech'"),
            (
                {"nystromformer_jax": {"pinv_itres": 6}},
                "nystromformer_jax.pinv_itres; .*pinv_iters",
            ),
            ({"nystromformer_jax": {"pinv_iters": "6"}}, "pinv_iters in .* of type int, got '6'"),
            ({"nystromformer_jax": {"attention": "no"}}, "attention must be one of .* got 'no'"),
            ({"nystromformer_jax": {}}, "nystromformer_jax in .* must have the key attention"),
            ({"nystromformer_jax": [1]}, r"nystromformer_jax in .* be a JSON object, got \[1\]"),
        ],
    )
    def test_invalid_values(self, folder, no_annotations, changes, sentence):
        change_config(folder, **changes)
        with pytest.raises(ValueError, match=sentence):
            from_pretrained(folder)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"is_decoder": True}, "is_decoder = True .* only is_decoder = False"),
            ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_k"),
            ({"architectures": ["BertForNextSentencePrediction"]}, "must be one of this package's"),
        ],
    )
    def test_unsupported_bert_options(self, tmp_path, changes, sentence):
        tiny.folder_of(tmp_path, "bert", "ForMaskedLM", **changes)
        with pytest.raises(ValueError, match=sentence):
            from_pretrained(tmp_path)

    def test_config_of_the_authors_points_to_the_converter(self, folder):
        (folder / "config.json").write_text(json.dumps({"model": {"num_head": 2}}))
        with pytest.raises(ValueError, match=r"authors' code: run python -m nystromformer_jax"):
            read(folder)


class TestArguments:
    """Invalid arguments of from_pretrained and save_pretrained."""

    def test_unknown_option(self, folder):
        with pytest.raises(ValueError, match=r"has no field 'max_length'; did you mean max_len"):
            read(folder, max_length=7)

    def test_unknown_quirks(self, folder, no_annotations):
        with pytest.raises(ValueError, match=r"Unknown quirks 'mlpen'; known: hf, none"):
            read(folder, quirks="mlpen")

    def test_class_that_is_not_a_model(self, folder):
        with pytest.raises(
            ValueError, match=r"model_class must be one of the classes Nystromformer, .* got"
        ):
            read(folder, model_class=SelfAttention)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            (
                {"vocab_size": 30},
                "vocab_size=30 was passed, but the weights in .* have vocab_size=11",
            ),
            ({"num_types": 1}, "num_types=1 was passed, but the weights in .* have num_types=2"),
            ({"num_layers": 3}, "num_layers=3 was passed, but the weights in .* have num_layers=2"),
            ({"num_heads": 3}, "num_heads=3 was passed, but the weights in .* have num_heads=2"),
        ],
    )
    def test_sizes_fixed_by_the_weights(self, folder, changes, sentence):
        with pytest.raises(ValueError, match=sentence):
            read(folder, **changes)

    def test_narrower_convolution_kernel(self, folder):
        with pytest.raises(ValueError, match=r"conv_kernel_size=3 would cut .* which are 5 wide"):
            read(folder, conv_kernel_size=3)

    def test_saving_another_module(self, tmp_path):
        with pytest.raises(
            ValueError, match=r"save_pretrained takes one of .* got a SelfAttention"
        ):
            save_pretrained(tmp_path / "new", SelfAttention(2, make_core("softmax")), {})
        assert not (tmp_path / "new").exists()

    def test_saving_other_parameters(self, tmp_path):
        model, folder = NystromformerForMaskedLM(CONFIG), tmp_path / "new"
        variables = random_variables(Nystromformer(dataclasses.replace(CONFIG, vocab_size=7)))
        with pytest.raises(ValueError, match=r"variables as model.init gives them.* got 'emb"):
            save_pretrained(folder, model, variables["params"])
        with pytest.raises(ValueError, match=r"missing: mlm/bias, .* and 36 more; unknown: emb"):
            save_pretrained(folder, model, variables)
        with pytest.raises(ValueError, match=r"word/embedding is \[7, 6\], needs \[11, 6\]"):
            save_pretrained(folder, Nystromformer(CONFIG), variables)
        assert not folder.exists()

    def test_saving_to_an_existing_file(self, tmp_path):
        (tmp_path / "file").touch()
        model = Nystromformer(CONFIG)
        with pytest.raises(
            FileExistsError, match=r"must be a folder, but it or one of its parents is a file"
        ):
            save_pretrained(tmp_path / "file", model, random_variables(model))


class TestWeights:
    """model.safetensors."""

    def test_a_pickle_needs_torch(self, folder, monkeypatch):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
        with pytest.raises(ImportError, match=r"pytorch_model.bin was written by PyTorch.*install"):
            read(folder)

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        with pytest.raises(
            FileNotFoundError, match=r"contains no weights: neither model.safetensors"
        ):
            read(folder)

    @pytest.mark.parametrize("kept", [0, 20, -3])
    def test_corrupt_file(self, folder, kept):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(ValueError, match=r"model.safetensors is truncated or corrupt"):
            read(folder)

    @pytest.mark.parametrize(
        ("index", "kind", "sentence"),
        [
            ({"weight_map": {"a": "1.safetensors"}}, FileNotFoundError, "lacks 1.safetensors"),
            ({"weight_map": {"a": "../1.safetensors"}}, ValueError, "must be in the same folder"),
            ({"weights": {}}, ValueError, "needs a weight_map"),
        ],
    )
    def test_invalid_index(self, folder, index, kind, sentence):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(kind, match=sentence):
            read(folder)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"vocab_size": 30600}, "vocab_size = 30600 .*word_embeddings.weight has 11"),
            ({"hidden_size": 8}, "hidden_size = 8 .*word_embeddings.weight has 6"),
            ({"type_vocab_size": 3}, "type_vocab_size = 3 .*token_type_embeddings.weight has 2"),
        ],
    )
    def test_config_with_other_sizes(self, folder, changes, sentence):
        change_config(folder, **changes)
        with pytest.raises(ValueError, match=f"{sentence}.* correct config.json"):
            read(folder)

    def test_all_mismatches_are_reported_together(self, folder):
        def change(tensors):
            del tensors[f"{LAYER}output.dense.bias"]
            del tensors["cls.predictions.transform.dense.weight"]
            tensors[f"{LAYER}intermediate.dense.weight"] = np.ones((6, 5), np.float32)
            tensors[f"{LAYER}attention.self.conv.weight"] = np.ones((2, 1, 3, 1), np.float32)
            tensors["lora.weight"] = np.ones(3, np.float32)

        change_tensors(folder, change)
        with pytest.raises(ValueError, match=r"The weights in .* do not match its config") as error:
            read(folder)
        said = str(error.value)
        assert said.count("missing") == 1
        for part in (
            f"{LAYER}output.dense.bias",
            "cls.predictions.transform.dense.weight",
            f"{LAYER}intermediate.dense.weight is [6, 5], needs [5, 6]",
            f"{LAYER}attention.self.conv.weight is [2, 1, 3, 1], needs [2, 1, 5, 1]",
            "unknown: lora.weight",
        ):
            assert part in said

    def test_quantized_tensor(self, folder):
        name = f"{LAYER}attention.self.query.weight"
        change_tensors(folder, lambda tensors: tensors.update({name: np.ones((6, 6), np.int8)}))
        with pytest.raises(ValueError, match=r"query.weight is of int8, needs one of float32, bf"):
            read(folder)

    def test_classifier_without_dimensions(self, tmp_path):
        head = "ForSequenceClassification"
        tensors = tiny.tensors_of("nystromformer", head)
        config = tiny.config_of("nystromformer", head)
        tiny.write(
            tmp_path, config, tensors | {"classifier.out_proj.bias": np.ones((), np.float32)}
        )
        with pytest.raises(ValueError, match=r"out_proj.bias is \[\], needs \[2\]"):
            read(tmp_path, num_labels=2)

    def test_long_list_is_truncated(self, folder):
        change_tensors(folder, lambda tensors: [tensors.pop(name) for name in sorted(tensors)[:19]])
        with pytest.raises(ValueError, match=r"missing: .* and 11 more.$"):
            read(folder)

    def test_missing_head(self, folder):
        change_tensors(folder, lambda tensors: tensors.pop("cls.predictions.bias"))
        with pytest.raises(ValueError, match=r"missing: cls.predictions.bias.$"):
            read(folder)

    def test_untied_decoder(self, folder):
        name = "cls.predictions.decoder.weight"
        change_tensors(folder, lambda tensors: tensors.update({name: np.ones((11, 6), np.float32)}))
        with pytest.raises(
            ValueError,
            match=r"is not tied to its word embeddings .* pass tie_word_embeddings=False",
        ):
            read(folder)
        read(folder, tie_word_embeddings=False)
        read(folder, model_class=Nystromformer)

    def test_missing_package(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "safetensors", None)
        with pytest.raises(ImportError, match=r"safetensors is not installed: pip install safete"):
            read(folder)
        model = Nystromformer(CONFIG)
        with pytest.raises(ImportError, match='or the extra "language"'):
            save_pretrained(folder / "new", model, random_variables(model))
        assert not (folder / "new").exists()
