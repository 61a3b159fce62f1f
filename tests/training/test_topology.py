"""The environment of a TPU's compiler, and its errors."""

import pytest

from nystromformer_jax.training import topology
from tests import programs


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "such as v5e:1x1") for name in ("v5e", "v5e:0x1", "v5e:1x", "", "v5e 1x1")),
        ("v5e:1x1", r"\[plan\]"),
        ("h200:1", r"\[plan-gpu\]"),
        ("a100:2x4", "number of GPUs; got '2x4'"),
    ],
)
def test_rejects_invalid_topologies_and_missing_compilers(monkeypatch, name, words):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=words):
        topology.topology_devices(name)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("v5e:1x1", 1),
        ("v5e:2x4", 8),
        ("v5e:3x3", 9),
        ("v4:1x2x3", 12),
    ],
)
def test_topology_has_all_devices_also_an_odd_number_of_chips(name, count):
    pytest.importorskip("libtpu")
    devices = topology.topology_devices(name)
    assert len(set(devices)) == count
    assert {device.platform for device in devices} == {"tpu"}


def test_two_processes_may_use_topologies_at_once():
    pytest.importorskip("libtpu")
    assert topology.topology_devices("v5e:2x2")  # loads libtpu into this process
    words = (
        "from nystromformer_jax.training.topology import topology_devices;"
        " print(len(topology_devices('v5e:2x2')))"
    )
    answer = programs.finish(programs.start("-c", words, JAX_PLATFORMS="cpu"))
    assert (answer.code, answer.output) == (0, "4\n"), answer.errors


def test_gpus_need_not_exist():
    pytest.importorskip("jax_cuda12_plugin", reason="needs the extra plan-gpu")
    devices = topology.topology_devices("a100:2")
    assert [device.device_kind for device in devices] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert topology.compiler_options(devices[0]) == {"xla_gpu_autotune_level": "0"}
