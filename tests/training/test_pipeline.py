"""Batches: one order for any number of hosts, a pure function of (seed, step)."""

import itertools
import threading

import numpy as np
import pytest

from nystromformer_jax.training import Examples, evaluation_batches, training_batches


def numbers(count):
    return Examples(count, lambda indices: {"number": indices.copy()})


def take(batches, count):
    return [batch["number"].tolist() for batch in itertools.islice(batches, count)]


def take_rows(seed, count):
    batches = training_batches(numbers(31), batch_size=10, seed=seed)
    return list(itertools.chain(*take(batches, count)))


def test_batches_are_the_same_for_any_number_of_hosts():
    one = take(training_batches(numbers(31), batch_size=12, seed=5), 7)
    for hosts in (2, 3, 4):
        shares = [
            take(training_batches(numbers(31), batch_size=12, seed=5, host=host, hosts=hosts), 7)
            for host in range(hosts)
        ]
        joined = [list(itertools.chain(*rows)) for rows in zip(*shares, strict=True)]
        assert joined == one


def test_resuming_needs_the_step_alone():
    whole = take(training_batches(numbers(31), batch_size=12, seed=5), 20)
    for hosts, host in ((1, 0), (3, 2)):
        rows = slice(host * 12 // hosts, (host + 1) * 12 // hosts)
        tail = training_batches(
            numbers(31), batch_size=12, seed=5, start_step=13, host=host, hosts=hosts
        )
        assert take(tail, 7) == [batch[rows] for batch in whole[13:]]


def test_every_epoch_has_every_example_in_another_order():
    rows = take_rows(5, 31)
    epochs = [rows[i : i + 31] for i in range(0, 310, 31)]
    assert all(sorted(epoch) == list(range(31)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 10
    assert rows != take_rows(6, 31)


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 6, 11, 12, 13, 31])
def test_evaluation_has_every_example_once_on_equally_many_batches(hosts, count):
    shares = [
        list(evaluation_batches(numbers(count), batch_size=6, host=host, hosts=hosts))
        for host in range(hosts)
    ]
    assert {len(share) for share in shares} == {-(-count // 6)}
    real = [
        number
        for batch in itertools.chain(*shares)
        for number, weight in zip(batch["number"], batch["weights"], strict=True)
        if weight
    ]
    assert sorted(real) == list(range(count))
    assert all(batch["weights"].dtype == np.float32 for batch in itertools.chain(*shares))
    assert all(batch["number"].shape == (6 // hosts,) for batch in itertools.chain(*shares))


def test_limit_takes_the_first_examples():
    batches = list(evaluation_batches(numbers(31), batch_size=6, limit=8))
    assert sum(batch["weights"].sum() for batch in batches) == 8
    assert batches[1]["number"].tolist() == [6, 7, 7, 7, 7, 7]
    assert (
        sum(b["weights"].sum() for b in evaluation_batches(numbers(31), batch_size=6, limit=99))
        == 31
    )


def test_training_batches_carry_weights_of_one():
    batch = next(training_batches(numbers(31), batch_size=12, seed=5))
    np.testing.assert_array_equal(batch["weights"], np.ones(12, np.float32))


def test_one_thread_reads_ahead_and_ends():
    readers, fetched = set(), []

    def make_batch(indices):
        readers.add(threading.current_thread())
        fetched.append(len(indices))
        return {"number": indices}

    batches = training_batches(Examples(31, make_batch), batch_size=4, seed=0)
    take(batches, 9)
    (reader,) = readers
    assert reader is not threading.current_thread()
    assert len(fetched) <= 9 + 3
    batches.close()
    reader.join(timeout=60)
    assert not reader.is_alive()


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(ValueError, match="a batch of 10 cannot be shared by 3 hosts"):
        next(training_batches(numbers(31), batch_size=10, seed=0, hosts=3))
    with pytest.raises(ValueError, match="at least one example"):
        next(evaluation_batches(numbers(0), batch_size=10))
