import numpy as np

from melisma.cycle import commands
from melisma.simulation.learners.simulated_benchmark import ask_bounds, measure
from tests.simulation.learners.making import make_learners
from tests.simulation.scenarios import LEARNERS, make_fleet


def test_shards_fetched_for_a_benchmark_are_fetched_once() -> None:
    slow = LEARNERS[0] | {"samples_per_s": 5.0}
    learners = make_learners(make_fleet([slow, LEARNERS[1]]), deadline_s=4.0, passes=5)
    ids, nothing = np.arange(2), np.zeros(2, np.int64)
    ask = commands.AskBound(reason="", learners=ids, cycle=1, deadline_s=4.0, held=nothing)
    _, bounds = ask_bounds(learners, ids, 0.0, ask, nothing)
    assert bounds[0] == 0 < bounds[1]
    # The learner with bound 0 repeats its benchmark, on the shards it holds.
    held = learners.caches._held.between(0, 2)[0]
    assert learners.caches.counts.tolist() == np.bincount(held).tolist() == [8, 8]


def test_an_interrupted_benchmark_fetches_only_the_shards_it_had_time_for() -> None:
    slow = [LEARNERS[0] | {"bandwidth_bps": 2e5}]
    learners = make_learners(make_fleet(slow), deadline_s=20.0)
    _, costs = measure(learners, np.arange(1), 0.0, 20.0)
    # It had time for a few of eight shards at 3.2 s each, after 6.7 s for the model.
    assert 1 <= learners.caches.counts[0] < 8
    assert costs[1, 0, 0] > 3


def test_a_third_of_a_benchmark_is_for_fetching() -> None:
    """A shard takes 3.2 s to fetch, the model 6.7 s, and a part of an update 0.9 s to upload."""
    slow = [LEARNERS[0] | {"bandwidth_bps": 2e5}]
    for seconds, shards in ((60.0, 5), (33.0, 2), (6.0, 1)):
        learners = make_learners(make_fleet(slow), deadline_s=seconds)
        measure(learners, np.arange(1), 0.0, seconds)
        assert learners.caches.counts[0] == shards


def test_a_repeated_benchmark_measures_the_link_although_all_its_shards_are_cached() -> None:
    learners = make_learners(make_fleet(), deadline_s=4.0)
    ids = np.arange(len(LEARNERS))
    _, before = measure(learners, ids, 0.0, 4.0)
    spoilt = learners.histories.read(ids)
    for _ in range(2):
        spoilt = spoilt.after(ship_s=20 * before[1, 0])
    learners.histories.write(ids, spoilt)
    _, after = measure(learners, ids, 10.0, 4.0)
    assert after[1].tolist() == before[1].tolist()
    assert np.all(spoilt.ship_s.mean > 10 * after[1, 0])
