"""Folders in Hugging Face's layout, written by hand, with distinct sizes where possible."""

import json

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from nystromformer_jax.backbone import NystromformerConfig
from nystromformer_jax.pretrained.tensors import param_shapes

VOCAB, EMBED, LAYERS, HEADS, MLP, POSITIONS, TYPES = 11, 6, 2, 2, 5, 13, 2
WIDTH, LANDMARKS, LABELS = 5, 3, 4

CONFIGS = {
    "nystromformer": {
        "architectures": "Nystromformer",
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "num_landmarks": LANDMARKS,
        "segment_means_seq_len": LANDMARKS,
        "conv_kernel_size": WIDTH,
        "inv_coeff_init_option": False,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 1,
    },
    "bert": {
        "architectures": "Bert",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
    },
    "roberta": {
        "architectures": "Roberta",
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": POSITIONS + 2,
        "pad_token_id": 1,
    },
}


def config_of(kind, head, **changes):
    return {
        "model_type": kind,
        "vocab_size": VOCAB,
        "hidden_size": EMBED,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": MLP,
        "type_vocab_size": TYPES,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "id2label": {str(i): f"label {i}" for i in range(LABELS)},
        **CONFIGS[kind],
        "architectures": [CONFIGS[kind]["architectures"] + head],
        **changes,
    }


def dense(name, features, inputs):
    return {f"{name}.weight": (features, inputs), f"{name}.bias": (features,)}


def layer_norm(name):
    return {f"{name}.weight": (EMBED,), f"{name}.bias": (EMBED,)}


def backbone_shapes(kind):
    """Names and shapes of the published files, buffers included."""
    rows = POSITIONS + (0 if kind == "bert" else 2)
    shapes = {
        "embeddings.word_embeddings.weight": (VOCAB, EMBED),
        "embeddings.position_embeddings.weight": (rows, EMBED),
        "embeddings.token_type_embeddings.weight": (TYPES, EMBED),
        **layer_norm("embeddings.LayerNorm"),
    }
    for layer in (f"encoder.layer.{i}." for i in range(LAYERS)):
        for name in ("query", "key", "value"):
            shapes |= dense(f"{layer}attention.self.{name}", EMBED, EMBED)
        if kind == "nystromformer":
            shapes[f"{layer}attention.self.conv.weight"] = (HEADS, 1, WIDTH, 1)
        shapes |= dense(f"{layer}attention.output.dense", EMBED, EMBED)
        shapes |= layer_norm(f"{layer}attention.output.LayerNorm")
        shapes |= dense(f"{layer}intermediate.dense", MLP, EMBED)
        shapes |= dense(f"{layer}output.dense", EMBED, MLP)
        shapes |= layer_norm(f"{layer}output.LayerNorm")
    return shapes


def head_shapes(kind, head):
    pooler = dense("bert.pooler.dense", EMBED, EMBED)
    start = "lm_head" if kind == "roberta" else "cls.predictions.transform"
    norm = "layer_norm" if kind == "roberta" else "LayerNorm"
    bias = "lm_head.bias" if kind == "roberta" else "cls.predictions.bias"
    tokens = dense(f"{start}.dense", EMBED, EMBED) | layer_norm(f"{start}.{norm}")
    tokens[bias] = (VOCAB,)
    if head == "ForSequenceClassification" and kind != "bert":
        return dense("classifier.dense", EMBED, EMBED) | dense("classifier.out_proj", LABELS, EMBED)
    return {
        "Model": {},
        "ForMaskedLM": tokens,
        "ForPreTraining": tokens | pooler | dense("cls.seq_relationship", 2, EMBED),
        "ForSequenceClassification": pooler | dense("classifier", LABELS, EMBED),
        "ForTokenClassification": dense("classifier", LABELS, EMBED),
        "ForQuestionAnswering": dense("qa_outputs", 2, EMBED),
    }[head]


def tensors_of(kind, head, seed=0):
    rng = np.random.default_rng(seed)
    prefix = "" if head == "Model" else f"{kind}."
    shapes = {prefix + name: shape for name, shape in backbone_shapes(kind).items()}
    shapes |= head_shapes(kind, head)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder, config, tensors):
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def folder_of(path, kind, head, **changes):
    """Writes a complete folder and returns its tensors."""
    tensors = tensors_of(kind, head)
    write(path, config_of(kind, head, **changes), tensors)
    return tensors


def published(path, **changes):
    """Like uw-madison/nystromformer-512: with buffers and the tied decoder in the file."""
    tensors = tensors_of("nystromformer", "ForMaskedLM")
    embeddings = "nystromformer.embeddings."
    tensors |= {
        f"{embeddings}position_ids": np.arange(POSITIONS)[None] + 2,
        f"{embeddings}token_type_ids": np.zeros((1, POSITIONS), np.int64),
        "cls.predictions.decoder.weight": tensors[f"{embeddings}word_embeddings.weight"],
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
    }
    write(path, config_of("nystromformer", "ForMaskedLM", **changes), tensors)
    return tensors


def write_tokenizer(folder, words):
    """Writes a tokenizer of whole words, with [CLS] and [SEP] around texts if they are words."""
    import tokenizers

    ids = {word: i for i, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if "[CLS]" in ids:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(word, ids[word]) for word in ("[CLS]", "[SEP]")],
        )
    backend.enable_padding(length=12)  # ignored, and so is the truncation
    backend.enable_truncation(3)
    backend.save(str(folder / "tokenizer.json"))


# Our fields of a published folder, except those that differ between the families.
CONFIG = NystromformerConfig(
    vocab_size=VOCAB,
    max_len=POSITIONS,
    embed_dim=EMBED,
    num_layers=LAYERS,
    num_heads=HEADS,
    mlp_dim=MLP,
    num_landmarks=LANDMARKS,
    conv_kernel_size=WIDTH,
    num_labels=LABELS,
)


def random_variables(model, seed=0):
    rng = np.random.default_rng(seed)
    flat = {path: rng.normal(size=shape) for path, shape in param_shapes(model).items()}
    params = {path: jnp.asarray(values, jnp.float32) for path, values in flat.items()}
    return {"params": unflatten_dict(params, sep="/")}


def flat(variables):
    return {path: np.asarray(x) for path, x in flatten_dict(variables["params"], sep="/").items()}


def same_bits(one, other):
    one, other = flat(one), flat(other)
    return one.keys() == other.keys() and all((one[path] == other[path]).all() for path in one)
