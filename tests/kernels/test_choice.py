"""When and on which devices the kernels are used, and the warning when they are not."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from nystromformer_jax import nystrom_attention, sharded_nystrom_attention
from nystromformer_jax.kernels import choice

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


@pytest.fixture(autouse=True)
def no_warning_yet():
    choice._warn_once.cache_clear()


def traced(
    shape=(4, 300, 2, 64),
    dtype=jnp.float32,
    implementation="auto",
    width=0,
    per_channel=False,
    masked=False,
    **options,
):
    """The compiled function of one attention, and its inputs."""
    tokens = jax.ShapeDtypeStruct(shape, dtype)
    groups = shape[2:] if per_channel else shape[2:3]
    kernel = jax.ShapeDtypeStruct((*groups, width), jnp.float32) if width else None

    def attend(query, key, value, kernel):
        return nystrom_attention(
            query,
            key,
            value,
            conv_kernel=kernel,
            implementation=implementation,
            mask=jnp.ones(shape[:2], bool) if masked else None,
            **{"num_landmarks": 16, **options},
        )

    return str(jax.make_jaxpr(attend)(tokens, tokens, tokens, kernel))


def tpus(kind="TPU v5 lite", types=(AUTO,), **axes):
    device = AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), types, abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def test_cpu_uses_xla_by_default():
    assert "pallas_call" not in traced()
    assert "pallas_call" not in traced(implementation="xla")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"width": 257},
        {"width": 259, "per_channel": True},
        # It concerns a convolution with a mask.
        {"width": 3, "mask_conv": False},
        {"masked": True, "mask_conv": False},
    ],
)
def test_supported_arguments_run_the_kernels(options):
    assert "pallas_call" in traced(implementation="pallas_tpu", **options)


@pytest.mark.filterwarnings("error")
def test_tpus_run_the_kernels_on_their_own_examples():
    with tpus(data=4, sequence=1, types=(AUTO, AUTO)):
        program = traced()
    assert "shard_map" in program
    assert "pallas_call" in program
    assert "f32[1,300,128]" in program  # one of 4 examples per device
    with tpus(data=1):
        assert "shard_map" not in traced()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"shape": (4, 300, 2, 40)}, "not of 40"),
        ({"shape": (4, 300, 3, 64)}, "3 heads of 64 channels"),
        ({"dtype": jnp.float16}, "not float16"),
        ({"num_landmarks": 24}, "not 24"),
        ({"num_landmarks": 272}, "not 272"),
        ({"width": 259}, "not 259"),
        ({"landmark_layout": "mlpen", "num_landmarks": 100}, "landmark_layout"),
        ({"landmark_selection": "kmeans"}, "landmark_selection"),
        ({"mask_conv": False, "width": 3, "masked": True}, "mask_conv"),
        ({"pinv_start": "batch_max"}, "pinv_start"),
        ({"normalize_rows": True}, "normalize_rows"),
    ],
)
def test_unsupported_arguments_fall_back_to_xla_with_one_warning(options, word):
    with pytest.warns(UserWarning, match=word):
        assert "pallas_call" not in traced(implementation="pallas_tpu", **options)
    assert "pallas_call" not in traced(implementation="pallas_tpu", **options)


@pytest.mark.parametrize(
    ("mesh", "batch", "word"),
    [
        (functools.partial(tpus, "TPU v4", data=4), 4, "TPU v4"),
        (functools.partial(tpus, data=2, model=2, types=(AUTO, AUTO)), 4, "'model'"),
        (functools.partial(tpus, data=3), 4, "3 devices"),
        (functools.partial(tpus, data=1), jax.export.symbolic_shape("b")[0], "fixed batch size"),
    ],
)
def test_unsupported_devices_and_batches_fall_back_to_xla(no_annotations, mesh, batch, word):
    with pytest.warns(UserWarning, match=word), mesh():
        assert "pallas_call" not in traced((batch, 300, 2, 64))


X, HALF = (jax.ShapeDtypeStruct((8, 320, 2, 32), dtype) for dtype in (jnp.float32, jnp.bfloat16))
BY_KERNELS = {"num_landmarks": 16, "implementation": "pallas_tpu"}


def sharded_by_the_user(*inputs, check_vma):
    mesh, spec = jax.make_mesh((8,), ("data",), (AUTO,)), PartitionSpec("data")
    attend = functools.partial(nystrom_attention, **BY_KERNELS)
    options = {"mesh": mesh, "in_specs": (spec,) * 3, "out_specs": spec, "check_vma": check_vma}
    return jax.shard_map(attend, **options)(*inputs)


def with_a_split_length(*inputs):
    mesh = jax.make_mesh((8,), ("sequence",), (AUTO,))
    return sharded_nystrom_attention(*inputs, mesh=mesh, **BY_KERNELS)


@pytest.mark.parametrize(
    ("attend", "inputs", "word"),
    [
        (functools.partial(nystrom_attention, **BY_KERNELS), (X, HALF, X), "several dtypes"),
        (functools.partial(sharded_by_the_user, check_vma=True), (X, X, X), "check_vma=False"),
        (with_a_split_length, (X, X, X), "a length split over devices"),
    ],
)
def test_other_calls_fall_back_to_xla(attend, inputs, word):
    with pytest.warns(UserWarning, match=word):
        assert "pallas_call" not in str(jax.make_jaxpr(attend)(*inputs))


def test_shard_map_without_check_vma_runs_the_kernels():
    program = jax.make_jaxpr(functools.partial(sharded_by_the_user, check_vma=False))(X, X, X)
    assert "pallas_call" in str(program)


def test_several_devices_without_a_mesh_fall_back_to_xla(monkeypatch):
    monkeypatch.setattr(choice, "target_device", lambda: ("tpu", "TPU v5 lite"))
    with pytest.warns(UserWarning, match="jax.set_mesh"):
        assert "pallas_call" not in traced()
