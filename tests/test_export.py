"""An exported file needs only jax and flatbuffers, and gives the model's logits at any batch size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import (
    NystromformerForMultipleChoice,
    NystromformerForSequenceClassification,
    multi_scale_ema,
    nystrom_attention,
)
from nystromformer_jax.cores.chunked import chunked_attention
from nystromformer_jax.export import export_model
from tests.helpers import SAME_ARITHMETIC, assert_close, mask_of_lengths, normal, random_variables
from tests.programs import finish, start
from tests.tiny_models import LABELS, LENGTH, VOCAB, config

# The size of a symbolic batch is not an int, which the annotations require.
pytestmark = pytest.mark.usefixtures("no_annotations")


@functools.cache
def exported(attention="nystrom"):
    """A model, its variables and the exported model; not a fixture, for which annotations are on."""
    model = NystromformerForSequenceClassification(
        config(attention=attention, num_layers=1, max_len=LENGTH)
    )
    tokens = np.zeros((1, LENGTH), np.int32)
    variables = random_variables(jax.random.key(0), model, tokens)
    # A model for evaluation only is exported as well.
    program = export_model(model.clone(deterministic=True), variables, length=LENGTH)
    return model, variables, program


def batch(rngs, rows):
    inputs = jax.random.randint(next(rngs), (rows, LENGTH), 0, VOCAB)
    mask = mask_of_lengths([LENGTH - 2 * row for row in range(rows)], LENGTH)
    types = jnp.asarray(np.tile((np.arange(LENGTH) > 9).astype(np.int32), (rows, 1)))
    return inputs, mask, types


def logits_of(module, variables, arguments):
    return jax.jit(functools.partial(module.apply, deterministic=True))(variables, *arguments)


@pytest.mark.slow_except("5-nystrom")
@pytest.mark.parametrize("attention", ["nystrom", "softmax"])
@pytest.mark.parametrize("rows", [1, 5])
def test_logits_are_the_same_after_serialization(attention, rngs, rows):
    module, variables, program = exported(attention)
    content = program.serialize()
    arguments = batch(rngs, rows)
    logits = jax.export.deserialize(content).call(*arguments)
    assert_close(logits, logits_of(module, variables, arguments), SAME_ARITHMETIC)


def test_rejects_another_length(rngs):
    _, _, program = exported()
    inputs, mask, types = batch(rngs, 2)
    with pytest.raises(ValueError, match=r"\b22\b"):
        program.call(inputs[:, :-1], mask[:, :-1], types[:, :-1])


def test_exported_file_needs_neither_flax_nor_this_library(rngs, tmp_path):
    module, variables, exported_model = exported()
    file, arrays = tmp_path / "model", tmp_path / "arrays.npz"
    file.write_bytes(exported_model.serialize())
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
    assert_close(np.array(printed.split(), float).reshape(2, LABELS), expected, SAME_ARITHMETIC)


@pytest.mark.parametrize("platforms", ["tpu", ("cpu", "cuda", "tpu")])
def test_exports_for_other_platforms(platforms):
    module, variables, _ = exported()
    program = export_model(module, variables, length=LENGTH, platforms=platforms)
    assert program.platforms == ((platforms,) if platforms == "tpu" else platforms)


def test_rejects_multiple_choice_before_compiling():
    module, variables, _ = exported()
    choices = NystromformerForMultipleChoice(module.config)
    with pytest.raises(ValueError, match=r"cannot be exported: its inputs are \[B, N, L\]"):
        export_model(choices, variables, length=LENGTH)


@pytest.mark.parametrize(
    "attention",
    [
        functools.partial(nystrom_attention, num_landmarks=8),
        functools.partial(chunked_attention, chunk_len=16),
    ],
    ids=["nystrom", "chunked"],
)
def test_functions_export_for_any_batch_and_length(rngs, attention):
    batch, length = jax.export.symbolic_shape("b, l", constraints=["l >= 16"])
    tokens = jax.ShapeDtypeStruct((batch, length, 2, 4), jnp.float32)
    program = jax.export.export(jax.jit(attention))(tokens, tokens, tokens)
    inputs = normal(next(rngs), (3, 2, 37, 2, 4))
    assert_close(program.call(*inputs), attention(*inputs), SAME_ARITHMETIC)


def test_moving_averages_need_a_known_length():
    (length,) = jax.export.symbolic_shape("l")
    x = jax.ShapeDtypeStruct((2, length, 3), jnp.float32)
    states = jnp.ones((2, 3, 4))
    with pytest.raises(ValueError, match="one program per length"):
        jax.eval_shape(multi_scale_ema, x, states, states)
