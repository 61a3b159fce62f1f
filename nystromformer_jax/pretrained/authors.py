"""Reads checkpoints of the authors' BERT code: renames their tensors and config to Hugging Face's."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nystromformer_jax.models import NystromformerForSequenceClassification
from nystromformer_jax.pretrained import files
from nystromformer_jax.pretrained.config_json import SECTION, Source, position_offset, read_source
from nystromformer_jax.pretrained.names import FAMILIES, Family, ModelClass, Tensors

# The authors' names and Hugging Face's; `{i}` is the index of a layer. The last form of a layer is that of
# all layers, which then share their parameters.
# Source: mlpen/Nystromformer at 5689313, code/model.py with model_wrapper.py, and reorganized_code/BERT,
# reorganized_code/RoBERT and reorganized_code/encoders/backbones.
LAYERS = (
    "model.transformer_{i}",
    "model.backbone.backbone.encoders.{i}",
    "model.backbone.backbone.encoder",
)
IN_LAYER = {
    "mha.W_q": "attention.self.query",
    "mha.W_k": "attention.self.key",
    "mha.W_v": "attention.self.value",
    "mha.attn": "attention.self",
    "mha.ff": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "ff1": "intermediate.dense",
    "ff.0": "intermediate.dense",
    "ff2": "output.dense",
    "ff.2": "output.dense",
    "norm2": "output.LayerNorm",
}
OUTSIDE = {
    "model.embeddings.word_embeddings": "embeddings.word_embeddings",
    "model.embeddings.position_embeddings": "embeddings.position_embeddings",
    "model.embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "model.embeddings.norm": "embeddings.LayerNorm",
    "model.pooler": "pooler.dense",
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.mlm_class": "cls.predictions.decoder",
    "sen_class": "cls.seq_relationship",
    "qahead": "qa_outputs",
}
CLASSIFIER = ("sen_classifer.dense", "sen_classifer.classifer")
# A tensor of each head, and the name of the head.
HEADS = {
    "sen_classifer.dense.weight": "ForSequenceClassification",
    "qahead.weight": "ForQuestionAnswering",
    "sen_class.weight": "ForPreTraining",
    "mlm.dense.weight": "ForMaskedLM",
}


def read_authors_checkpoint(where: Path, model_class: ModelClass | None) -> tuple[Source, Tensors]:
    """Returns the description and the tensors of a checkpoint of the authors' BERT code.

    `where` is a file pickled by PyTorch, with the authors' config.json in the same folder or the one above.
    Sizes are read from the tensors. The head `sen_class` was trained on sentence order and then on GLUE: it
    has unused classes, and `model_class` chooses its use.

    Differs: num_landmarks is the smaller of num_landmarks and seq_len, because nystrom-512/config.json
    has the two swapped.
    """
    above = where.absolute().parents[:2]
    folder = next((folder for folder in above if (folder / files.CONFIG).is_file()), None)
    if folder is None:
        raise FileNotFoundError(
            f"{where} needs the {files.CONFIG} of its model, in the same folder or the one above."
        )
    raw = files.read_config_file(folder)
    config = raw.get("model")
    if not isinstance(config, dict) or raw.keys() & {"model_type", "optimizer"}:  # of a run
        raise ValueError(
            f"{where} is a file, and the config.json beside it is not that of the authors' code: pass the"
            " folder of a model in Hugging Face's layout."
        )
    found = files.read_torch(where)
    tensors = {name.removeprefix("module."): tensor for name, tensor in found.items()}
    layer = next((x for x in LAYERS if f"{x.format(i=0)}.mha.W_q.weight" in tensors), None)
    tables = [f"model.embeddings.{x}_embeddings.weight" for x in ("word", "position", "token_type")]
    if layer is None or not tensors.keys() >= set(tables):
        raise ValueError(
            f"{where} is not a checkpoint of the authors' BERT code (code/ or reorganized_code/ of"
            " mlpen/Nystromformer). Those of their LRA code are read by"
            " lra.pretrained.load_authors_checkpoint, from a clone of this repository."
        )

    def number(key: str) -> int:
        if not isinstance(config.get(key), int):
            raise ValueError(f"{where} needs an integer {key} in its config.json.")
        return int(config[key])

    attention = config.get("attn_type", "softmax")  # vanila_transformer supports only softmax
    if attention not in ("softmax", "nystrom"):
        raise ValueError(
            f"{where} has attn_type {attention!r} in its config.json; only softmax and nystrom are supported."
        )
    model_type = "bert" if attention == "softmax" else "nystromformer"
    head = next((head for name, head in HEADS.items() if name in tensors), "Model")
    classifier = CLASSIFIER
    if head == "ForPreTraining" and model_class is NystromformerForSequenceClassification:
        head, classifier = "ForSequenceClassification", ("model.pooler", "sen_class")
    words, positions, types = (tensors[name] for name in tables)
    classes = tensors.get(f"{classifier[1]}.bias", tensors.get("sen_class.bias"))
    max_len, count = number("max_seq_len"), number("num_layers")
    renamed = _rename(tensors, layer, count, FAMILIES[model_type], head, classifier)
    translated = {
        "model_type": model_type,
        "architectures": [FAMILIES[model_type].classes + head],
        "vocab_size": len(words),
        "hidden_size": words.shape[1],
        "num_hidden_layers": count,
        "num_attention_heads": number("num_head"),
        "intermediate_size": len(renamed.get("encoder.layer.0.intermediate.dense.weight", ())),
        "type_vocab_size": len(types),
        "max_position_embeddings": max_len,
        "hidden_act": "gelu_new" if layer == LAYERS[0] else "gelu",
        "hidden_dropout_prob": config.get("dropout_prob"),
        "attention_probs_dropout_prob": config.get("dropout_prob"),
        "layer_norm_eps": 1e-5,
        "num_labels": 2 if classes is None else len(classes),
    }
    if attention == "nystrom":
        length = number("seq_len" if "seq_len" in config else "max_seq_len")
        translated |= {
            "num_landmarks": min(number("num_landmarks"), length),
            "segment_means_seq_len": max(number("num_landmarks"), length),
            "conv_kernel_size": config.get("conv_kernel_size", 0),
            SECTION: {"classifier_activation": "tanh"},
        }
    if len(positions) - max_len in (0, 2):  # the first two rows are unused
        unused = ((position_offset(translated), 0), (0, 0))
        renamed["embeddings.position_embeddings.weight"] = np.pad(positions[-max_len:], unused)
    source = read_source(translated, where)
    is_exact = attention == "nystrom" and source.fields["attention"] == "softmax"
    source = dataclasses.replace(
        source,
        fields={**source.fields, "metadata": {}},
        equal_key="seq_len" if is_exact else "",
    )
    return source, renamed


def _rename(
    tensors: Tensors,
    layer: str,
    num_layers: int,
    family: Family,
    head: str,
    classifier: tuple[str, str],
) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors under Hugging Face's names, and unknown ones under their own."""
    names = dict(OUTSIDE)
    if head == "ForSequenceClassification":
        del names["model.pooler"]  # BERT's pooler is the first layer of its classifier
        modules = family.modules_of(NystromformerForSequenceClassification)
        names |= zip(classifier, (modules["dense"], modules["output"]), strict=True)
    pairs = list(names.items())
    for i in range(num_layers):
        start, new = layer.format(i=i), f"encoder.layer.{i}"
        pairs += [(f"{start}.{theirs}", f"{new}.{name}") for theirs, name in IN_LAYER.items()]
    known = tuple(f"{theirs}." for theirs, _ in pairs)
    renamed = {name: tensor for name, tensor in tensors.items() if not name.startswith(known)}
    for theirs, name in pairs:
        for leaf in ("weight", "bias", "conv.weight"):
            if f"{theirs}.{leaf}" in tensors:
                tensor = tensors[f"{theirs}.{leaf}"]
                is_order = name == "cls.seq_relationship"  # the first two classes are the order
                renamed[f"{name}.{leaf}"] = tensor[:2] if is_order else tensor
    return renamed
