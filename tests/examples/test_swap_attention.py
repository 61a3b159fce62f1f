import pytest

from nystromformer_jax import softmax_attention
from tests.examples.scripts import load
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, normal

script = load("swap_attention")


def test_uniform_attention_is_attention_to_equal_keys(rngs):
    query, value = (normal(next(rngs), (2, 13, 3, 5)) for _ in range(2))
    mask = mask_of_lengths([13, 7], 13)
    uniform = script.uniform_attention(query, 0 * query, value, mask[:, None, None])
    exact = softmax_attention(query, 0 * query, value, mask=mask)
    assert_close(uniform, exact, REFERENCE, where=mask)


@pytest.mark.slow(minutes=0.2)
def test_difference_is_zero_with_as_many_landmarks_as_tokens(capsys):
    script.main(["--lengths", "13", "37", "--num_landmarks=16", "--embed_dim=20"])
    header, short, long = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[0] == "length"
    assert (short[0], short[-2]) == ("13", "0.00%")
    assert long[0] == "37"
    assert 0 < float(long[-2].rstrip("%")) < float(long[-1].rstrip("%"))
