"""Learning-rate schedules, AdamW and Muon."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nystromformer_jax.training import (
    SECTIONS,
    FitConfig,
    OptimizerConfig,
    TrainConfig,
    make_optimizer,
    make_schedule,
)
from nystromformer_jax.training.optimizer import make_beta1_schedule
from tests.helpers import SAME_ARITHMETIC, assert_close, normal


def rate(step, total_steps=5000, **config):
    settings = {"learning_rate": 1e-4, "warmup_steps": 1000, **config}
    return float(make_schedule(OptimizerConfig(**settings), total_steps)(step))


SCHEDULES = ("one_cycle", "linear", "cosine", "rsqrt", "constant")


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 4e-6), (500, 4e-6 + 9.6e-5 * 500 / 999), (999, 1e-4), (2999, 5.00002e-5), (4999, 4e-10)],
)
def test_one_cycle_equals_the_schedule_of_the_authors(step, expected):
    assert rate(step) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("total_steps", [1, 20, 999, 1000])
def test_a_run_shorter_than_its_warmup_uses_its_beginning(total_steps):
    for schedule in SCHEDULES:
        for step in (0, total_steps - 1):
            short = rate(step, total_steps, schedule=schedule)
            assert short == rate(step, 5000, schedule=schedule)
            assert np.isfinite(short)


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        ("linear", {0: 0, 500: 5e-5, 1000: 1e-4, 3000: 5e-5, 4999: 1e-4 / 4000}),
        ("cosine", {0: 0, 500: 5e-5, 1000: 1e-4, 3000: 5e-5, 2000: 1e-4 * (2 + 2**0.5) / 4}),
        ("rsqrt", {0: 0, 500: 5e-5, 1000: 1e-4, 4000: 5e-5, 2000: 1e-4 / 2**0.5}),
        ("constant", {0: 0, 500: 5e-5, 1000: 1e-4, 4999: 1e-4}),
    ],
)
def test_other_schedules_equal_their_formulas(schedule, points):
    for step, expected in points.items():
        assert rate(step, schedule=schedule) == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_no_warmup_starts_at_the_peak():
    for schedule in SCHEDULES:
        assert rate(0, warmup_steps=0, schedule=schedule) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learning_rate": 0.0}, r"optimizer\.learning_rate"),
        # AdamW would divide by zero where the gradient was always zero, as for unused tokens.
        ({"eps": 0.0}, r"optimizer\.eps"),
        ({"warmup_steps": -1}, r"optimizer\.warmup_steps"),
        ({"weight_decay": -0.1}, r"optimizer\.weight_decay"),
        ({"beta1": -0.1}, r"optimizer\.beta1"),
        ({"beta2": 1.0}, r"optimizer\.beta2"),
        ({"cycle_beta1": True, "schedule": "cosine"}, r"optimizer\.schedule='one_cycle'"),
        ({"cycle_beta1": True, "method": "muon"}, r"optimizer\.method='adamw'"),
    ],
)
def test_rejects_invalid_values(change, words):
    with pytest.raises(ValueError, match=words):
        OptimizerConfig(**{"learning_rate": 1e-4, "warmup_steps": 1, **change})


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.95), (333, 0.95 - 0.1 / 3), (999, 0.85), (2999, 0.9), (4999, 0.95)]
)
def test_beta1_cycles_opposite_to_the_rate(step, expected):
    config = OptimizerConfig(learning_rate=1e-4, warmup_steps=1000, cycle_beta1=True)
    assert float(make_beta1_schedule(config, 5000)(step)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "options", [{"cycle_beta1": True}, {"schedule": "constant", "beta1": 0.7, "eps": 0.01}]
)
def test_updates_equal_adamw(options):
    """Like PyTorch's AdamW, which uses the current β₁ for the mean and for its bias correction."""
    config = OptimizerConfig(
        learning_rate=1e-2, warmup_steps=3, beta2=0.9, weight_decay=0.1, **options
    )
    optimizer = make_optimizer(config, 7)
    weight, state = jnp.float32(2.0), None
    state = optimizer.init(weight)
    mean = square = 0.0
    expected = 2.0
    for step, gradient in enumerate([1.0, -2.0, 0.5, 3.0, 1.0]):
        update, state = optimizer.update(jnp.float32(gradient), state, weight)
        weight = weight + update
        beta1 = config.beta1
        if config.cycle_beta1:
            beta1 = float(make_beta1_schedule(config, 7)(step))
        mean = beta1 * mean + (1 - beta1) * gradient
        square = 0.9 * square + 0.1 * gradient**2
        direction = mean / (1 - beta1 ** (step + 1))
        direction /= (square / (1 - 0.9 ** (step + 1))) ** 0.5 + config.eps
        learning_rate = float(make_schedule(config, 7)(step))
        expected -= learning_rate * (direction + 0.1 * expected)
        assert float(weight) == pytest.approx(expected, rel=1e-5)


def update_of(params, gradient, **config):
    """Returns the first update of an optimizer at a constant rate."""
    settings = {"learning_rate": 1e-2, "warmup_steps": 0, "schedule": "constant", "eps": 1e-8}
    optimizer = make_optimizer(OptimizerConfig(**settings, **config), total_steps=10)
    update = lambda params, gradient: optimizer.update(gradient, optimizer.init(params), params)[0]
    return jax.jit(update)(params, gradient)


@pytest.mark.slow(minutes=0.1)
def test_muon_orthogonalizes_updates_of_kernels(rngs):
    shapes = {"dense": (7, 5), "convolution": (3, 5, 11)}
    params = {name: {"kernel": jnp.zeros(shape)} for name, shape in shapes.items()}
    gradient = {name: {"kernel": normal(next(rngs), shape)} for name, shape in shapes.items()}
    update = update_of(params, gradient, method="muon")
    for matrix in (update["dense"]["kernel"], update["convolution"]["kernel"].reshape(15, 11)):
        singular_values = np.linalg.svd(matrix, compute_uv=False)
        # Five Newton–Schulz steps bring them to 0.7 … 1.2; the root mean square is 0.2 of the rate.
        np.testing.assert_allclose(singular_values / singular_values.mean(), 1, atol=0.35)
        assert float(jnp.sqrt((matrix**2).mean())) == pytest.approx(0.2e-2, rel=0.25)


def test_muon_updates_kernels_of_one_size_together_as_if_alone(rngs):
    shapes = {"a": (7, 5), "b": (5, 7), "c": (7, 5), "d": (1, 7, 5)}  # two sizes
    params = {name: {"kernel": normal(next(rngs), shape)} for name, shape in shapes.items()}
    gradient = {name: {"kernel": normal(next(rngs), shape)} for name, shape in shapes.items()}
    settings = {"method": "muon", "weight_decay": 0.5}
    together = update_of(params, gradient, **settings)
    for name in shapes:
        alone = update_of({name: params[name]}, {name: gradient[name]}, **settings)
        assert_close(together[name]["kernel"], alone[name]["kernel"], SAME_ARITHMETIC)

    def products(names):
        some = {name: params[name] for name in names}
        return str(jax.make_jaxpr(lambda x: update_of(x, x, **settings))(some)).count("dot_general")

    assert products("abcd") == products("ab") == 2 * products("a") > 0


def test_muon_accepts_gradients_of_another_dtype():
    params = {"a": {"kernel": jnp.ones((7, 5))}, "b": [jnp.ones((7, 5))]}
    gradient = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    update = update_of(params, gradient, method="muon")
    assert jax.tree.map(jnp.shape, update) == jax.tree.map(jnp.shape, params)


def test_muon_updates_other_parameters_with_nadamw_and_the_configured_values(rngs):
    settings = {"learning_rate": 1e-2, "warmup_steps": 0, "schedule": "constant"}
    settings |= {"beta1": 0.7, "beta2": 0.9, "eps": 0.1}
    shapes = {"bias": (5,), "embedding": (7, 5), "conv_kernel": (5, 7), "kernel": (7, 5)}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    gradients = [
        {name: normal(next(rngs), shape) for name, shape in shapes.items()} for _ in range(2)
    ]

    def updates(optimizer):
        state = optimizer.init(params)
        for gradient in gradients:
            update, state = optimizer.update(gradient, state, params)
            yield update

    muon = make_optimizer(OptimizerConfig(method="muon", **settings), total_steps=10)
    nadamw = optax.nadamw(1e-2, b1=0.7, b2=0.9, eps=0.1)
    for one, other in zip(updates(muon), updates(nadamw), strict=True):
        for name in ("bias", "embedding", "conv_kernel"):
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5)
        assert (one["kernel"] != other["kernel"]).any()


def test_muon_decays_all_weights(rngs):
    params = {"kernel": normal(next(rngs), (7, 5)), "bias": jnp.ones(5)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    update = update_of(params, zeros, method="muon", weight_decay=0.5)
    for name, leaf in params.items():
        np.testing.assert_allclose(update[name], -0.5e-2 * leaf, rtol=1e-5)


@pytest.mark.parametrize(("warmup_steps", "warns"), [(20, False), (21, True)])
def test_warns_if_warm_up_is_longer_than_the_run(warmup_steps, warns, caplog):
    sections = {
        name: kind() for name, kind in SECTIONS.items() if name not in ("train", "optimizer")
    }
    sections["train"] = TrainConfig(total_steps=20, batch_size=8)
    sections["optimizer"] = OptimizerConfig(learning_rate=1e-3, warmup_steps=warmup_steps)
    with caplog.at_level(logging.WARNING):
        FitConfig.from_sections(sections)
    assert ("optimizer.warmup_steps=21" in caplog.text) == warns


@pytest.mark.parametrize("method", ["adamw", "muon"])
def test_gradients_are_clipped(method):
    """`eps` is so large that the first update of AdamW is the gradient divided by it."""
    options = {"warmup_steps": 0, "schedule": "constant", "eps": 1e3, "clip_norm": 0.5}
    optimizer = make_optimizer(OptimizerConfig(method=method, learning_rate=1.0, **options), 10)
    params = {"bias": jnp.zeros(2), "kernel": jnp.zeros((7, 5))}
    first = jax.jit(lambda gradient: optimizer.update(gradient, optimizer.init(params), params)[0])
    small, large = (
        first({**params, "bias": scale * jnp.array([30.0, 40.0])}) for scale in (1, 100)
    )
    assert_close(small, large, SAME_ARITHMETIC)
    assert jnp.abs(small["bias"]).max() > 1e-5
    if method == "adamw":
        np.testing.assert_allclose(small["bias"], [-0.3e-3, -0.4e-3], rtol=1e-3)
