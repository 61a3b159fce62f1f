"""An exported file needs only jax and gives the model's logits at any batch size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import (
    NystromformerConfig,
    NystromformerForMultipleChoice,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.export import export_model
from tests.helpers import SAME_ARITHMETIC, assert_close, mask_of_lengths
from tests.programs import finish, start

# The size of a symbolic batch is not an int, which the annotations require.
pytestmark = pytest.mark.usefixtures("no_annotations")

LENGTH = 23


@pytest.fixture(params=["nystrom", "softmax"])
def model(request, rngs):
    config = NystromformerConfig(
        vocab_size=31,
        max_len=LENGTH,
        embed_dim=12,
        num_layers=2,
        num_heads=3,
        mlp_dim=14,
        num_labels=5,
        attention=request.param,
        num_landmarks=7,
        conv_kernel_size=3,
    )
    model = NystromformerForSequenceClassification(config)
    tokens = jnp.zeros((1, LENGTH), jnp.int32)
    init = jax.jit(functools.partial(model.init, deterministic=True))
    return model, init(next(rngs), tokens)


def batch(rngs, rows):
    inputs = jax.random.randint(next(rngs), (rows, LENGTH), 0, 31)
    mask = mask_of_lengths([LENGTH - 2 * row for row in range(rows)], LENGTH)
    types = jnp.asarray(np.tile((np.arange(LENGTH) > 9).astype(np.int32), (rows, 1)))
    return inputs, mask, types


def logits_of(module, variables, arguments):
    return jax.jit(functools.partial(module.apply, deterministic=True))(variables, *arguments)


@pytest.mark.slow_except("nystrom-5")
@pytest.mark.parametrize("rows", [1, 5])
def test_logits_are_the_same_after_serialization(model, rngs, rows):
    module, variables = model
    content = export_model(module, variables, length=LENGTH).serialize()
    arguments = batch(rngs, rows)
    logits = jax.export.deserialize(content).call(*arguments)
    assert_close(logits, logits_of(module, variables, arguments), SAME_ARITHMETIC)


def test_rejects_another_length(model, rngs):
    exported = export_model(*model, length=LENGTH)
    inputs, mask, types = batch(rngs, 2)
    with pytest.raises(ValueError, match=r"\b22\b"):
        exported.call(inputs[:, :-1], mask[:, :-1], types[:, :-1])


@pytest.mark.parametrize("model", ["nystrom"], indirect=True)
def test_exported_file_needs_neither_flax_nor_this_library(model, rngs, tmp_path):
    module, variables = model
    file, arrays = tmp_path / "model", tmp_path / "arrays.npz"
    file.write_bytes(export_model(module, variables, length=LENGTH).serialize())
    arguments = batch(rngs, 2)
    np.savez(arrays, *map(np.asarray, arguments))
    program = f"""
import sys, numpy as np, jax
from jax import export
arrays = np.load({str(arrays)!r})
logits = export.deserialize(bytearray(open({str(file)!r}, "rb").read())).call(*arrays.values())
assert not {{"flax", "nystromformer_jax"}} & set(sys.modules)
print(*np.asarray(logits).ravel())
"""
    code, printed, errors = finish(start("-c", program))
    assert code == 0, errors
    expected = logits_of(module, variables, arguments)
    assert_close(np.array(printed.split(), float).reshape(2, 5), expected, SAME_ARITHMETIC)


def test_rejects_multiple_choice_before_compiling(model):
    module, variables = model
    choices = NystromformerForMultipleChoice(module.config)
    with pytest.raises(ValueError, match=r"cannot be exported: its inputs are \[B, N, L\]"):
        export_model(choices, variables, length=LENGTH)
