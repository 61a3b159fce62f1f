"""save_pretrained, then from_pretrained."""

import dataclasses
import errno
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained import (
    UpstreamMismatchWarning,
    from_pretrained,
    read_config,
    save_pretrained,
)
from nystromformer_jax.pretrained.names import MODELS
from tests.helpers import files_of_at_most
from tests.pretrained import tiny
from tests.pretrained.tiny import CONFIG, flat, random_variables, same_bits

safetensors = pytest.importorskip("safetensors", reason="needs the extra `language`")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_except(
    "Nystromformer", "NystromformerForPreTraining", "NystromformerForMultipleChoice"
)
def test_every_model_is_loaded_with_its_config_and_bits(tmp_path, name):
    model = MODELS[name](CONFIG)
    variables = random_variables(model)
    save_pretrained(tmp_path / "saved", model, variables)
    again, read = from_pretrained(tmp_path / "saved")
    if name == "NystromformerForQuestionAnswering":  # saved with two labels, the start and the end
        model = model.clone(config=dataclasses.replace(CONFIG, num_labels=2))
    assert again == model
    assert same_bits(read, variables)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "softmax"},
        {"attention": "softmax", "conv_kernel_size": 0},
        {"attention": "nystrom", "conv_kernel_size": 0, "landmark_layout": "mlpen"},
        {"pinv_iters": 4, "pinv_start": "batch_max", "mask_conv": False},
        {"attention": "linformer"},
        {"attention": "reformer"},
        {"classifier_activation": None, "activation": "relu", "num_labels": 1},
        {"dropout_rate": 0.0, "attention_dropout_rate": 0.3, "layer_norm_epsilon": 1e-12},
    ],
)
@pytest.mark.slow_except("changes1", "changes2", "changes3", "changes4")
def test_every_option_is_loaded(tmp_path, changes):
    model = NystromformerForSequenceClassification(dataclasses.replace(CONFIG, **changes))
    variables = random_variables(model)
    save_pretrained(tmp_path, model, variables)
    again, read = from_pretrained(tmp_path)
    assert again == model
    assert same_bits(read, variables)
    assert read_config(tmp_path) == model.config


def test_sizes_may_be_integers_of_numpy(tmp_path, no_annotations):
    model = Nystromformer(dataclasses.replace(CONFIG, mlp_dim=np.int64(12)))
    save_pretrained(tmp_path, model, random_variables(model))
    assert read_config(tmp_path) == model.config


def test_dtype_is_chosen_when_loading(tmp_path):
    model = Nystromformer(dataclasses.replace(CONFIG, dtype="bfloat16"))
    save_pretrained(tmp_path, model, random_variables(model))
    assert from_pretrained(tmp_path)[0].config.dtype == "float32"
    again, read = from_pretrained(tmp_path, dtype=jnp.bfloat16)
    assert again == model
    assert again.config.dtype == "bfloat16"
    assert {leaf.dtype for leaf in jax.tree.leaves(read)} == {jnp.dtype("float32")}


@pytest.mark.parametrize(("attention", "mean_len"), [("softmax", 3), ("nystrom", 13)])
def test_layout_equals_that_of_hugging_face(tmp_path, attention, mean_len):
    model = NystromformerForMaskedLM(dataclasses.replace(CONFIG, attention=attention))
    save_pretrained(tmp_path, model, random_variables(model))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["NystromformerForMaskedLM"]
    assert (config["segment_means_seq_len"], config["conv_kernel_size"]) == (mean_len, 5)
    assert len(config["id2label"]) == tiny.LABELS
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        shapes = {name: file.get_tensor(name).shape for name in file.keys()}  # noqa: SIM118  # an open file has keys, and cannot be iterated over
        rows = file.get_tensor("nystromformer.embeddings.position_embeddings.weight")
    expected = tiny.tensors_of("nystromformer", "ForMaskedLM")
    assert shapes == {name: tensor.shape for name, tensor in expected.items()}
    assert not rows[:2].any()
    assert rows[2:].all()


def test_a_missing_convolution_is_saved_as_one_zero(tmp_path):
    model = Nystromformer(dataclasses.replace(CONFIG, attention="linear"))
    save_pretrained(tmp_path, model, random_variables(model))
    assert json.loads((tmp_path / "config.json").read_text())["conv_kernel_size"] == 1
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        kernel = file.get_tensor("encoder.layer.1.attention.self.conv.weight")
    assert kernel.shape == (tiny.HEADS, 1, 1, 1)
    assert not kernel.any()
    _, read = from_pretrained(tmp_path, attention="nystrom", conv_kernel_size=3)
    assert not flat(read)["encoder/layer_1/attention/core/conv_kernel"].any()


@pytest.mark.parametrize(("model_type", "rows"), [("bert", 0), ("roberta", 2)])
def test_softmax_model_without_convolution_keeps_its_model_type(tmp_path, model_type, rows):
    changes = {"attention": "softmax", "conv_kernel_size": 0, "num_landmarks": 4}
    changes["activation"] = "gelu"  # the only one of RoBERTa's head
    metadata = {"model_type": model_type, "pad_token_id": 1}
    model = NystromformerForMaskedLM(
        dataclasses.replace(CONFIG, **changes, classifier_activation=None, metadata=metadata)
    )
    save_pretrained(tmp_path, model, random_variables(model))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == model_type
    assert config["max_position_embeddings"] == tiny.POSITIONS + rows
    shapes = {
        name: tensor.shape for name, tensor in tiny.tensors_of(model_type, "ForMaskedLM").items()
    }
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        names = file.keys()
        assert {name: file.get_tensor(name).shape for name in names} == shapes
    assert from_pretrained(tmp_path)[0] == model


def test_order_head_has_the_names_of_bert(tmp_path):
    model = NystromformerForPreTraining(CONFIG)
    save_pretrained(tmp_path, model, random_variables(model))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["NystromformerForMaskedLM"]
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        names = set(file.keys())
    both = {"nystromformer.pooler.dense.weight", "cls.seq_relationship.bias"}
    assert both <= names


def test_a_failed_write_keeps_the_old_files(tmp_path, monkeypatch):
    model = Nystromformer(CONFIG)
    save_pretrained(tmp_path, model, random_variables(model))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"config.json", "model.safetensors"}

    def full(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match="No space"):
        save_pretrained(tmp_path, model, random_variables(model, seed=1))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_raises_os_error_and_leaves_no_files(tmp_path):
    model = MODELS["NystromformerForMaskedLM"](CONFIG)
    variables = random_variables(model)
    with files_of_at_most(2_000), pytest.raises(OSError, match="File too large") as refused:
        save_pretrained(tmp_path / "model", model, variables)
    assert refused.value.errno == errno.EFBIG
    assert list((tmp_path / "model").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention": "softmax"}, "its classifier has gelu_new between its layers"),
        ({"attention": "linear"}, "it has no linear attention and runs exact attention"),
        ({"landmark_selection": "kmeans"}, "its landmarks are means of segments, not of clusters"),
        ({"num_landmarks": 1}, "only on unpadded inputs of exactly 13 tokens"),
        (
            {},
            "cannot run landmark attention, because max_len=13 is not a multiple of num_landmarks=3",
        ),
    ],
)
def test_warns_of_differences_in_transformers(tmp_path, changes, sentence):
    model = NystromformerForSequenceClassification(dataclasses.replace(CONFIG, **changes))
    with pytest.warns(UpstreamMismatchWarning, match=sentence):
        save_pretrained(tmp_path, model, random_variables(model))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "softmax", "classifier_activation": None},
        {"attention": "softmax", "conv_kernel_size": 0},
    ],
)
def test_does_not_warn_if_transformers_computes_the_same(tmp_path, changes):
    model = NystromformerForSequenceClassification(dataclasses.replace(CONFIG, **changes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_pretrained(tmp_path, model, random_variables(model))


FIELDS = {
    "id2label": {str(i): f"label {i}" for i in range(tiny.LABELS)},
    "label2id": {f"label {i}": i for i in range(tiny.LABELS)},
    "problem_type": "multi_label_classification",
    "pad_token_id": 7,
    "bos_token_id": 3,
    "classifier_dropout": 0.25,
    "finetuning_task": "one of ours",
}


@pytest.mark.parametrize("kind", ["bert", "roberta", "nystromformer"])
@pytest.mark.parametrize("attention", ["softmax", "nystrom"])
@pytest.mark.slow_except("nystrom-nystromformer", "softmax-roberta", "softmax-bert")
def test_every_config_field_is_preserved(tmp_path, kind, attention):
    rows = {"max_position_embeddings": 21} if kind == "roberta" else {}
    tensors = tiny.tensors_of(kind, "ForSequenceClassification")
    if rows:
        name = "roberta.embeddings.position_embeddings.weight"
        tensors[name] = np.ones((21, tiny.EMBED), np.float32)
    config = tiny.config_of(kind, "ForSequenceClassification", **FIELDS, **rows)
    tiny.write(tmp_path / "theirs", config, tensors)
    model, variables = from_pretrained(tmp_path / "theirs", attention=attention)
    save_pretrained(tmp_path / "ours", model, variables)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {name: written.get(name) for name in FIELDS} == FIELDS
    again, read = from_pretrained(tmp_path / "ours")
    assert again == model
    assert same_bits(read, variables)


def test_labels_are_reset_if_their_number_changes(tmp_path):
    config = tiny.config_of("bert", "ForSequenceClassification", **FIELDS)
    tiny.write(tmp_path / "theirs", config, tiny.tensors_of("bert", "ForSequenceClassification"))
    model, variables = from_pretrained(tmp_path / "theirs", num_labels=2)
    save_pretrained(tmp_path / "ours", model, variables)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert written["label2id"] == {"LABEL_0": 0, "LABEL_1": 1}
    assert "problem_type" not in written
    assert written["pad_token_id"] == 7


def test_problem_type_without_labels_is_kept_until_their_number_changes(tmp_path):
    """transformers writes no id2label if there are two labels with default names."""
    fields = {"problem_type": "multi_label_classification"}
    config = tiny.config_of("bert", "ForSequenceClassification", **fields)
    del config["id2label"]
    tensors = tiny.tensors_of("bert", "ForSequenceClassification")
    tensors = {
        name: tensor[:2] if name.startswith("classifier") else tensor
        for name, tensor in tensors.items()
    }
    tiny.write(tmp_path / "theirs", config, tensors)
    for count, expected in ((2, fields["problem_type"]), (5, None)):
        model, variables = from_pretrained(tmp_path / "theirs", num_labels=count)
        save_pretrained(tmp_path / "ours", model, variables)
        written = json.loads((tmp_path / "ours" / "config.json").read_text())
        assert written.get("problem_type") == expected
        assert len(written["id2label"]) == len(written["label2id"]) == count
    config = dataclasses.replace(CONFIG, num_labels=3, metadata=fields)
    model = MODELS["NystromformerForSequenceClassification"](config)
    save_pretrained(tmp_path / "own", model, random_variables(model))
    assert read_config(tmp_path / "own").metadata["problem_type"] == fields["problem_type"]


@pytest.mark.parametrize(
    ("attention", "changes", "sentence"),
    [
        ("linformer", {"max_len": 26}, "max_len=26 was passed, but the Linformer .* the length 13"),
        (
            "reformer",
            {"attention": "nystrom"},
            "do not match attention='nystrom': they are of reformer",
        ),
    ],
)
def test_changes_that_the_weights_do_not_support_are_named(tmp_path, attention, changes, sentence):
    model = Nystromformer(dataclasses.replace(CONFIG, attention=attention))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UpstreamMismatchWarning)
        save_pretrained(tmp_path, model, random_variables(model))
    with pytest.raises(ValueError, match=sentence):
        from_pretrained(tmp_path, **changes)


def test_given_labels_are_written_in_both_directions(tmp_path):
    config = dataclasses.replace(CONFIG, num_labels=2)
    model = MODELS["NystromformerForSequenceClassification"](config)
    variables = random_variables(model)
    save_pretrained(tmp_path, model, variables, more={"id2label": {"0": "no", "1": "yes"}})
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["label2id"] == {"no": 0, "yes": 1}
    with pytest.raises(ValueError, match="id2label must name the 2 labels of the model, got 1"):
        save_pretrained(tmp_path, model, variables, more={"id2label": {"0": "no"}})


def test_question_answering_is_saved_with_two_labels(tmp_path):
    """transformers makes an output per label, and raises an error if there are other than two."""
    config = dataclasses.replace(CONFIG, num_labels=3)
    model = MODELS["NystromformerForQuestionAnswering"](config)
    save_pretrained(tmp_path, model, random_variables(model))
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert read_config(tmp_path) == dataclasses.replace(config, num_labels=2)


def test_default_pad_token_id_of_bert_is_written(tmp_path):
    config = tiny.config_of("bert", "ForMaskedLM")
    del config["pad_token_id"]
    tiny.write(tmp_path / "theirs", config, tiny.tensors_of("bert", "ForMaskedLM"))
    model, variables = from_pretrained(tmp_path / "theirs", attention="nystrom")
    save_pretrained(tmp_path / "ours", model, variables)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["pad_token_id"] == 0
