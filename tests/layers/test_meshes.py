"""Training on every mesh equals training on one device: losses, parameters and dropout."""

import re

import jax
import numpy as np
import pytest

from language import pretrain
from lra import train
from nystromformer_jax.training import replicated, shard_batch, state_sharding
from nystromformer_jax.training.plan import make_plan
from tests.helpers import REFERENCE, assert_close, rematerialises
from tests.language import runs
from tests.lra.test_tasks import small

STEPS = 3
NYSTROM = "nystrom,num_landmarks=6,conv_kernel_size=3"


def lra_job(
    name,
    devices,
    mesh,
    dropout_rate=0.0,
    argument=NYSTROM,
    dtype="float32",
    model=(),
    **train_section,
):
    config = small(name, argument, max_len=64, padded_len=0)
    config["model"] |= {"max_len": 64, "dropout_rate": dropout_rate, "dtype": dtype}
    config["model"] |= dict(model)
    config["train"] |= {"total_steps": STEPS, **train_section}
    config["mesh"] |= mesh
    run = train.prepare(config, devices)
    return train.make_spec(run), ragged_texts(run)


def ragged_texts(run):
    random = np.random.default_rng(0)

    def batch():
        batch = {"labels": random.integers(0, run.model.num_classes, 8, np.int32)}
        for key in run.model.batch_keys:
            tokens = random.integers(1, 16, (8, 64), np.int32)
            if key.startswith("mask"):  # lengths, then holes
                lengths = np.array([64, 40, 3, 1, 64, 17, 33, 50])
                batch[key] = (np.arange(64) < lengths[:, None]) & (random.random((8, 64)) < 0.9)
                batch[key][:, 0] = True
            else:
                batch[key] = tokens
        return {**batch, "weights": np.array([1] * 7 + [0], np.float32)}

    return [batch() for _ in range(STEPS)]


def language_job(folder, devices, mesh, dropout_rate=0.0):
    sections = runs.pretrain_sections(
        folder,
        data={"max_len": 64},
        model={"dropout_rate": dropout_rate},
        train={"total_steps": STEPS},
        mesh=mesh,
    )
    random = np.random.default_rng(0)

    def batch():
        first, second = (random.integers(1, 30, 8).astype(np.int32) for _ in range(2))
        return {
            "inputs": random.integers(1, 60, (8, 64), np.int32),
            "first_len": first,
            "second_len": second,
            "example": random.integers(0, 999, 8, np.int32),
            "weights": np.ones(8, np.float32),
        }

    return pretrain.make_spec(pretrain.prepare(sections, devices)), [batch() for _ in range(STEPS)]


def initial_state(job):
    """The state, and the sums of metrics, on the mesh of the job."""
    shard = job.config.mesh.shard_params
    state, _ = jax.eval_shape(job.init_state)
    where = (state_sharding(job.mesh, state, shard=shard), replicated(job.mesh))
    return jax.jit(job.init_state, out_shardings=where)()


def trained(job, batches):
    """Losses, and the parameters, after all steps."""
    state, totals = initial_state(job)
    step, losses = job.make_train_step(), []
    for batch in batches:
        state, totals, loss = step(state, totals, shard_batch(batch, job.mesh))
        losses.append(float(loss))
    return losses, jax.device_get(state.params), state


def assert_equals_one_device(make, *arguments, mesh, on_mesh=None, **options):
    """Compares losses and parameters after all steps, and returns the state on the mesh."""
    losses, params, _ = trained(*make(*arguments, jax.devices()[:1], {"data": 1}, **options))
    own = make(*arguments, None, mesh, **options, **(on_mesh or {}))
    own_losses, own_params, state = trained(*own)
    assert_close(own_losses, losses, REFERENCE)
    assert_close(own_params, params, REFERENCE)
    return state


SPLIT = {"data": 2, "sequence": 4}
DROPOUT = {"dropout_rate": 0.1}
CONVOLUTIONS = {
    # Wider than a head's channels, narrower than twice a device's part of the length.
    "argument": "nystrom,num_landmarks=6,conv_kernel_size=11,conv_groups=channel",
    "model": (("stem", (5, 3)), ("stem_dilations", (1, 4)), ("pooling", "ends")),
}
AVERAGES = {"model": (("block", "gated_ema"), ("positions", "none"), ("ema_states", 3))}
TRAINED = {
    "data": ("listops", {"data": 8}, DROPOUT),
    "sequence": ("listops", {"sequence": 8}, DROPOUT),
    "data and sequence": ("listops", SPLIT, {}),
    "data and sequence, dropout": ("listops", SPLIT, DROPOUT),
    "pairs": ("retrieval", SPLIT, DROPOUT),
    # The stem, one kernel per channel, and the last real token, whichever device holds it.
    "convolutions and ends": ("listops", SPLIT, CONVOLUTIONS),
    "convolutions and ends of pairs": ("retrieval", SPLIT, CONVOLUTIONS),
    "moving averages": ("listops", SPLIT, AVERAGES),
    "softmax, split by the compiler": ("listops", SPLIT, {"argument": "softmax"}),
    # On one device the batch of 8 has parts of 2, which 8 devices cannot split.
    "parts of fewer examples than devices": ("listops", {"data": 8}, {"accumulation": 4}),
}


@pytest.mark.slow_except("data and sequence, dropout")
@pytest.mark.parametrize("case", TRAINED)
def test_tasks_train_equally_on_every_mesh(case):
    name, mesh, options = TRAINED[case]
    assert_equals_one_device(lra_job, name, mesh=mesh, **options)


@pytest.mark.slow(minutes=0.3)
@pytest.mark.parametrize("mesh", [{"data": 8}, {"sequence": 8}, SPLIT], ids=str)
def test_pretraining_is_equal_on_every_mesh(tmp_path, mesh):
    assert_equals_one_device(language_job, tmp_path, mesh=mesh, **DROPOUT)


@pytest.mark.slow(minutes=0.3)
def test_accumulation_remat_and_sharded_parameters_work_together():
    """Also with dropout, because each part has the same examples as on one device."""
    options = {"mesh": {**SPLIT, "shard_params": True}, "on_mesh": {"remat": True}}
    state = assert_equals_one_device(lra_job, "retrieval", accumulation=2, **options, **DROPOUT)
    kernel = state.params["sequence_encoder"]["token_embedding"]["embedding"]
    moment = state.opt_state[0].mu["sequence_encoder"]["token_embedding"]["embedding"]
    for leaf in (kernel, moment):
        assert leaf.size == 8 * leaf.addressable_shards[0].data.size


@pytest.mark.slow(minutes=0.3)
def test_muon_with_sharded_parameters_equals_one_device():
    """Muon stacks kernels of one size, which may be sharded differently than the kernels."""
    mesh = {**SPLIT, "shard_params": True}
    state = assert_equals_one_device(lra_job, "text", mesh=mesh, argument=f"{NYSTROM},recipe=fast")
    moments = jax.tree.leaves(state.opt_state)
    assert any(leaf.ndim == 3 and not leaf.sharding.is_fully_replicated for leaf in moments)


def test_tasks_and_pretraining_rematerialize_if_configured(tmp_path):
    jobs = [
        lra_job(name, None, {}, argument="softmax", remat=remat)[0]
        for name, remat in (("listops", False), ("listops", True), ("retrieval", True))
    ]
    sections = runs.pretrain_sections(tmp_path, "demo,attention=softmax", train={"remat": True})
    jobs.append(pretrain.make_spec(pretrain.prepare(sections)))
    assert [rematerialises(job) for job in jobs] == [False, True, True, True]


def test_gradients_are_sharded_like_the_parameters():
    """The step has an explicit constraint, because compilers may not infer this sharding."""
    job, _ = lra_job("listops", None, {"data": 8, "shard_params": True})
    shapes = job.argument_shapes()
    split = sum(not leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(shapes[0].params))
    assert split > 0
    [step] = jax.make_jaxpr(job.make_train_step())(*shapes).eqns
    constraints = [
        equation.params["sharding"]
        for equation in step.params["jaxpr"].eqns
        if equation.primitive.name == "sharding_constraint"
    ]
    parts = sum(not sharding.is_fully_replicated for sharding in constraints)
    assert parts == 4 * split  # of the gradient; then of parameters and two moments


@pytest.mark.slow(minutes=0.1)
def test_half_precision_works_with_sharding_remat_and_accumulation():
    mesh = {"data": 2, "sequence": 4, "shard_params": True}
    job, batches = lra_job("listops", None, mesh, 0.1, dtype="bfloat16", remat=True, accumulation=2)
    products = re.findall(
        r"stablehlo.dot_general.*", job.make_train_step().lower(*job.argument_shapes()).as_text()
    )
    projections = [product for product in products if "tensor<4x64x8x" in product]
    assert projections
    assert not any("f32" in product for product in projections)
    losses, params, _ = trained(job, batches)
    assert np.isfinite(losses).all()
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype(np.float32)}


@pytest.mark.slow(minutes=0.3)
@pytest.mark.parametrize(("shape", "shard_params"), [((8, 1), False), ((2, 4), True)])
def test_plan_equals_the_memory_of_the_step(shape, shard_params):
    mesh = {"data": shape[0], "sequence": shape[1], "shard_params": shard_params}
    job, batches = lra_job("listops", None, mesh)
    plan = make_plan(job)
    state, totals = initial_state(job)
    batch = shard_batch(batches[0], job.mesh)
    step = job.make_train_step().lower(state, totals, batch).compile()
    results = step(state, totals, batch), batch
    first = job.mesh.devices.flat[0]
    live = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(results)
        for shard in leaf.addressable_shards
        if shard.device == first
    )
    real = live + step.memory_analysis().temp_size_in_bytes
    assert plan.memory is not None
    assert abs(plan.memory.total - real) < 0.1 * real
    assert plan.collectives
