import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.examples.scripts import load
from tests.helpers import REFERENCE, assert_close

for package in ("optax", "sklearn"):
    pytest.importorskip(package, reason="needs the extra `language`")
script = load("bags")

PICTURES, DIGITS = np.eye(41, 64, dtype=np.float32), np.arange(41) % 10


def bags_of(seed, count=7, max_size=301):
    return script.make_bags(np.random.default_rng(seed), PICTURES, DIGITS, count, max_size)


def test_positive_bags_have_few_nines_and_others_none():
    bags = bags_of(0)
    sizes = bags.mask.sum(axis=1)
    assert sizes.min() >= script.MIN_SIZE
    shown = DIGITS[bags.pictures.argmax(axis=2)] == 9
    assert (shown == bags.is_nine)[bags.mask].all()
    assert (bags.is_nine.sum(axis=1) == np.where(bags.labels, -(-sizes // 250), 0)).all()
    assert not bags.pictures[~bags.mask].any()


def test_pictures_of_a_bag_have_cells_of_their_own_row_by_row():
    bags = bags_of(1)
    for cells, mask in zip(bags.cells, bags.mask, strict=True):
        side = script.side_of(mask.sum())
        places = cells[mask] @ np.array([side, 1])
        assert (np.diff(places) > 0).all()
        assert places[-1] < side**2


def test_grid_convolution_reads_the_neighbors_of_each_cell(rngs):
    """The kernel's corner moves each picture by one row and one column, unless there is a hole."""
    cells = jnp.array([[[0, 0], [0, 2], [1, 1], [2, 2], [0, 0]]])
    mask = jnp.array([[True, True, True, True, False]])
    x = jax.random.normal(next(rngs), (1, 5, 3))
    kernel = jnp.zeros((3, 3, 3)).at[0, 0].set(2.0)
    convolve = jax.jit(script.GridConvolution().apply)
    y = convolve({"params": {"kernel": kernel}}, x, mask, cells)
    moved = jnp.stack([0 * x[0, 0], 0 * x[0, 1], x[0, 0], x[0, 2]])
    assert_close(y[0, :4], x[0, :4] + 2 * moved, REFERENCE)


@pytest.mark.slow_except("gated attention, grid")
@pytest.mark.parametrize("name", script.MODELS)
def test_padding_and_other_bags_change_nothing(name):
    model, bags = script.MODELS[name], bags_of(2, count=3, max_size=67)
    params = jax.jit(model.init)(jax.random.key(0), *bags[:3])
    size = bags.mask[1].sum()
    alone = [x[1:2, :size] for x in bags[:3]]
    logits, weights = script.predict(model, params, *bags[:3])
    expected, expected_weights = script.predict(model, params, *alone)
    assert_close(logits[1:2], expected, REFERENCE)
    if weights is not None:
        assert_close(weights[1:2, :size], expected_weights, REFERENCE)
        assert not np.asarray(weights)[~bags.mask].any()


@pytest.mark.slow(minutes=1)
def test_prints_every_model_and_draws_a_bag(capsys, tmp_path):
    picture = tmp_path / "bag.png"
    sizes = ["--seeds=2", "--steps=2", "--batch_size=2", "--max_size=53", "--test_bags=6"]
    script.main([*sizes, f"--picture={picture}"])
    header, *rows = capsys.readouterr().out.splitlines()
    assert "AUC" in header
    assert [row[:26].strip() for row in rows] == list(script.MODELS)
    assert picture.stat().st_size > 1000
