"""Meshes from numbers, and batches on them."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from nystromformer_jax.training import MeshConfig, make_mesh, place


@pytest.mark.parametrize(
    ("config", "shape"), [((-1, 1), (8, 1)), ((-1, 2), (4, 2)), ((2, -1), (2, 4)), ((1, 8), (1, 8))]
)
def test_minus_one_takes_what_is_left(config, shape):
    mesh = make_mesh(MeshConfig(data=config[0], sequence=config[1]))
    assert tuple(mesh.shape.items()) == (("data", shape[0]), ("sequence", shape[1]))
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)


def test_rows_lie_on_devices_in_order():
    mesh = make_mesh(MeshConfig(data=4, sequence=2))
    rows = np.arange(24).reshape(12, 2)
    placed = place({"rows": rows}, mesh)["rows"]
    np.testing.assert_array_equal(placed, rows)
    assert {shard.data.shape for shard in placed.addressable_shards} == {(3, 2)}


def test_what_does_not_fit_is_refused_in_words():
    with pytest.raises(ValueError, match=r"mesh.data=-1, mesh.sequence=3 cannot lay out 8 device"):
        make_mesh(MeshConfig(sequence=3))
    with pytest.raises(ValueError, match="their product must be 1"):
        make_mesh(MeshConfig(data=2), jax.devices()[:1])
    with pytest.raises(ValueError, match="both -1"):
        MeshConfig(data=-1, sequence=-1)
    with pytest.raises(ValueError, match=r"mesh.data: needs a positive number or -1, got 0"):
        MeshConfig(data=0)
