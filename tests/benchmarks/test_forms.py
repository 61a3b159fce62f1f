import jax.numpy as jnp

from benchmarks.forms import with_gradient
from tests.helpers import SAME_ARITHMETIC, assert_close


def test_the_cotangent_is_the_last_argument():
    x, y, cotangent = jnp.array([2.0, 3.0, 5.0]), jnp.array([7.0, 11.0, 13.0]), jnp.arange(3.0)
    output, (of_x, of_y) = with_gradient(lambda x, y: x * y)(x, y, cotangent)
    assert_close(output, x * y, SAME_ARITHMETIC)
    assert_close(of_x, cotangent * y, SAME_ARITHMETIC)
    assert_close(of_y, cotangent * x, SAME_ARITHMETIC)
