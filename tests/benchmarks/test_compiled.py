import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.compiled import compile_ahead
from nystromformer_jax.training.topology import topology_devices


def test_compiled_program_has_figures_and_runs():
    shapes = (jax.ShapeDtypeStruct((5, 7), jnp.float32), jax.ShapeDtypeStruct((7, 3), jnp.float32))
    program = compile_ahead(jnp.matmul, shapes, jax.devices()[0])
    assert program.argument_bytes == 4 * (5 * 7 + 7 * 3)
    assert program.peak_bytes == 4 * (5 * 7 + 7 * 3 + 5 * 3) + program.temp_bytes
    assert program.flops == 2 * 5 * 7 * 3
    a, b = np.arange(35.0).reshape(5, 7), np.arange(21.0).reshape(7, 3)
    output = program.run(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))
    np.testing.assert_array_equal(output, a @ b)


@pytest.mark.slow(minutes=0.2)
def test_tpu_compiler_counts_flops_and_reports_out_of_memory():
    pytest.importorskip("libtpu")
    device = topology_devices("v5e:1x1")[0]
    x = jax.ShapeDtypeStruct((1024, 512), jnp.float32)
    program = compile_ahead(lambda x: jnp.tanh(x @ x.T), (x,), device)
    assert program.argument_bytes == 4 * 1024 * 512
    assert program.flops >= 2 * 1024 * 1024 * 512
    long = jax.ShapeDtypeStruct((2**17, 128), jnp.float32)
    refused = compile_ahead(lambda x: jnp.cumsum(x @ x.T, 0) @ x, (long,), device)
    assert refused.run is None
    assert refused.reason
    assert refused.peak_bytes >= 4 * 2**34
