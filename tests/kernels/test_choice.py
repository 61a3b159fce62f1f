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
    ("mesh", "word"),
    [
        (functools.partial(tpus, "TPU v4", data=4), "TPU v4"),
        (functools.partial(tpus, data=2, model=2, types=(AUTO, AUTO)), "'model'"),
        (functools.partial(tpus, data=3), "3 devices"),
    ],
)
def test_unsupported_devices_fall_back_to_xla(mesh, word):
    with pytest.warns(UserWarning, match=word), mesh():
        assert "pallas_call" not in traced()


def test_a_batch_of_any_size_falls_back_to_xla(no_annotations):
    (batch,) = jax.export.symbolic_shape("batch")
    with pytest.warns(UserWarning, match="fixed batch size"), tpus(data=1):
        assert "pallas_call" not in traced((batch, 300, 2, 64))


def test_mixed_dtypes_fall_back_to_xla():
    x = jax.ShapeDtypeStruct((1, 140, 2, 32), jnp.float32)
    half = jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)
    attend = functools.partial(nystrom_attention, num_landmarks=16, implementation="pallas_tpu")
    with pytest.warns(UserWarning, match="several dtypes"):
        jax.eval_shape(attend, x, half, x)


def test_shard_map_with_check_vma_falls_back_to_xla():
    mesh = jax.make_mesh((8,), ("data",), (AUTO,))
    tokens = jax.ShapeDtypeStruct((8, 140, 2, 32), jnp.float32)
    attend = functools.partial(nystrom_attention, num_landmarks=16, implementation="pallas_tpu")

    def program(check_vma):
        spec = PartitionSpec("data")
        each = jax.shard_map(
            attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=check_vma
        )
        return str(jax.make_jaxpr(each)(tokens, tokens, tokens))

    assert "pallas_call" in program(check_vma=False)
    with pytest.warns(UserWarning, match="check_vma=False"):
        assert "pallas_call" not in program(check_vma=True)


def test_several_devices_without_a_mesh_fall_back_to_xla(monkeypatch):
    monkeypatch.setattr(choice, "target_device", lambda: ("tpu", "TPU v5 lite"))
    with pytest.warns(UserWarning, match="jax.set_mesh"):
        assert "pallas_call" not in traced()


def test_a_split_length_falls_back_to_xla():
    tokens = jax.ShapeDtypeStruct((4, 320, 2, 64), jnp.float32)
    mesh = jax.make_mesh((8,), ("sequence",), (AUTO,))
    attend = functools.partial(
        sharded_nystrom_attention, mesh=mesh, num_landmarks=16, implementation="pallas_tpu"
    )
    with pytest.warns(UserWarning, match="a length split over devices"):
        assert "pallas_call" not in str(jax.make_jaxpr(attend)(tokens, tokens, tokens))
