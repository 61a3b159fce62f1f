"""Long sequences, whose weights are computed over chunks; test_implementations.py has the contract."""

import functools

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax import nystrom_attention
from nystromformer_jax.attention import chunks
from tests.helpers import (
    REFERENCE,
    assert_close,
    mask_of_lengths,
    output_and_gradients,
    random_inputs,
)


@pytest.fixture
def short_chunks(monkeypatch):
    def set_size(tokens):
        monkeypatch.setattr(chunks, "LARGE_BYTES", 0 if tokens else 2**60)
        monkeypatch.setattr(chunks, "CHUNK", tokens)
        jax.clear_caches()

    yield set_size
    jax.clear_caches()


@pytest.mark.parametrize("length", [95, 96])  # three chunks, and with tokens that are left over
def test_one_example_equals_the_plain_form(rngs, short_chunks, length):
    tokens = random_inputs(rngs, 1, length, 2, 5)
    mask = mask_of_lengths([length - 7], length)
    cotangent = jnp.where(mask[..., None, None], tokens[0], 0)
    found = []
    for size in (0, 32):
        short_chunks(size)
        attend = functools.partial(nystrom_attention, num_landmarks=7, mask=mask)
        found.append(output_and_gradients(attend, tokens, None, cotangent))
    assert_close(found[1][0], found[0][0], REFERENCE, where=mask)
    assert_close(found[1][1], found[0][1], REFERENCE)


def test_vmap_and_forward_mode_agree_with_the_plain_form(rngs, short_chunks):
    tokens = random_inputs(rngs, 3, 75, 2, 5)
    attend = functools.partial(nystrom_attention, num_landmarks=7)
    one = lambda *x: attend(*(y[None] for y in x))[0]
    found = []
    for size in (0, 32):
        short_chunks(size)
        found.append(jax.jit(lambda *x: jax.jvp(jax.vmap(one), x, x))(*tokens))
    assert_close(found[1], found[0], REFERENCE)


def test_memory_is_less_than_that_of_the_weights_of_a_long_sequence():
    length, heads, landmarks = 32_768, 8, 128
    x = jax.ShapeDtypeStruct((1, length, heads, 4), jnp.float32)

    def gradient(*x):
        return jax.vjp(functools.partial(nystrom_attention, num_landmarks=landmarks), *x)[1](x[0])

    compiled = jax.jit(gradient).lower(x, x, x).compile()
    weights = 4 * length * heads * landmarks
    assert weights >= chunks.LARGE_BYTES
    assert compiled.memory_analysis().temp_size_in_bytes < weights / 2
