"""One test per cell of docs/differences.md: the behavior of the peers, and ours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import SelfAttention, make_core
from tests.helpers import HALF, REFERENCE, SAME_ARITHMETIC, assert_close, mask_of_lengths

modules = pytest.importorskip(
    "tests.peers.modules", reason="needs the extra `peers`", exc_type=ImportError
)
pytestmark = pytest.mark.peers
EMBED, HEADS, LANDMARKS, WIDTH = modules.EMBED, modules.HEADS, modules.LANDMARKS, modules.WIDTH
torch = modules.torch

LENGTH = 6 * LANDMARKS


@pytest.fixture
def ours(rngs):
    """Returns our module with our defaults as a function of input and mask."""
    module = SelfAttention(
        HEADS, make_core("nystrom", num_landmarks=LANDMARKS, conv_kernel_size=WIDTH)
    )
    params = module.init(next(rngs), jnp.ones((1, LENGTH, EMBED)), deterministic=True)

    def apply(x, mask=None, dtype=None):
        clone = module.clone(dtype=dtype)
        return clone.apply(params, x, mask, deterministic=True)

    return apply


def random_input(rngs, batch, length):
    return jax.random.normal(next(rngs), (batch, length, EMBED))


def relative_change(actual, expected):
    """The largest change, relative to the largest entry."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


class TestPadding:
    """The same tokens, padded to twice the length, the padding masked."""

    @pytest.fixture
    def both(self, rngs):
        x = random_input(rngs, 1, LENGTH)
        padded = jnp.pad(x, ((0, 0), (0, LENGTH), (0, 0)), constant_values=3.0)
        return x, padded, mask_of_lengths([LENGTH], 2 * LENGTH)

    def test_ours_is_unchanged(self, both, ours):
        x, padded, mask = both
        assert_close(ours(padded, mask)[:, :LENGTH], ours(x), REFERENCE)

    @pytest.mark.parametrize("name", modules.PEERS)
    def test_the_peers_change(self, both, name):
        x, padded, mask = both
        changed = modules.output_of(name, padded, mask)[:, :LENGTH]
        assert relative_change(changed, modules.output_of(name, x)) > 0.05


class TestBatchMates:
    """The same example in a batch with another one that is six times as large."""

    @pytest.fixture
    def both(self, rngs):
        x = random_input(rngs, 2, LENGTH)
        return x.at[1].multiply(6)

    def test_ours_is_unchanged(self, both, ours):
        assert_close(ours(both)[:1], ours(both[:1]), SAME_ARITHMETIC)

    @pytest.mark.parametrize("name", modules.PEERS)
    def test_the_peers_change(self, both, name):
        actual, expected = (modules.output_of(name, x)[:1] for x in (both, both[:1]))
        assert relative_change(actual, expected) > 1e-4


class TestLengthsNotDivisibleByM:
    """Six segments and a few tokens more."""

    def test_ours_runs(self, rngs, ours):
        x = random_input(rngs, 1, LENGTH + 3)
        assert jnp.isfinite(ours(x)).all()

    def test_hugging_face_fails(self, rngs):
        with pytest.raises(RuntimeError, match="invalid for input of size"):
            modules.output_of("huggingface", random_input(rngs, 1, LENGTH + 3))

    def test_lucidrains_attends_to_its_own_padding(self, rngs):
        """An all-true mask, which should have no effect, changes its output."""
        x, mask = random_input(rngs, 1, LENGTH + 3), np.ones((1, LENGTH + 3), bool)
        without, with_mask = (modules.output_of("lucidrains", x, mask) for mask in (None, mask))
        assert relative_change(without, with_mask) > 1e-3


class TestFewerTokensThanLandmarks:
    """Five tokens, seven landmarks: attention could be exact."""

    def test_ours_is_exact(self, rngs):
        x = random_input(rngs, 1, 5)
        nystrom = SelfAttention(HEADS, make_core("nystrom", num_landmarks=LANDMARKS))
        params = nystrom.init(next(rngs), x, deterministic=True)
        softmax = SelfAttention(HEADS, make_core("softmax"))
        expected = softmax.apply(params, x, deterministic=True)
        assert_close(nystrom.apply(params, x, deterministic=True), expected, SAME_ARITHMETIC)

    def test_hugging_face_fails(self, rngs):
        with pytest.raises(RuntimeError):
            modules.output_of("huggingface", random_input(rngs, 1, 5))

    def test_lucidrains_approximates_over_its_own_padding(self, rngs):
        module = modules.lucidrains()
        x = random_input(rngs, 1, 5)
        ours, params = modules.ours_like_lucidrains(module, landmark_layout="real")
        exact = ours.apply({"params": params}, x, deterministic=True)
        assert relative_change(module(modules.tensors(x)).detach(), exact) > 1e-2


class TestHalfPrecision:
    """bfloat16 in, bfloat16 out."""

    def test_ours_runs_near_float32(self, rngs, ours):
        x = random_input(rngs, 1, LENGTH)
        half = ours(x.astype(jnp.bfloat16), dtype=jnp.bfloat16)
        assert half.dtype == jnp.bfloat16
        assert_close(half, ours(x), HALF)

    @pytest.mark.parametrize("name", modules.PEERS)
    def test_the_peers_fail(self, rngs, name):
        module = modules.huggingface(LENGTH) if name == "huggingface" else modules.lucidrains()
        x = modules.tensors(random_input(rngs, 1, LENGTH)).bfloat16()
        with pytest.raises(RuntimeError, match=r"dtype|Float|BFloat16"):
            module.bfloat16()(x)
