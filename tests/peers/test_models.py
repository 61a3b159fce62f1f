"""Comparison with the PyTorch models of transformers; each reads the folders of the other."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    hidden_states,
)
from nystromformer_jax.pretrained import (
    from_pretrained,
    resize_token_embeddings,
    save_pretrained,
)
from nystromformer_jax.pretrained.config_json import read_source
from nystromformer_jax.pretrained.files import read_config_file
from nystromformer_jax.pretrained.tensors import read_params
from tests.helpers import GRADIENT, OTHER_FRAMEWORK, Tolerance, assert_close, mask_of_lengths

pytest.importorskip("safetensors", reason="needs the extra `language`")
tiny = pytest.importorskip(
    "tests.peers.tiny", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
torch, transformers = tiny.torch, tiny.transformers
HEADS, LANDMARKS, LENGTH = tiny.HEADS, tiny.LANDMARKS, tiny.LENGTH
NYSTROMFORMER, EXACT = tiny.NYSTROMFORMER, tiny.EXACT


def gradients_of(model, folder, ours):
    """Their gradients with our names and axes."""
    gradients = {
        name: np.zeros(parameter.shape, np.float32)
        if parameter.grad is None
        else parameter.grad.numpy()
        for name, parameter in model.named_parameters()
    }
    source = read_source(read_config_file(folder), folder)
    return read_params(ours, source, gradients)


def compiled(model, variables):
    return jax.jit(functools.partial(model.apply, variables, deterministic=True))


@pytest.mark.slow_except("softmax-Model", "nystrom-ForMaskedLM", "nystrom-ForMultipleChoice")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("attention", ["softmax", "nystrom"])
def test_outputs_and_gradients_equal_those_of_transformers(rngs, tmp_path, head, attention):
    exact = attention == "softmax"
    mean_len = LANDMARKS if exact else LENGTH
    changes = {**NYSTROMFORMER, "segment_means_seq_len": mean_len}
    theirs = tiny.make("Nystromformer", head, tmp_path, **changes)
    ours, variables = from_pretrained(tmp_path, attention=attention, quirks="hf")
    inputs, types = tiny.batch(rngs, head)

    @jax.jit
    def run(params):
        def loss(params):
            found = ours.apply({"params": params}, inputs, None, types, deterministic=True)
            return sum((x**2).sum() for x in jax.tree.leaves(found)), jax.tree.leaves(found)

        return jax.grad(loss, has_aux=True)(params)

    expected = tiny.run_theirs(theirs, inputs, types)
    tiny.loss_of(expected).backward()
    gradients, outputs = run(variables["params"])
    assert_close(outputs, tiny.outputs_of(expected), OTHER_FRAMEWORK)
    their_gradients = flatten_dict(gradients_of(theirs, tmp_path, ours), sep="/")
    # The tolerances are for entries of at least one, and most of these are smaller. A thousandth
    # of the largest is the minimum: the gradient of the keys' bias is zero up to rounding.
    largest = max(np.abs(gradient).max() for gradient in their_gradients.values())
    assert largest > 1e-2
    for path, gradient in flatten_dict(gradients, sep="/").items():
        scale = max(float(jnp.abs(their_gradients[path]).max()), 1e-3 * float(largest))
        assert_close(gradient / scale, their_gradients[path] / scale, GRADIENT)


@pytest.mark.slow_except(
    "Nystromformer-Model-False",
    "Bert-ForPreTraining-False",
    "Camembert-ForTokenClassification-False",
    "Roberta-Model-True",
)
@pytest.mark.parametrize(
    ("kind", "head", "front"),
    [
        ("Nystromformer", "Model", False),
        *(("Bert", head, False) for head in ("Model", "ForPreTraining", "ForQuestionAnswering")),
        *(
            (kind, "ForTokenClassification", False)
            for kind in ("Roberta", "XLMRoberta", "Camembert")
        ),
        ("Roberta", "Model", True),
    ],
)
def test_padded_outputs_equal_those_of_transformers(rngs, tmp_path, kind, head, front):
    """With their padding token, because RoBERTa computes positions from it.

    Nyströmformer also at padded queries, because the convolution of the next layer reads their output.
    """
    rows, padding = (0, 0) if kind in ("Bert", "Nystromformer") else (2, 1)
    changes = {"max_position_embeddings": LENGTH + rows, "pad_token_id": padding}
    exact = kind == "Nystromformer"
    theirs = tiny.make(kind, head, tmp_path, **{**(EXACT if exact else {}), **changes})
    ours, variables = from_pretrained(tmp_path, attention="softmax", quirks="hf")
    assert ours.config.max_len == LENGTH
    inputs, types = tiny.batch(rngs, head)
    mask = mask_of_lengths([LENGTH, 11, 3], LENGTH)[:, :: -1 if front else 1]
    inputs = jnp.where(mask, inputs, padding)
    expected = tiny.outputs_of(tiny.run_theirs(theirs, inputs, types, mask))
    actual = jax.tree.leaves(compiled(ours, variables)(inputs, mask, types))
    for one, other in zip(actual, expected, strict=True):
        where = mask if one.shape[:2] == mask.shape and not exact else None
        assert_close(one, other, OTHER_FRAMEWORK, where=where)


def test_reads_a_pickle_of_transformers(rngs, tmp_path):
    theirs = tiny.make("Roberta", "ForMaskedLM", max_position_embeddings=LENGTH + 2)
    theirs.config.save_pretrained(tmp_path / "theirs")
    config = tmp_path / "theirs" / "config.json"
    named = config.read_text().replace("{", '{"architectures": ["RobertaForMaskedLM"],', 1)
    config.write_text(named)
    tensors = theirs.state_dict()
    parts = {"a.bin": sorted(tensors)[::2], "b.bin": sorted(tensors)[1::2]}
    for part, names in parts.items():
        torch.save({name: tensors[name] for name in names}, tmp_path / "theirs" / part)
    weight_map = {name: part for part, names in parts.items() for name in names}
    index = tmp_path / "theirs" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    ours, variables = from_pretrained(tmp_path / "theirs")
    assert isinstance(ours, NystromformerForMaskedLM)
    inputs, types = tiny.batch(rngs, "ForMaskedLM")
    expected = tiny.outputs_of(tiny.run_theirs(theirs, inputs, types))[0]
    assert_close(compiled(ours, variables)(inputs, None, types), expected, OTHER_FRAMEWORK)


@pytest.mark.slow_except("33-True", "25-False")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", [tiny.VOCAB + 4, tiny.VOCAB - 4])
def test_resized_token_embeddings_equal_those_of_transformers(rngs, tmp_path, tied, size):
    changes = {"max_position_embeddings": LENGTH, "tie_word_embeddings": tied}
    theirs = tiny.make("Bert", "ForMaskedLM", tmp_path / "theirs", **changes)
    ours, variables = resize_token_embeddings(*from_pretrained(tmp_path / "theirs"), size)
    save_pretrained(tmp_path / "ours", ours, variables)
    again = tiny.load(tmp_path / "ours")
    theirs.resize_token_embeddings(size)
    theirs.save_pretrained(tmp_path / "theirs")
    inputs, types = tiny.batch(rngs, "ForMaskedLM")
    inputs = jnp.minimum(inputs + 4, size - 1)  # some are new
    actual = compiled(ours, variables)(inputs, None, types)
    assert actual.shape[-1] == size
    same, expected = (
        tiny.outputs_of(tiny.run_theirs(model.eval(), inputs, types))[0]
        for model in (again, theirs)
    )
    assert_close(actual, same, OTHER_FRAMEWORK)
    resized = from_pretrained(tmp_path / "theirs")  # as transformers wrote it
    assert_close(compiled(*resized)(inputs, None, types), expected, OTHER_FRAMEWORK)
    # Its new rows are the same means plus random numbers of about 1e-5.
    assert_close(resized[1], variables, Tolerance(1e-4))


def test_hidden_states_equal_those_of_transformers(rngs, tmp_path):
    theirs = tiny.make("Camembert", "ForMaskedLM", tmp_path, max_position_embeddings=LENGTH + 2)
    inputs, types = tiny.batch(rngs, "ForMaskedLM")
    expected = tiny.run_theirs(theirs, inputs, types, output_hidden_states=True).hidden_states
    ours, variables = from_pretrained(tmp_path)
    actual = jax.jit(lambda inputs: hidden_states(ours, variables, inputs, None, types))(inputs)
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, tiny.array(other), OTHER_FRAMEWORK)
