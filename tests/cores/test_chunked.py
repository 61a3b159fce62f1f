import pytest

from nystromformer_jax import softmax_attention
from nystromformer_jax.cores.chunked import chunked_attention
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, random_inputs


@pytest.mark.parametrize("names", [["mask"], ["mask", "query_mask"]])
def test_equals_softmax_attention_in_each_chunk(rngs, names):
    inputs = random_inputs(rngs, 2, 37, 2, 5)
    masks = {"mask": mask_of_lengths([37, 18], 37), "query_mask": mask_of_lengths([19, 31], 37)}
    masks = {name: masks[name] for name in names}
    output = chunked_attention(*inputs, chunk_len=16, **masks)
    for start in (0, 16, 32):
        part = slice(start, start + 16)
        own = {name: mask[:, part] for name, mask in masks.items()}
        expected = softmax_attention(*(x[:, part] for x in inputs), **own)
        assert_close(output[:, part], expected, REFERENCE)


def test_one_chunk_equals_softmax_attention(rngs):
    inputs = random_inputs(rngs, 2, 9, 2, 5)
    assert_close(chunked_attention(*inputs, chunk_len=9), softmax_attention(*inputs), REFERENCE)
    assert_close(chunked_attention(*inputs, chunk_len=99), softmax_attention(*inputs), REFERENCE)
