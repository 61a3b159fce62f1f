import pytest

from nystromformer_jax import softmax_attention
from nystromformer_jax.cores.chunked import chunked_attention
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, random_inputs


@pytest.mark.parametrize(
    ("names", "chunk_len"), [(["mask"], 16), (["mask", "query_mask"], 16), ([], 99)]
)
def test_equals_softmax_attention_in_each_chunk(rngs, names, chunk_len):
    inputs = random_inputs(rngs, 2, 37, 2, 5)
    masks = {"mask": mask_of_lengths([37, 18], 37), "query_mask": mask_of_lengths([19, 31], 37)}
    masks = {name: masks[name] for name in names}
    output = chunked_attention(*inputs, chunk_len=chunk_len, **masks)
    for start in range(0, 37, chunk_len):
        part = slice(start, start + chunk_len)
        own = {name: mask[:, part] for name, mask in masks.items()}
        expected = softmax_attention(*(x[:, part] for x in inputs), **own)
        assert_close(output[:, part], expected, REFERENCE)
