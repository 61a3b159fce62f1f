"""What a TPU's compiler needs to begin, and what it says when it refuses."""

import pytest

from nystromformer_jax.training import topology


def test_a_refusal_tells_how_much_was_needed():
    message = "the total memory required for HLO temporaries (1.50G) exceeds available HBM (1.00G)."
    assert topology.needed_memory(message, 100, 10) == {
        "argument_bytes": 100,
        "output_bytes": 10,
        "temp_bytes": 3 * 2**29,
        "peak_bytes": 110 + 3 * 2**29,
    }
    assert topology.needed_memory("too much", 100, 10)["peak_bytes"] is None
    assert topology.needed_temporaries(message) == 3 * 2**29
    assert topology.needed_temporaries("too much") is None


def test_an_estimate_loses_a_second_an_operation_without_one_and_gets_it_back():
    assert topology.decoded_seconds(0.25) == 0.25
    assert topology.decoded_seconds(-2.75) == 0.25
    assert topology.decoded_seconds(-3.0) is None


@pytest.mark.parametrize("name", ["v5e", "v5e:0x1", "v5e:1x", "", "v5e 1x1"])
def test_what_is_no_topology_is_refused_before_libtpu_sees_it(name):
    with pytest.raises(ValueError, match="such as v5e:1x1; got"):
        topology.topology_devices(name)


def test_a_missing_libtpu_is_a_sentence(monkeypatch):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs libtpu.*pip install -e '\.\[plan\]'"):
        topology.topology_devices("v5e:1x1")


def test_an_unknown_topology_is_a_sentence():
    pytest.importorskip("libtpu")
    with pytest.raises(ValueError, match=r"libtpu knows no TPU topology 'v9z:1x1' \(.*v9z\); it"):
        topology.topology_devices("v9z:1x1")


def test_all_devices_of_a_topology_are_there():
    pytest.importorskip("libtpu")
    devices = topology.topology_devices("v5e:2x4")
    assert len(set(devices)) == 8
    assert {device.platform for device in devices} == {"tpu"}
