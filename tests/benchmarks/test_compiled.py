import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import compiled
from nystromformer_jax.training.topology import topology_devices


def test_compiled_program_has_figures_and_runs():
    shapes = (jax.ShapeDtypeStruct((5, 7), jnp.float32), jax.ShapeDtypeStruct((7, 3), jnp.float32))
    program = compiled.compile_ahead(jnp.matmul, shapes, jax.devices()[0])
    figures = program.figures
    assert figures["argument_bytes"] == 4 * (5 * 7 + 7 * 3)
    assert figures["output_bytes"] == 4 * 5 * 3
    assert figures["peak_bytes"] == 4 * (5 * 7 + 7 * 3 + 5 * 3) + figures["temp_bytes"]
    assert figures["flops"] == 2 * 5 * 7 * 3
    assert figures["fits"]
    a, b = np.arange(35.0).reshape(5, 7), np.arange(21.0).reshape(7, 3)
    output = program.run(jnp.asarray(a, jnp.float32), jnp.asarray(b, jnp.float32))
    np.testing.assert_array_equal(output, a @ b)


@pytest.mark.slow(minutes=0.2)
def test_tpu_compiler_counts_flops_and_reports_out_of_memory():
    pytest.importorskip("libtpu")
    device = topology_devices("v5e:1x1")[0]
    x = jax.ShapeDtypeStruct((1024, 512), jnp.float32)
    figures = compiled.compile_ahead(lambda x: jnp.tanh(x @ x.T), (x,), device).figures
    assert figures["argument_bytes"] == 4 * 1024 * 512
    assert figures["flops"] >= 2 * 1024 * 1024 * 512
    assert figures["optimal_seconds"] > 0
    long = jax.ShapeDtypeStruct((2**17, 128), jnp.float32)
    refused = compiled.compile_ahead(lambda x: jnp.cumsum(x @ x.T, 0) @ x, (long,), device)
    assert refused.run is None
    assert not refused.figures["fits"]
    assert refused.figures["peak_bytes"] >= 4 * 2**34


def test_reads_the_needed_memory_from_the_error():
    message = "the total memory required for HLO temporaries (1.50G) exceeds available HBM (1.00G)."
    assert compiled.needed_memory(message, 100, 10) == {
        "argument_bytes": 100,
        "output_bytes": 10,
        "temp_bytes": 3 * 2**29,
        "peak_bytes": 110 + 3 * 2**29,
    }
    assert compiled.needed_memory("too much", 100, 10)["peak_bytes"] is None


def test_corrects_estimates_for_operations_without_one():
    assert compiled.decoded_seconds(0.25) == 0.25
    assert compiled.decoded_seconds(-2.75) == 0.25
    assert compiled.decoded_seconds(-3.0) is None
