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
from tests.tiny_models import LABELS, LENGTH, config, tokens

# The size of a symbolic batch is not an int, which the annotations require.
pytestmark = pytest.mark.usefixtures("no_annotations")


@functools.cache
def exported():
    """A model, its variables and the exported model; not a fixture, for which annotations are on."""
    model = NystromformerForSequenceClassification(config(num_layers=1, max_len=LENGTH))
    variables = random_variables(jax.random.key(0), model, np.zeros((1, LENGTH), np.int32))
    # A model for evaluation only is exported as well.
    program = export_model(model.clone(deterministic=True), variables, length=LENGTH)
    return model, variables, program


def test_exported_file_gives_the_logits_without_flax_and_this_library(rngs, tmp_path):
    module, variables, exported_model = exported()
    file, arrays = tmp_path / "model", tmp_path / "arrays.npz"
    file.write_bytes(exported_model.serialize())
    inputs, mask = tokens(rngs, 2, LENGTH), mask_of_lengths([LENGTH, 11], LENGTH)
    types = jnp.broadcast_to(jnp.arange(LENGTH) > 9, (2, LENGTH)).astype(jnp.int32)
    np.savez(arrays, *map(np.asarray, (inputs, mask, types)))
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
    apply = jax.jit(functools.partial(module.apply, deterministic=True))
    expected = apply(variables, inputs, mask, types)
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
    x = jax.ShapeDtypeStruct((batch, length, 2, 4), jnp.float32)
    program = jax.export.export(jax.jit(attention))(x, x, x)
    inputs = normal(next(rngs), (3, 2, 37, 2, 4))
    assert_close(program.call(*inputs), attention(*inputs), SAME_ARITHMETIC)


def test_moving_averages_need_a_known_length():
    (length,) = jax.export.symbolic_shape("l")
    x = jax.ShapeDtypeStruct((2, length, 3), jnp.float32)
    states = jnp.ones((2, 3, 4))
    with pytest.raises(ValueError, match="one program per length"):
        jax.eval_shape(multi_scale_ema, x, states, states)
