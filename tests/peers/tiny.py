"""Tiny models of transformers with random parameters, and how to run them on our batches."""

import json
import warnings

import jax
import numpy as np
import torch

from tests.peers.modules import array

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

VOCAB, LABELS, LANDMARKS, LENGTH, CHOICES = 29, 4, 5, 20, 2
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 7,
}
NYSTROMFORMER = {
    "max_position_embeddings": LENGTH + 3,
    "num_landmarks": LANDMARKS,
    "conv_kernel_size": 3,
}
EXACT = {**NYSTROMFORMER, "segment_means_seq_len": LANDMARKS}
HEADS = [
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]


def make(kind, head, folder=None, **changes):
    """Returns their model with random values in every parameter, saved to `folder` if given."""
    torch.manual_seed(0)
    labels = 2 if head == "ForQuestionAnswering" else LABELS
    config = getattr(transformers, f"{kind}Config")(**SIZES, num_labels=labels, **changes)
    model = getattr(transformers, f"{kind}{head}")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, std=0.4)
    if folder is not None:
        model.save_pretrained(folder)
    return model


def load(folder):
    """Loads the class that config.json names, as a user of transformers would, without missing keys."""
    config = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    model, loading = kind.from_pretrained(folder, output_loading_info=True)
    if kind.__name__ in ("BertModel", "RobertaModel"):  # a layer over the outputs compared here
        loading["missing_keys"] -= {"pooler.dense.weight", "pooler.dense.bias"}
    assert not any(loading.values()), loading
    return model


def batch(rngs, head):
    """Tokens and types; no token is one of padding, whose embedding PyTorch does not train."""
    shape = (3, CHOICES, LENGTH) if head == "ForMultipleChoice" else (3, LENGTH)
    inputs = jax.random.randint(next(rngs), shape, 2, VOCAB)
    return inputs, jax.random.randint(next(rngs), shape, 0, 2)


def run_theirs(model, inputs, types, mask=None, output_hidden_states=False):
    as_torch = lambda x: torch.tensor(np.asarray(x), dtype=torch.long)
    arguments = {"input_ids": as_torch(inputs), "token_type_ids": as_torch(types)}
    if mask is not None:
        arguments["attention_mask"] = as_torch(mask)
    return model(**arguments, output_hidden_states=output_hidden_states)


OUTPUTS = (
    *("start_logits", "end_logits", "logits", "prediction_logits", "last_hidden_state"),
    "seq_relationship_logits",
)


def outputs_of(found):
    """Logits, or hidden states, as ours gives them."""
    return [array(found[name]) for name in OUTPUTS if name in found]


def loss_of(found):
    """A sum of squares, whose gradient reaches every parameter of any head."""
    return sum((found[name] ** 2).sum() for name in OUTPUTS if name in found)
