import numpy as np
import pytest

from tests.examples.scripts import load

pytest.importorskip("optax", reason="needs the extra `lra`")
script = load("long_regression_nnx")


def errors(printed):
    return [float(line[22:27]) for line in printed.splitlines()[1:]]


@pytest.mark.slow(minutes=0.2)
def test_recording_is_signal_plus_offset_and_references_are_zero(rngs):
    read, true = script.recordings(next(rngs), 5, 257, noise=0)
    reference = read[..., 1] == 1
    assert reference.any(axis=1).all()
    assert (true[reference] == 0).all()
    offset = np.asarray(read[..., 0] - true)
    assert np.ptp(offset, axis=1).max() < 1e-6
    assert np.ptp(offset, axis=0).min() > 0.1


@pytest.mark.slow(minutes=2)
def test_far_references_remove_most_of_the_error(capsys):
    script.main(["--length=1024"])
    as_read, near, all_samples = errors(capsys.readouterr().out)
    assert all_samples < near / 2 < as_read / 2
