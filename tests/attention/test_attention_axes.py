"""Leading batch axes and grouped heads of the attention functions."""

import functools

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax.attention.functions import nystrom_attention, softmax_attention
from tests.helpers import REFERENCE, SAME_ARITHMETIC, assert_close, mask_of_lengths, normal

jit_nystrom = jax.jit(nystrom_attention, static_argnames="num_landmarks")
jit_softmax = jax.jit(softmax_attention)
ATTENTIONS = {
    "nystrom": functools.partial(jit_nystrom, num_landmarks=3),
    "softmax": jit_softmax,
}
every_attention = pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)


@pytest.mark.slow_except("batch2-softmax", "batch3-nystrom")
@every_attention
@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (2, 1, 3)])
def test_leading_axes_equal_one_batch_axis(rngs, attention, batch):
    query = normal(next(rngs), (*batch, 11, 2, 5))
    key, value = (normal(next(rngs), (*batch, 17, 2, 5)) for _ in range(2))
    masks = [jax.random.bernoulli(next(rngs), 0.7, (*batch, length)) for length in (17, 11)]
    output = attention(query, key, value, mask=masks[0], query_mask=masks[1])
    flat = [x.reshape(-1, *x.shape[len(batch) :]) for x in (query, key, value, *masks)]
    expected = attention(*flat[:3], mask=flat[3], query_mask=flat[4])
    assert output.shape == query.shape
    assert_close(output, expected.reshape(query.shape), SAME_ARITHMETIC)


@every_attention
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_grouped_heads_equal_repeated_ones(rngs, attention, groups):
    query = normal(next(rngs), (2, 13, 6, 5))
    key, value = (normal(next(rngs), (2, 13, groups, 5)) for _ in range(2))
    mask = mask_of_lengths([13, 9], 13)
    repeated = [jnp.repeat(x, 6 // groups, axis=2) for x in (key, value)]
    output = attention(query, key, value, mask=mask)
    assert_close(output, attention(query, *repeated, mask=mask), SAME_ARITHMETIC)


def test_grouped_heads_are_those_of_jax(rngs):
    query = normal(next(rngs), (2, 13, 6, 5))
    key, value = (normal(next(rngs), (2, 13, 2, 5)) for _ in range(2))
    expected = jax.nn.dot_product_attention(query, key, value)
    assert_close(softmax_attention(query, key, value), expected, REFERENCE)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (
            ((2, 3, 5, 2, 4), (3, 2, 5, 2, 4)),
            r"same leading axes .* \(2, 3, 5, 2, 4\), \(3, 2, 5, 2, 4\)",
        ),
        (((5, 2, 4), (1, 5, 2, 4)), "same leading axes"),
        (((1, 5, 4, 4), (1, 5, 3, 4)), "must be a multiple .* got 4 and 3"),
        (((5, 4), (5, 4)), r"\[batch, length, heads, head_dim\]"),
        (((2, 3, 0, 2, 4), (2, 3, 0, 2, 4)), r"non-empty array .* got shape \(6, 0, 2, 4\)"),
    ],
)
def test_rejects_leading_axes_and_heads_that_differ(shapes, words, no_annotations):
    query, key = (jnp.ones(shape) for shape in shapes)
    for attention in ATTENTIONS.values():
        with pytest.raises(ValueError, match=words):
            attention(query, key, key)


@pytest.mark.parametrize(
    ("query", "mask", "needed"),
    [
        ((2, 3, 5, 2, 4), (3, 5), "(2, 3, 5)"),
        ((2, 3, 5, 2, 4), (2, 3, 4), "(2, 3, 5)"),
        ((5, 2, 4), (4,), "(5,)"),
        ((5, 2, 4), (1, 5), "(5,)"),
    ],
)
def test_errors_about_masks_have_the_shapes_of_the_arguments(query, mask, needed, no_annotations):
    x, mask = jnp.ones(query), jnp.ones(mask, bool)
    with pytest.raises(ValueError, match="mask must have shape") as error:
        nystrom_attention(x, x, x, mask=mask, num_landmarks=2)
    assert f"{needed} and be True at real tokens; got shape {mask.shape}" in str(error.value)
    with pytest.raises(ValueError, match=r"got a list\. Pass jnp\.asarray\(mask\)"):
        nystrom_attention(x, x, x, mask=mask.tolist(), num_landmarks=2)
