"""Meshes from numbers, and batches on them."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from nystromformer_jax.training import MeshConfig, check_length, make_mesh, shard_batch
from nystromformer_jax.training import mesh as mesh_file


@pytest.mark.parametrize(
    ("config", "shape"), [((-1, 1), (8, 1)), ((-1, 2), (4, 2)), ((2, -1), (2, 4)), ((1, 8), (1, 8))]
)
def test_minus_one_uses_the_remaining_devices(config, shape):
    mesh = make_mesh(MeshConfig(data=config[0], sequence=config[1]))
    assert tuple(mesh.shape.items()) == (("data", shape[0]), ("sequence", shape[1]))
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)


@pytest.mark.parametrize(
    ("shape", "on_each"),
    [((12,), (3,)), ((12, 4), (3, 2)), ((12, 5), (3, 5)), ((4, 2, 7), (1, 1, 7))],
)
def test_rows_and_lengths_are_split_in_device_order(shape, on_each):
    mesh = make_mesh(MeshConfig(data=4, sequence=2))
    rows = np.arange(np.prod(shape)).reshape(shape)
    placed = shard_batch({"rows": rows}, mesh)["rows"]
    np.testing.assert_array_equal(placed, rows)
    assert {shard.data.shape for shard in placed.addressable_shards} == {on_each}


@pytest.mark.usefixtures("no_annotations")
def test_rows_of_a_host_are_consecutive_for_any_device_order(monkeypatch):
    hosts = [[2, 2], [0, 0], [1, 1], [0, 0], [2, 2], [1, 1]]
    rows = np.array([[SimpleNamespace(process_index=host) for host in row] for row in hosts])
    given = SimpleNamespace(devices=rows, axis_names=("data", "sequence"))
    monkeypatch.setattr(mesh_file.jax, "make_mesh", lambda *arguments, **options: given)
    monkeypatch.setattr(mesh_file, "Mesh", lambda devices, *names, **options: devices)
    laid = make_mesh(MeshConfig(sequence=2), list(rows.flat))
    assert [device.process_index for device in laid[:, 0]] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("sizes", "devices", "words"),
    [
        ({"sequence": 3}, 8, r"mesh\.sequence=3 .* 8 device"),
        ({"data": 2}, 1, "must be 1"),
        ({"data": -1, "sequence": -1}, 8, "both -1"),
        ({"data": 0}, 8, r"mesh\.data"),
    ],
)
def test_rejects_invalid_meshes(sizes, devices, words):
    with pytest.raises(ValueError, match=words):
        make_mesh(MeshConfig(**sizes), jax.devices()[:devices])


def test_rejects_an_indivisible_length_and_suggests_another():
    mesh = make_mesh(MeshConfig(data=2, sequence=4))
    check_length(mesh, 2000, "data.max_len")
    with pytest.raises(ValueError, match=r"data\.max_len=2001 .* example 2004"):
        check_length(mesh, 2001, "data.max_len")
