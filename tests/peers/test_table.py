"""One test per cell of docs/differences.md: the behavior of the peers. Contracts test ours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import mask_of_lengths

modules = pytest.importorskip(
    "tests.peers.modules", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
EMBED, LANDMARKS = modules.EMBED, modules.LANDMARKS
LENGTH = 6 * LANDMARKS


def random_input(rngs, batch, length):
    return jax.random.normal(next(rngs), (batch, length, EMBED))


def relative_change(actual, expected):
    """The largest change, relative to the largest entry."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", modules.PEERS)
def test_padding_changes_the_peers(rngs, name):
    """The same tokens, padded to twice the length, the padding masked."""
    x, mask = random_input(rngs, 1, LENGTH), mask_of_lengths([LENGTH], 2 * LENGTH)
    padded = jnp.pad(x, ((0, 0), (0, LENGTH), (0, 0)), constant_values=3.0)
    changed = modules.output_of(name, padded, mask)[:, :LENGTH]
    assert relative_change(changed, modules.output_of(name, x)) > 0.05


@pytest.mark.parametrize("name", modules.PEERS)
def test_batch_mates_change_the_peers(rngs, name):
    """The same example in a batch with another one that is six times as large."""
    both = random_input(rngs, 2, LENGTH).at[1].multiply(6)
    actual, expected = (modules.output_of(name, x)[:1] for x in (both, both[:1]))
    assert relative_change(actual, expected) > 1e-4


@pytest.mark.parametrize("length", [LENGTH + 3, 5])
def test_hugging_face_fails_at_other_lengths(rngs, length):
    """A length that M does not divide, and fewer tokens than landmarks."""
    with pytest.raises(RuntimeError):
        modules.output_of("huggingface", random_input(rngs, 1, length))


def test_lucidrains_attends_to_its_own_padding(rngs):
    """An all-true mask, which should have no effect, changes its output."""
    x, mask = random_input(rngs, 1, LENGTH + 3), np.ones((1, LENGTH + 3), bool)
    without, with_mask = (modules.output_of("lucidrains", x, mask) for mask in (None, mask))
    assert relative_change(without, with_mask) > 1e-3


def test_lucidrains_approximates_fewer_tokens_than_landmarks(rngs):
    module, x = modules.lucidrains(), random_input(rngs, 1, 5)
    ours, params = modules.ours_like_lucidrains(module, landmark_layout="real")
    exact = ours.apply({"params": params}, x, deterministic=True)
    assert relative_change(module(modules.tensors(x)).detach(), exact) > 1e-2


@pytest.mark.parametrize("name", modules.PEERS)
def test_half_precision_fails_in_the_peers(rngs, name):
    module = modules.huggingface(LENGTH) if name == "huggingface" else modules.lucidrains()
    x = modules.tensors(random_input(rngs, 1, LENGTH)).bfloat16()
    with pytest.raises(RuntimeError, match=r"dtype|Float|BFloat16"):
        module.bfloat16()(x)
