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
)
from nystromformer_jax.pretrained import (
    UpstreamMismatchWarning,
    from_pretrained,
    read_config,
    save_pretrained,
)
from nystromformer_jax.pretrained.config_json import write_config
from nystromformer_jax.pretrained.names import MODELS
from tests.helpers import files_of_at_most
from tests.pretrained import tiny
from tests.pretrained.tiny import CONFIG, flat, random_variables, same_bits

safetensors = pytest.importorskip("safetensors", reason="needs the extra `language`")


def saved(folder, model, variables=None):
    """Saves a model, with random parameters unless they are given; returns its config.json."""
    save_pretrained(folder, model, variables or random_variables(model))
    return json.loads((folder / "config.json").read_text())


def tensors_in(folder):
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
    return safetensors.numpy.load_file(folder / "model.safetensors")


CLASSIFIER = "NystromformerForSequenceClassification"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {"num_labels": 2}) for name in MODELS),
        (CLASSIFIER, {"attention": "softmax", "dropout_rate": 0.0, "layer_norm_epsilon": 1e-12}),
        (CLASSIFIER, {"attention": "softmax", "conv_kernel_size": 0}),
        (CLASSIFIER, {"conv_kernel_size": 0, "landmark_layout": "mlpen"}),
        (CLASSIFIER, {"pinv_iters": 4, "pinv_start": "batch_max", "mask_conv": False}),
        (CLASSIFIER, {"attention": "linformer", "attention_dropout_rate": 0.3}),
        (CLASSIFIER, {"attention": "reformer", "classifier_activation": None, "num_labels": 1}),
    ],
)
def test_every_model_and_option_is_loaded_with_the_bits_of_its_parameters(tmp_path, name, changes):
    model = MODELS[name](dataclasses.replace(CONFIG, **changes))
    variables = random_variables(model)
    saved(tmp_path, model, variables)
    again, read = from_pretrained(tmp_path)
    assert again == model
    assert same_bits(read, variables)
    assert read_config(tmp_path) == model.config


def test_dtype_is_chosen_when_loading(tmp_path):
    model = Nystromformer(dataclasses.replace(CONFIG, dtype="bfloat16"))
    saved(tmp_path, model)
    assert read_config(tmp_path).dtype == "float32"
    again, read = from_pretrained(tmp_path, dtype=jnp.bfloat16)
    assert again == model
    assert {leaf.dtype for leaf in jax.tree.leaves(read)} == {jnp.dtype("float32")}


def test_a_missing_convolution_is_saved_as_one_zero(tmp_path):
    config = saved(tmp_path, Nystromformer(dataclasses.replace(CONFIG, attention="linear")))
    assert config["conv_kernel_size"] == 1
    kernel = tensors_in(tmp_path)["encoder.layer.1.attention.self.conv.weight"]
    assert kernel.shape == (tiny.HEADS, 1, 1, 1)
    assert not kernel.any()
    _, read = from_pretrained(tmp_path, attention="nystrom", conv_kernel_size=3)
    assert not flat(read)["encoder/layer_1/attention/core/conv_kernel"].any()


@pytest.mark.parametrize(("model_type", "rows"), [("bert", 0), ("roberta", 2)])
def test_softmax_model_without_convolution_keeps_its_model_type(tmp_path, model_type, rows):
    changes = {"attention": "softmax", "conv_kernel_size": 0, "num_landmarks": 4}
    changes |= {"activation": "gelu", "classifier_activation": None}  # RoBERTa's head has only gelu
    metadata = {"model_type": model_type, "pad_token_id": 1}
    model = NystromformerForMaskedLM(dataclasses.replace(CONFIG, **changes, metadata=metadata))
    config = saved(tmp_path, model)
    assert config["model_type"] == model_type
    assert config["max_position_embeddings"] == tiny.POSITIONS + rows
    shapes = jax.tree.map(np.shape, tensors_in(tmp_path))
    assert shapes == jax.tree.map(np.shape, tiny.tensors_of(model_type, "ForMaskedLM"))
    assert from_pretrained(tmp_path)[0] == model


def test_a_failed_write_keeps_the_old_files(tmp_path):
    model = NystromformerForMaskedLM(CONFIG)
    saved(tmp_path, model)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"config.json", "model.safetensors"}
    with files_of_at_most(2_000), pytest.raises(OSError, match="File too large") as refused:
        save_pretrained(tmp_path, model, random_variables(model, seed=1))
    assert refused.value.errno == errno.EFBIG
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_section_is_ignored_if_transformers_saved_the_folder(tmp_path):
    """transformers copies our section of config.json when it saves weights that it trained."""
    model = NystromformerForMaskedLM(CONFIG)
    config = saved(tmp_path, model)
    file = tmp_path / "config.json"
    # Version 0.2 wrote a hash of the weights.
    config["nystromformer_jax"]["weights_sha256"] = "0"
    file.write_text(json.dumps(config))
    assert read_config(tmp_path) == model.config
    file.write_text(json.dumps({**config, "transformers_version": "5.0.0"}))
    with pytest.warns(UpstreamMismatchWarning, match="saved by transformers"):
        assert read_config(tmp_path) != model.config


def test_saving_warns_of_differences_in_transformers(tmp_path):
    config = dataclasses.replace(CONFIG, attention="linear")
    with pytest.warns(UpstreamMismatchWarning, match="linear attention"):
        saved(tmp_path / "linear", Nystromformer(config))
    for head, changes, word in (
        ("ForSequenceClassification", {"num_landmarks": 4}, "nystrom attention"),
        ("ForSequenceClassification", {"attention": "softmax"}, "activation tanh"),
        ("ForMultipleChoice", {"attention": "softmax", "choice_activation": "tanh"}, "activation"),
    ):
        model = MODELS[f"Nystromformer{head}"](dataclasses.replace(CONFIG, **changes))
        with pytest.warns(UpstreamMismatchWarning, match=word):
            saved(tmp_path / "x", model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        saved(tmp_path / "exact", Nystromformer(dataclasses.replace(CONFIG, attention="softmax")))


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
    assert model.config.classifier_dropout_rate == (None if kind == "nystromformer" else 0.25)
    assert (
        read_config(
            tmp_path / "theirs", attention=attention, dropout_rate=0.3
        ).classifier_dropout_rate
        is None
    )
    written = saved(tmp_path / "ours", model, variables)
    assert {name: written.get(name) for name in FIELDS} == FIELDS
    again, read = from_pretrained(tmp_path / "ours")
    assert again == model
    assert same_bits(read, variables)


def config_of_bert(folder, without, **changes):
    """The config of a BERT whose config.json lacks one key; weights are not read."""
    raw = tiny.config_of("bert", "ForSequenceClassification", **FIELDS)
    raw = {name: value for name, value in raw.items() if name not in without}
    (folder / "config.json").write_text(json.dumps(raw))
    return read_config(folder, **changes)


def write(config, more=None, head="SequenceClassification"):
    return write_config(MODELS[f"NystromformerFor{head}"], config, more or {})


@pytest.mark.parametrize("without", [(), ("id2label", "label2id")])
def test_labels_and_their_problem_type_are_kept_until_their_number_changes(tmp_path, without):
    """transformers writes no id2label if there are two labels with default names."""
    count = 2 if without else tiny.LABELS
    written = write(config_of_bert(tmp_path, without))
    assert written["problem_type"] == FIELDS["problem_type"]
    assert len(written["id2label"]) == len(written["label2id"]) == count
    written = write(config_of_bert(tmp_path, without, num_labels=3))
    assert "problem_type" not in written
    assert written["id2label"] == {str(i): f"LABEL_{i}" for i in range(3)}
    assert written["label2id"] == {f"LABEL_{i}": i for i in range(3)}
    assert written["pad_token_id"] == 7


def test_given_labels_are_written_in_both_directions():
    config = dataclasses.replace(CONFIG, num_labels=2, metadata={"problem_type": "one of ours"})
    written = write(config, {"id2label": {"0": "no", "1": "yes"}})
    assert written["label2id"] == {"no": 0, "yes": 1}
    assert written["problem_type"] == "one of ours"
    with pytest.raises(ValueError, match="id2label"):
        write(config, {"id2label": {"0": "no"}})


def test_values_that_transformers_needs_are_written(tmp_path):
    """It makes an output per label of a question, and accepts only two; BERT's padding has id 0."""
    written = write(dataclasses.replace(CONFIG, num_labels=3), head="QuestionAnswering")
    assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    # It has no pretraining model of Nyströmformer.
    assert write(CONFIG, head="PreTraining")["architectures"] == ["NystromformerForMaskedLM"]
    written = write(config_of_bert(tmp_path, ("pad_token_id",), attention="nystrom"))
    assert (written["model_type"], written["pad_token_id"]) == ("nystromformer", 0)


@pytest.mark.parametrize(
    ("attention", "changes", "word"),
    [
        ("linformer", {"max_len": 26}, "projection"),
        ("reformer", {"attention": "nystrom"}, "reformer"),
    ],
)
def test_changes_that_the_weights_do_not_support_are_named(tmp_path, attention, changes, word):
    model = Nystromformer(dataclasses.replace(CONFIG, attention=attention))
    saved(tmp_path, model)
    with pytest.raises(ValueError, match=word):
        from_pretrained(tmp_path, **changes)
