"""Collectives, parsed from the text of a compiled program."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from nystromformer_jax.training import MeshConfig, make_mesh
from nystromformer_jax.training.collectives import Collectives, find_collectives

SPLIT = PartitionSpec(("data", "sequence"))


def computation(name, *operations):
    return "\n".join([f"{name} (p: f32[8]) -> f32[8] {{", *(f"  {o}" for o in operations), "}\n"])


def program(*operations, **computations):
    others = [computation(f"%{name}", *lines) for name, lines in computations.items()]
    return "\n".join(["HloModule jit_step\n", *others, computation("ENTRY %main", *operations)])


def loop(trips):
    """A loop over the computation `%body`, as written by compilers that know its length."""
    config = f'{{"known_trip_count":{{"n":"{trips}"}}}}'
    return f"%w = (f32[8]) while(%t), condition=%goes_on, body=%body, backend_config={config}"


def compiled(body, *, sequence=8):
    """The text of `body` on each device's [1, 8, 3] of a float32 [8, 8, 3]."""
    mesh = make_mesh(MeshConfig(data=-1, sequence=sequence))
    function = jax.shard_map(body, mesh=mesh, in_specs=SPLIT, out_specs=SPLIT, check_vma=False)
    return jax.jit(function).lower(jnp.zeros((8, 8, 3))).compile().as_text()


BODIES = {
    "all-reduce": lambda x: jax.lax.psum(x, "sequence"),
    "all-gather": lambda x: jax.lax.all_gather(x, "sequence", tiled=True),
    "collective-permute": lambda x: jax.lax.ppermute(x, "sequence", [(0, 1), (1, 0)]),
    "all-to-all": lambda x: jax.lax.all_to_all(x, "sequence", 1, 0, tiled=True),
    "reduce-scatter": lambda x: jax.lax.psum_scatter(
        x, "sequence", scatter_dimension=1, tiled=True
    ),
}


@pytest.mark.parametrize("kind", BODIES)
def test_counts_each_kind_with_its_bytes(kind):
    for devices in (8, 4):
        nbytes = 4 * 8 * 3 * (devices if kind == "all-gather" else 1)
        text = compiled(BODIES[kind], sequence=devices)
        assert find_collectives(text) == {kind: Collectives(1, nbytes)}


def test_loops_multiply_counts():
    def step(x, _):
        return BODIES["all-reduce"](jnp.sin(x)), None

    def outer(x, _):
        return BODIES["collective-permute"](jax.lax.scan(step, x, length=5)[0]), None

    text = compiled(lambda x: jax.lax.scan(outer, x, length=7)[0])
    assert find_collectives(text) == {
        "all-reduce": Collectives(35, 35 * 4 * 24),
        "collective-permute": Collectives(7, 7 * 4 * 24),
    }


def test_a_loop_of_unknown_length_counts_once():
    body = ["ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, to_apply=%add"]
    text = program("ROOT %w = (f32[8]) while(%t), condition=%goes_on, body=%body", body=body)
    assert find_collectives(text) == {"all-reduce": Collectives(1, 32)}
    assert find_collectives(program("ROOT %s = f32[8]{0} sine(%p)")) == {}


def test_both_branches_of_a_conditional_count():
    branches = {
        "yes": ["ROOT %r = f32[8]{0} all-reduce(%p), to_apply=%add"],
        "no": ["ROOT %g = bf16[16]{0} all-gather(%p), dimensions={0}"],
    }
    expected = {"all-gather": Collectives(1, 32), "all-reduce": Collectives(1, 32)}
    call = "ROOT %c = f32[8]{0} conditional(%b, %p, %p), "
    by_index = program(call + "branch_computations={%yes, %no}", **branches)
    by_truth = program(call + "true_computation=%yes, false_computation=%no", **branches)
    assert find_collectives(by_index) == find_collectives(by_truth) == expected


SCATTER = "f32[3]{0} reduce-scatter(%p), replica_groups="


@pytest.mark.parametrize(
    ("operation", "nbytes"),
    [
        ("(f32[8,3]{1,0:T(8,128)S(1)}, f32[7]{0}) all-reduce(%p, %q)", 4 * 31),
        ("f32[] all-reduce(%p)", 4),
        ("pred[5]{0} all-gather(%p)", 5),
        ("bf16[5]{0:T(256)(128)(2,1)} all-gather(%p)", 10),
        ("f8e4m3fn[5]{0} all-gather(%p)", 5),
        ("f32[0,5]{1,0} all-gather(%p)", 0),
        ("(f32[1,3]{1,0}, f32[1,3]{1,0}) all-to-all(%p, %q)", 24),
        (SCATTER + "{{0,1,2},{3,4,5}}", 36),
        (SCATTER + "[2,5]<=[10]", 60),
        (SCATTER + "mesh['data'=2,'sequence'=7] {'sequence'}", 84),
        (SCATTER + "mesh['data'=2,'sequence'=6]{'data','sequence':(2)3}", 72),
    ],
)
def test_bytes_are_summed_over_all_result_arrays(operation, nbytes):
    (kind,) = (kind for kind in BODIES if kind in operation)
    text = program(f"ROOT %c = {operation}, channel_id=1, to_apply=%add")
    assert find_collectives(text) == {kind: Collectives(1, nbytes)}


TILED = "bf16[16,8]{1,0:T(8,128)(2,1)S(1)}"


@pytest.mark.parametrize(
    ("kind", "start", "result", "nbytes"),
    [
        ("all-reduce", "f32[7]{0}", "f32[7]{0}", 28),
        ("all-gather", "(f32[2]{0}, f32[16]{0})", "f32[16]{0}", 64),
        ("all-gather", "((f32[2]{0}, bf16[3]{0}), (f32[16]{0}, bf16[24]{0}))", "(f32[16]{0})", 112),
        ("collective-permute", f"({TILED}, {TILED}, u32[]{{:S(2)}}, u32[]{{:S(2)}})", TILED, 256),
        ("all-to-all", "((f32[14]{0}), f32[14]{0})", "f32[14]{0}", 56),
        ("reduce-scatter", "((f32[14]{0}), f32[2]{0})", "f32[2]{0}", 56),
    ],
)
def test_start_and_done_count_once(kind, start, result, nbytes):
    groups = "replica_groups={{0,1,2,3,4,5,6}}"
    text = program(
        f"%start = {start} {kind}-start(%p), channel_id=1, {groups}, to_apply=%add",
        f"ROOT %done = {result} {kind}-done(%start)",
    )
    assert find_collectives(text) == {kind: Collectives(1, nbytes)}


def in_three_fusions(chain):
    """A collective that overlaps a matmul, as a TPU's compiler writes it: its start, middle and end."""
    gather = (
        "%g = bf16[64,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), channel_id=1, dimensions={0},"
        f' frontend_attributes={{chain_id="{chain}"}}, metadata={{op_name="jit(f)/all_gather"}}'
    )
    start = "ROOT %s = (bf16[8,8]{1,0}, bf16[64,8]{1,0}, u32[]{:S(2)}) custom-call(%g), "
    done = "ROOT %d = bf16[64,8]{1,0} custom-call(%p, %g), "
    fusions = {
        f"start_{chain}": [gather, start + 'custom_call_target="AsyncCollectiveStart"'],
        f"way_{chain}": [gather, "ROOT %m = f32[8]{0} convolution(%p, %p), dim_labels=bf_io->bf"],
        f"end_{chain}": [gather, done + 'custom_call_target="AsyncCollectiveDone"'],
    }
    calls = [f"%f = f32[8]{{0}} fusion(%p), kind=kCustom, calls=%{name}" for name in fusions]
    return calls, fusions


def test_a_collective_in_several_fusions_counts_once():
    calls, fusions = in_three_fusions(chain=0)
    more_calls, more_fusions = in_three_fusions(chain=1)
    for text, count in (
        (program(*calls, **fusions), 1),
        (program(loop(11), body=calls, **fusions), 11),
        (program(*calls, *more_calls, **fusions, **more_fusions), 2),
    ):
        assert find_collectives(text) == {"all-gather": Collectives(count, count * 1024)}
