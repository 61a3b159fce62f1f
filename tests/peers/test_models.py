"""The models against transformers' PyTorch ones: their folders read, and ours read by them."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from nystromformer_jax.models import NystromformerForMaskedLM, NystromformerForPreTraining
from nystromformer_jax.pretrained import from_pretrained, save_pretrained
from nystromformer_jax.pretrained.__main__ import main
from nystromformer_jax.pretrained.files import read_config_file
from nystromformer_jax.pretrained.source import read_source
from nystromformer_jax.pretrained.tensors import read_params
from tests.helpers import GRADIENT, OTHER_FRAMEWORK, assert_close, mask_of_lengths

modules = pytest.importorskip(
    "tests.peers.modules", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
pytest.importorskip("safetensors", reason="needs the extra `language`")
torch = modules.torch
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
HEADS = [
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
]


def make(kind, head, **changes):
    """Their model; every parameter is random, none is at its usual start."""
    torch.manual_seed(0)
    labels = 2 if head == "ForQuestionAnswering" else LABELS
    config = getattr(transformers, f"{kind}Config")(**SIZES, num_labels=labels, **changes)
    model = getattr(transformers, f"{kind}{head}")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, std=0.4)
    return model


def batch(rngs, head):
    """Tokens and types; no token is one of padding, whose embedding PyTorch does not train."""
    shape = (3, CHOICES, LENGTH) if head == "ForMultipleChoice" else (3, LENGTH)
    inputs = jax.random.randint(next(rngs), shape, 2, VOCAB)
    return inputs, jax.random.randint(next(rngs), shape, 0, 2)


def run_theirs(model, inputs, types, mask=None, **labels):
    as_torch = lambda x: torch.tensor(np.asarray(x), dtype=torch.long)
    arguments = {"input_ids": as_torch(inputs), "token_type_ids": as_torch(types)}
    if mask is not None:
        arguments["attention_mask"] = as_torch(mask)
    return model(**arguments, **{name: as_torch(label) for name, label in labels.items()})


def outputs_of(found):
    """Logits, or hidden states, as ours gives them."""
    names = ("start_logits", "end_logits", "logits", "prediction_logits", "last_hidden_state")
    there = [modules.array(found[name]) for name in names if name in found]
    if "seq_relationship_logits" in found:
        there.append(modules.array(found["seq_relationship_logits"]))
    return there


def labels_of(rngs, head):
    draw = lambda shape, top: jax.random.randint(next(rngs), shape, 0, top)
    return {
        "Model": {},
        "ForMaskedLM": {"labels": draw((3, LENGTH), VOCAB)},
        "ForSequenceClassification": {"labels": draw((3,), LABELS)},
        "ForTokenClassification": {"labels": draw((3, LENGTH), LABELS)},
        "ForQuestionAnswering": {
            "start_positions": draw((3,), LENGTH),
            "end_positions": draw((3,), LENGTH),
        },
        "ForMultipleChoice": {"labels": draw((3,), CHOICES)},
    }[head]


def loss_of(outputs, labels):
    """Cross-entropies, averaged; without labels a sum of squares."""
    if not labels:
        return (outputs[0] ** 2).sum()
    losses = []
    for logits, label in zip(outputs, labels.values(), strict=True):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], axis=-1)
        losses.append(-chosen.mean())
    return jnp.stack(losses).mean()


def gradients_of(model, folder, ours):
    """Their gradients in our names and axes."""
    gradients = {
        name: np.zeros(parameter.shape, np.float32)
        if parameter.grad is None
        else parameter.grad.numpy()
        for name, parameter in model.named_parameters()
    }
    return read_params(ours, read_source(read_config_file(folder), folder), gradients)


def compiled(model, variables):
    return jax.jit(functools.partial(model.apply, variables, deterministic=True))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("attention", ["softmax", "nystrom"])
def test_outputs_loss_and_gradients_are_hugging_faces(rngs, tmp_path, head, attention):
    exact = attention == "softmax"
    mean_len = LANDMARKS if exact else LENGTH
    theirs = make("Nystromformer", head, **NYSTROMFORMER, segment_means_seq_len=mean_len)
    theirs.save_pretrained(tmp_path)
    ours, variables = from_pretrained(tmp_path, attention=attention, quirks="hf")
    inputs, types = batch(rngs, head)
    labels = labels_of(rngs, head)

    @jax.jit
    def run(params):
        def loss(params):
            found = ours.apply({"params": params}, inputs, None, types, deterministic=True)
            found = jax.tree.leaves(found)
            return loss_of(found, labels), found

        return jax.value_and_grad(loss, has_aux=True)(params)

    expected = run_theirs(theirs, inputs, types, **labels)
    loss = expected.loss if labels else (expected.last_hidden_state**2).sum()
    loss.backward()
    (actual_loss, outputs), gradients = run(variables["params"])
    assert_close(outputs, outputs_of(expected), OTHER_FRAMEWORK)
    assert_close(actual_loss, modules.array(loss), OTHER_FRAMEWORK)
    their_gradients = flatten_dict(gradients_of(theirs, tmp_path, ours), sep="/")
    # The table's tolerances are for entries of one and more, and most of these are less. A thousandth
    # of the largest is the least: that of a bias of all keys, which softmax undoes, is rounding.
    largest = max(np.abs(gradient).max() for gradient in their_gradients.values())
    assert largest > 1e-2
    for path, gradient in flatten_dict(gradients, sep="/").items():
        scale = max(float(jnp.abs(their_gradients[path]).max()), 1e-3 * float(largest))
        assert_close(gradient / scale, their_gradients[path] / scale, GRADIENT)


def test_padding_is_hugging_faces(rngs, tmp_path):
    """A padded query asks, too, for the convolution of the next layer reads its answer."""
    theirs = make("Nystromformer", "Model", **NYSTROMFORMER, segment_means_seq_len=LANDMARKS)
    theirs.save_pretrained(tmp_path)
    ours, variables = from_pretrained(tmp_path, attention="softmax", quirks="hf")
    inputs, types = batch(rngs, "Model")
    mask = mask_of_lengths([LENGTH, 11, 3], LENGTH)
    expected = outputs_of(run_theirs(theirs, inputs, types, mask))[0]
    assert_close(compiled(ours, variables)(inputs, mask, types), expected, OTHER_FRAMEWORK)


def test_their_landmarks_fail_under_a_padding_mask(rngs):
    """So that there is nothing to compare ours with."""
    theirs = make("Nystromformer", "Model", **NYSTROMFORMER, segment_means_seq_len=LENGTH)
    inputs, types = batch(rngs, "Model")
    with pytest.raises(RuntimeError, match="must match the size of tensor"):
        run_theirs(theirs, inputs, types, mask_of_lengths([LENGTH, 11, 3], LENGTH))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "softmax"},
        {"attention": "softmax", "conv_kernel_size": 0},
        {"attention": "nystrom", "max_len": LENGTH},
    ],
    ids=["softmax", "no_convolution", "nystrom"],
)
def test_transformers_loads_what_we_save(rngs, tmp_path, head, changes):
    theirs = make("Nystromformer", head, **NYSTROMFORMER, segment_means_seq_len=LANDMARKS)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, variables = from_pretrained(tmp_path / "theirs", quirks="hf", **changes)
    save_pretrained(tmp_path / "ours", ours, variables)
    again, loading = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(loading.values()), loading
    inputs, types = batch(rngs, head)
    actual = jax.tree.leaves(compiled(ours, variables)(inputs, None, types))
    expected = outputs_of(run_theirs(again.eval(), inputs, types))
    assert_close(actual, expected, OTHER_FRAMEWORK)


def test_a_pretraining_model_is_a_masked_one_to_transformers(rngs, tmp_path):
    theirs = make("Bert", "ForPreTraining", max_position_embeddings=LENGTH)
    theirs.save_pretrained(tmp_path / "theirs")
    ours, variables = from_pretrained(tmp_path / "theirs")
    assert isinstance(ours, NystromformerForPreTraining)
    save_pretrained(tmp_path / "ours", ours, variables)
    masked = transformers.NystromformerForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    inputs, types = batch(rngs, "ForMaskedLM")
    expected = outputs_of(run_theirs(masked, inputs, types))[0]
    actual, _ = compiled(ours, variables)(inputs, None, types)
    assert_close(actual, expected, OTHER_FRAMEWORK)


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        *((kind, head) for kind in ("Bert", "Roberta") for head in HEADS[:-1]),
        ("Bert", "ForPreTraining"),
    ],
)
def test_bert_and_roberta_are_read(rngs, tmp_path, kind, head):
    """With padding: behind, and of their padding token, from which RoBERTa counts positions."""
    rows, padding = {"Bert": (0, 0), "Roberta": (2, 1)}[kind]
    theirs = make(kind, head, max_position_embeddings=LENGTH + rows, pad_token_id=padding)
    theirs.save_pretrained(tmp_path)
    ours, variables = from_pretrained(tmp_path)
    assert ours.config.max_len == LENGTH
    inputs, types = batch(rngs, head)
    mask = mask_of_lengths([LENGTH, 11, 3], LENGTH)
    inputs = jnp.where(mask, inputs, padding)
    expected = outputs_of(run_theirs(theirs, inputs, types, mask))
    actual = jax.tree.leaves(compiled(ours, variables)(inputs, mask, types))
    for one, other in zip(actual, expected, strict=True):
        where = mask if one.shape[:2] == mask.shape else None
        assert_close(one, other, OTHER_FRAMEWORK, where=where)


def test_a_pickle_of_theirs_is_converted(rngs, tmp_path):
    theirs = make("Roberta", "ForMaskedLM", max_position_embeddings=LENGTH + 2)
    theirs.config.save_pretrained(tmp_path / "theirs")
    config = tmp_path / "theirs" / "config.json"
    named = config.read_text().replace("{", '{"architectures": ["RobertaForMaskedLM"],', 1)
    config.write_text(named)
    torch.save(theirs.state_dict(), tmp_path / "theirs" / "pytorch_model.bin")
    assert main(["convert", str(tmp_path / "theirs"), str(tmp_path / "ours")]) == 0
    ours, variables = from_pretrained(tmp_path / "ours")
    assert isinstance(ours, NystromformerForMaskedLM)
    inputs, types = batch(rngs, "ForMaskedLM")
    expected = outputs_of(run_theirs(theirs, inputs, types))[0]
    assert_close(compiled(ours, variables)(inputs, None, types), expected, OTHER_FRAMEWORK)
