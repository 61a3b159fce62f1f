"""The environment of a TPU's compiler, and its errors."""

import pytest

from nystromformer_jax.training import topology
from nystromformer_jax.training.errors import needed_temporaries
from tests import programs


def test_an_out_of_memory_message_reports_the_temporaries():
    message = "the total memory required for HLO temporaries (1.50G) exceeds available HBM (1.00G)."
    assert needed_temporaries(message) == 3 * 2**29
    assert needed_temporaries("too much") is None


@pytest.mark.parametrize("name", ["v5e", "v5e:0x1", "v5e:1x", "", "v5e 1x1"])
def test_rejects_invalid_topologies_before_calling_libtpu(name):
    with pytest.raises(ValueError, match="such as v5e:1x1 or h200:1; got"):
        topology.topology_devices(name)


def test_error_if_libtpu_is_missing(monkeypatch):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs libtpu.*pip install -e '\.\[plan\]'"):
        topology.topology_devices("v5e:1x1")


@pytest.mark.slow(minutes=0.1)
def test_rejects_an_unknown_topology():
    pytest.importorskip("libtpu")
    with pytest.raises(
        ValueError,
        match=r"libtpu does not support the TPU topology 'v9z:1x1' \(.*v9z\)\. Pass another",
    ):
        topology.topology_devices("v9z:1x1")


def test_topology_has_all_devices():
    pytest.importorskip("libtpu")
    devices = topology.topology_devices("v5e:2x4")
    assert len(set(devices)) == 8
    assert {device.platform for device in devices} == {"tpu"}


@pytest.mark.parametrize(
    ("name", "count"),
    [("v5e:1x1", 1), ("v6e:1x1", 1), ("v5e:1x2", 2), ("v5e:3x3", 9), ("v4:1x2x3", 12)],
)
def test_topology_may_have_an_odd_number_of_chips(name, count):
    pytest.importorskip("libtpu")
    assert len(topology.topology_devices(name)) == count


def test_two_processes_may_use_topologies_at_once():
    pytest.importorskip("libtpu")
    assert topology.topology_devices("v5e:2x2")  # loads libtpu into this process
    words = (
        "from nystromformer_jax.training.topology import topology_devices;"
        " print(len(topology_devices('v5e:2x2')))"
    )
    answer = programs.finish(programs.start("-c", words, JAX_PLATFORMS="cpu"))
    assert (answer.code, answer.output) == (0, "4\n"), answer.errors


def test_error_if_the_compiler_for_gpus_is_missing(monkeypatch):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"compiler for GPUs.*pip install -e '\.\[plan-gpu\]'"):
        topology.topology_devices("h200:1")
    with pytest.raises(ValueError, match="needs the number of GPUs; got '2x4'"):
        topology.topology_devices("a100:2x4")


def test_gpus_need_not_exist():
    pytest.importorskip("jax_cuda12_plugin", reason="needs the extra plan-gpu")
    devices = topology.topology_devices("a100:2")
    assert [device.device_kind for device in devices] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert topology.compiler_options(devices[0]) == {"xla_gpu_autotune_level": "0"}
