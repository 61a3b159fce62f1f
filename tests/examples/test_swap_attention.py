import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax import make_core
from tests.examples.scripts import load
from tests.helpers import REFERENCE, assert_close, mask_of_lengths

script = load("swap_attention")


def test_softmax_core_equals_flax_attention(rngs, monkeypatch):
    x = jax.random.normal(next(rngs), (2, 13, 20))
    mask = mask_of_lengths([13, 7], 13)
    theirs = script.Encoder()
    variables = theirs.init(next(rngs), x, mask)
    monkeypatch.setattr(script, "make_core", lambda name, **options: make_core("softmax"))
    ours = script.Encoder(num_landmarks=3).apply(script.to_ours(variables), x, mask)
    assert_close(ours, theirs.apply(variables, x, mask), REFERENCE, where=mask)


def test_mapped_parameters_are_complete():
    x, mask = jnp.ones((1, 13, 20)), jnp.ones((1, 13), bool)
    theirs, ours = script.Encoder(), script.Encoder(num_landmarks=3)
    shapes = jax.eval_shape(lambda: script.to_ours(theirs.init(jax.random.key(0), x, mask)))
    assert shapes == jax.eval_shape(lambda: ours.init(jax.random.key(0), x, mask))


@pytest.mark.slow(minutes=0.2)
def test_difference_is_zero_with_as_many_landmarks_as_tokens(capsys):
    script.main(["--lengths", "13", "37", "--num_landmarks=16", "--embed_dim=20"])
    header, short, long = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[0] == "length"
    assert (short[0], short[-1]) == ("13", "0.00%")
    assert long[0] == "37"
    assert 0 < float(long[-1].rstrip("%")) < 100


@pytest.mark.slow(minutes=1)
def test_landmarks_are_faster_for_long_inputs(capsys):
    script.main(["--lengths", "4096"])
    assert float(capsys.readouterr().out.splitlines()[-1].split()[3].rstrip("×")) > 2
