"""Long sequences, whose weights are computed over chunks."""

import functools

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax import nystrom_attention
from nystromformer_jax.attention import chunks
from tests.attention.contract import assert_equals_plain_jnp, cases_of
from tests.helpers import HALF, REFERENCE, assert_close, largest_array, normal, random_inputs


@pytest.fixture
def short_chunks(monkeypatch):
    def set_size(tokens):
        monkeypatch.setattr(chunks, "LARGE_BYTES", 0 if tokens else 2**60)
        monkeypatch.setattr(chunks, "CHUNK", tokens)
        jax.clear_caches()

    yield set_size
    jax.clear_caches()


@cases_of("chunks", "mask")  # below, one example in chunks
def test_chunks_equal_the_plain_form(request, rngs, case):
    assert_equals_plain_jnp(request, rngs, "chunks", case)


def test_vmap_and_forward_mode_agree_with_the_plain_form(rngs, short_chunks):
    tokens = random_inputs(rngs, 3, 75, 2, 5)
    attend = functools.partial(nystrom_attention, num_landmarks=7)
    one = lambda *x: attend(*(y[None] for y in x))[0]
    found = []
    for size in (0, 32):
        short_chunks(size)
        found.append(jax.jit(lambda *x: jax.jvp(jax.vmap(one), x, x))(*tokens))
    assert_close(found[1], found[0], REFERENCE)


def test_half_precision_sums_the_gradients_of_landmarks_in_float32(rngs, short_chunks):
    """Each of the 600 chunks adds about the same amount to the gradient of a landmark."""
    query = jnp.ones((1, 4800, 1, 4), jnp.bfloat16)
    landmarks, values = (normal(next(rngs), (1, 3, 1, 4)) for _ in range(2))

    def gradient(dtype):
        def total(landmarks):
            own = landmarks.astype(dtype), values.astype(dtype)
            output = chunks.distribute(query.astype(dtype), *own, landmark_mask=None, assigned=None)
            return output.astype(jnp.float32).sum()

        return jax.jit(jax.grad(total))(landmarks)

    short_chunks(8)
    expected = gradient(jnp.float32)
    assert_close(
        gradient(jnp.bfloat16) / jnp.abs(expected).max(), expected / jnp.abs(expected).max(), HALF
    )


def test_a_mesh_that_may_split_the_length_has_no_chunks(short_chunks):
    short_chunks(8)
    x = jax.ShapeDtypeStruct((1, 64, 1, 4), jnp.float32)
    attend = functools.partial(nystrom_attention, num_landmarks=2)
    assert "scan[" in str(jax.make_jaxpr(attend)(x, x, x))
    mesh = jax.make_mesh((8,), ("model",), (jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert "scan[" not in str(jax.make_jaxpr(attend)(x, x, x))


@pytest.mark.parametrize(
    ("length", "num_heads", "chunked"),
    [(chunks.CHUNK, 8, False), (chunks.CHUNK // 2, 512, False), (chunks.CHUNK, 512, True)],
)
def test_only_long_sequences_with_large_weights_have_chunks(length, num_heads, chunked):
    x = jax.ShapeDtypeStruct((1, length, num_heads, 4), jnp.float32)
    attend = functools.partial(nystrom_attention, num_landmarks=2**27 // (4 * 512 * 512))
    assert ("scan[" in str(jax.make_jaxpr(attend)(x, x, x))) == chunked


def test_exports_for_any_batch(short_chunks, no_annotations):
    short_chunks(8)
    (batch,) = jax.export.symbolic_shape("batch")
    x = jax.ShapeDtypeStruct((batch, 64, 1, 4), jnp.float32)
    attend = functools.partial(nystrom_attention, num_landmarks=2, implementation="xla")
    jax.export.export(jax.jit(attend))(x, x, x)


def test_no_array_is_as_large_as_the_weights_of_a_long_sequence():
    length, heads, landmarks = 32_768, 8, 128
    x = jax.ShapeDtypeStruct((1, length, heads, 4), jnp.float32)
    weights = length * heads * landmarks
    assert 4 * weights >= chunks.LARGE_BYTES
    attend = functools.partial(nystrom_attention, num_landmarks=landmarks)
    gradient = jax.grad(lambda *x: (attend(*x) ** 2).sum(), (0, 1, 2))
    assert largest_array(gradient, x, x, x) < weights / 4


def test_temporaries_of_segments_of_unequal_length():
    """In inputs: today 1.03 and 2.04 on a CPU; without chunks 10 and 22."""
    length, num_landmarks = 100_000, 256
    x = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.float32)
    attend = functools.partial(nystrom_attention, num_landmarks=num_landmarks)
    gradient = jax.grad(lambda *x: attend(*x).sum(), (0, 1, 2))
    for function, inputs in ((attend, 1.2), (gradient, 2.3)):
        memory = jax.jit(function).lower(x, x, x).compile().memory_analysis()
        assert memory.temp_size_in_bytes < inputs * 4 * x.size
