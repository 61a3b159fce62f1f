"""The config.json that is written beside our weights."""

from typing import Any

from nystromformer_jax.models import (
    Nystromformer,
    NystromformerConfig,
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained.names import Model
from nystromformer_jax.pretrained.source import (
    NUMBERS,
    OUR_FIELDS,
    OUR_KEY,
    SIZES,
    has_convolution,
)

_THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "tanh": "tanh"}


def write_config(model: Model, config: NystromformerConfig) -> dict[str, Any]:
    """The config.json of a model, which Hugging Face's Nyströmformer reads as its own."""
    has_kernels = has_convolution(config.attention, config.conv_kernel_size)
    ours = {name: getattr(config, name) for name in OUR_FIELDS}
    head = "NystromformerModel" if model is Nystromformer else model.__name__
    if model is NystromformerForPreTraining:
        head, ours["model_class"] = NystromformerForMaskedLM.__name__, head
    if not has_kernels:
        ours["conv_kernel_size"] = config.conv_kernel_size  # theirs is always 1 or more
    labels = [f"LABEL_{i}" for i in range(config.num_labels)]
    exact = config.attention != "nystrom"
    theirs = {**SIZES, **NUMBERS}
    return {
        "model_type": "nystromformer",
        "architectures": [head],
        **{name: getattr(config, field) for name, field in theirs.items()},
        "hidden_act": _THEIR_ACTIVATIONS[config.activation],
        "num_landmarks": config.num_landmarks,
        "segment_means_seq_len": config.num_landmarks if exact else config.max_len,
        "conv_kernel_size": config.conv_kernel_size if has_kernels else 1,
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "tie_word_embeddings": True,
        OUR_KEY: ours,
    }


def differences_upstream(model: Model, config: NystromformerConfig) -> list[str]:
    """What transformers would compute otherwise from a saved model, on unpadded input."""
    found = []
    if config.attention == "nystrom":
        found.append(
            f"it runs landmark attention on inputs of just {config.max_len} tokens, all real, and"
            " no others"
        )
        if config.pinv_start != "batch_max" or config.pinv_iters != 6:
            found.append("its pseudoinverse is 6 iterations from one maximum over the batch")
    elif config.attention != "softmax":
        found.append(f"it has no {config.attention} attention and runs exact attention")
    activation = config.classifier_activation
    if model is NystromformerForSequenceClassification and activation not in (
        None,
        config.activation,
    ):
        found.append(
            f"its classifier has {_THEIR_ACTIVATIONS[config.activation]} between its layers where"
            f" this one has {activation}"
        )
    return found
