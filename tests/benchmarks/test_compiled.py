import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.compiled import compile_ahead


def test_compiled_program_has_figures_and_runs():
    shapes = (jax.ShapeDtypeStruct((5, 7), jnp.float32), jax.ShapeDtypeStruct((7, 3), jnp.float32))
    program = compile_ahead(jnp.matmul, shapes, jax.devices()[0])
    assert program.argument_bytes == 4 * (5 * 7 + 7 * 3)
    assert program.peak_bytes == 4 * (5 * 7 + 7 * 3 + 5 * 3) + program.temp_bytes
    assert program.flops == 2 * 5 * 7 * 3
    a, b = np.arange(35.0).reshape(5, 7), np.arange(21.0).reshape(7, 3)
    output = program.run(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))
    np.testing.assert_array_equal(output, a @ b)
