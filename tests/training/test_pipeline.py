"""Batches: one order for any number of hosts, a pure function of (seed, step)."""

import dataclasses
import itertools
import threading

import grain
import numpy as np
import pytest

from nystromformer_jax.training import Examples, evaluation_batches, training_batches
from nystromformer_jax.training.pipeline import GROUP


def numbers(count):
    return Examples(count, lambda indices: {"number": indices.copy()})


def ragged(count):
    """Examples of 3 to 999 tokens; each batch records the `longest` that it was given."""
    lengths = np.random.default_rng(0).integers(3, 1000, count)

    def make_batch(indices, longest):
        return {"number": indices.copy(), "longest": np.full(len(indices), longest)}

    return Examples(count, make_batch, lengths)


EXAMPLES = {"equal": numbers(31), "ragged": ragged(331)}
some_examples = pytest.mark.parametrize("examples", EXAMPLES.values(), ids=EXAMPLES)


def shares(batches_of, examples, hosts, **options):
    """The batches of each host, joined."""
    parts = [batches_of(examples, shard=host, num_shards=hosts, **options) for host in range(hosts)]
    for batches in zip(*parts, strict=True):
        yield {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def take(batches, count):
    return [batch["number"].tolist() for batch in itertools.islice(batches, count)]


@some_examples
def test_batches_are_the_same_for_any_number_of_hosts(examples):
    """So is the longest length, to which the rows of all hosts are padded."""
    options = {"batch_size": 12, "seed": 5}
    count = 7 if examples.lengths is None else GROUP + 7
    one = list(itertools.islice(training_batches(examples, **options), count))
    for hosts in (2, 3):
        together = shares(training_batches, examples, hosts, **options)
        for whole, batch in zip(one, itertools.islice(together, count), strict=True):
            assert batch.keys() == whole.keys()
            for name in whole:
                np.testing.assert_array_equal(batch[name], whole[name])
    if examples.lengths is not None:
        assert all(set(x["longest"]) == {examples.lengths[x["number"]].max()} for x in one)


@some_examples
def test_a_batch_depends_only_on_seed_and_number(examples):
    options = {"batch_size": 12, "seed": 5}
    whole = take(training_batches(examples, **options), GROUP + 4)
    for start, host, hosts in ((1, 0, 1), (13, 2, 3), (GROUP + 3, 1, 2)):
        rows = slice(host * 12 // hosts, (host + 1) * 12 // hosts)
        tail = training_batches(examples, start_step=start, shard=host, num_shards=hosts, **options)
        assert take(tail, 1) == [whole[start][rows]]
    assert take(training_batches(examples, batch_size=12, seed=6), 5) != whole[:5]


@some_examples
def test_evaluation_has_every_example_once_in_equally_many_batches(examples):
    """In order, or sorted by length."""
    for hosts, limit in itertools.product((1, 2, 3), (0, 1, 6, 13, 999)):
        options = {"batch_size": 6, "limit": limit}
        batches = list(shares(evaluation_batches, examples, hosts, **options))
        scored = min(limit or examples.count, examples.count)
        assert len(batches) == -(-scored // 6)
        real = np.concatenate([batch["number"][batch["weights"] == 1] for batch in batches])
        assert sorted(real) == list(range(scored))
        assert sum(batch["weights"].sum() for batch in batches) == scored
        assert {batch["weights"].dtype for batch in batches} == {np.dtype(np.float32)}
        if examples.lengths is None:
            assert real.tolist() == list(range(scored))
            continue
        assert (np.diff(examples.lengths[real]) >= 0).all()
        for batch in batches:
            assert set(batch["longest"]) == {examples.lengths[batch["number"]].max()}


def test_a_curriculum_is_read_first_once_and_in_order():
    easier = Examples(31, lambda indices: {"number": indices + 1000})
    examples = dataclasses.replace(numbers(31), curriculum=easier)
    whole = take(training_batches(examples, batch_size=12, seed=5), 5)
    rest = take(training_batches(numbers(31), batch_size=12, seed=5), 3)
    assert whole == [list(range(1000, 1012)), list(range(1012, 1024)), *rest]
    resumed = training_batches(examples, batch_size=12, seed=5, start_step=1, shard=1, num_shards=2)
    assert take(resumed, 4) == [batch[6:] for batch in whole[1:]]


def old_rows(count, *, batch_size, seed, shard, num_shards, start_step, batches):
    """The batches of grain without lengths."""
    order = grain.MapDataset.range(count).seed(seed).shuffle().repeat()
    mine = order.batch(batch_size // num_shards)
    mine = mine.slice(slice(start_step * num_shards + shard, None, num_shards))
    return [mine[i].tolist() for i in range(batches)]


def test_rows_without_lengths_equal_those_of_grain():
    options = {"batch_size": 12, "seed": 5, "shard": 1, "num_shards": 3, "start_step": 3}
    rows = take(training_batches(numbers(31), **options), 11)
    assert rows == old_rows(31, **options, batches=11)


def test_one_thread_prefetches_and_ends():
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


class TestLengths:
    """Batches of similar length."""

    COUNT, BATCH = 331, 8

    def batches(self, count=2 * GROUP, seed=5, **options):
        batches = training_batches(ragged(self.COUNT), batch_size=self.BATCH, seed=seed, **options)
        return list(itertools.islice(batches, count))

    def test_a_group_of_batches_has_the_examples_of_its_interval(self):
        rows = np.concatenate([batch["number"] for batch in self.batches(5 * GROUP)])
        (order,) = old_rows(
            self.COUNT, batch_size=len(rows), seed=5, shard=0, num_shards=1, start_step=0, batches=1
        )
        stretch = GROUP * self.BATCH
        for start in range(0, len(rows), stretch):
            group = slice(start, start + stretch)
            assert sorted(rows[group]) == sorted(order[group])
        # An epoch may end inside a group, so some examples occur once more than others.
        assert set(np.bincount(rows, minlength=self.COUNT)) == {3, 4}

    @pytest.mark.parametrize(("count", "most"), [(40, 2), (5, 3)])
    def test_groups_of_few_examples_are_not_longer_than_an_epoch(self, count, most):
        """A batch has an example more than once only if an epoch ends inside it."""
        batches = take(training_batches(ragged(count), batch_size=self.BATCH, seed=5), 20)
        if count == 40:
            epochs = np.concatenate(batches).reshape(-1, count)
            assert all(len(set(epoch)) == count for epoch in epochs.tolist())
        assert max(np.bincount(batch).max() for batch in batches) <= most

    def test_rows_have_similar_lengths_and_batches_are_shuffled(self):
        lengths = ragged(self.COUNT).lengths
        sorted_rows = [lengths[batch["number"]] for batch in self.batches()]
        shuffled = take(training_batches(numbers(self.COUNT), batch_size=8, seed=5), 2 * GROUP)
        spread = lambda batches: np.mean([np.ptp(batch) for batch in batches])
        assert spread(sorted_rows) < 0.1 * spread([lengths[rows] for rows in shuffled])
        for group in (sorted_rows[:GROUP], sorted_rows[GROUP:]):
            steps = np.diff([rows.max() for rows in group])
            assert 0.2 < (steps > 0).mean() < 0.8


def test_rejects_batches_that_cannot_be_divided():
    with pytest.raises(ValueError, match="multiple of 3"):
        next(training_batches(numbers(31), batch_size=10, seed=0, num_shards=3))
    with pytest.raises(ValueError, match="at least one example"):
        next(evaluation_batches(numbers(0), batch_size=10))
