"""How far learners get in a cycle, compared with the stopping rule of a live learner."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.learner import batches_in_time, count_visits, time_is_up
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.variation import Noise, Variation, VaryingLearners
from melisma.simulation.learners.cycle_timeline import Workload, cycle_timeline
from melisma.simulation.learners.devices import Devices, Durations, VaryingRates
from tests.simulation.scenarios import make_fleet, make_task

BATCH = 8
BUSY = {"state": [{"probability": 1.0, "bandwidth": 0.5}]}


def count_batches(spare_s: float, sample_s: float, samples: int, passes: int) -> int:
    """Check before every batch, as the live trainer does; the last batch's time is kept too."""
    sizes = [min(BATCH, samples - start) for start in range(0, samples, BATCH)] * passes
    now_s = last_s = 0.0
    for begun, size in enumerate(sizes):
        if time_is_up(spare_s - now_s, last_s):
            return begun
        last_s = size * sample_s
        now_s += last_s
    return len(sizes)


@given(st.integers(-4, 200), st.integers(1, 40), st.integers(1, 4), st.booleans())
def test_a_simulated_learner_begins_as_many_batches_as_a_live_one(
    spare: int, samples: int, passes: int, half: bool
) -> None:
    # Whole or half samples, so that rounding has no effect.
    spare_s, sample_s = spare + 0.5 * half, 1.0
    work = np.array([samples]), np.array([passes])
    batches = batches_in_time(np.array([spare_s]), np.array([sample_s]), *work, BATCH)
    assert batches.tolist() == [count_batches(spare_s, sample_s, samples, passes)]
    sizes = [min(BATCH, samples - start) for start in range(0, samples, BATCH)] * passes
    assert count_visits(batches, work[0], BATCH).tolist() == [sum(sizes[: int(batches[0])])]


def run(
    left_s: float,
    missing: int = 2,
    reserve_s: float = 1.0,
    setup_s: float = 0.0,
    **rules: bool,
) -> list[float]:
    durations = Durations(*(np.array([seconds]) for seconds in (0.01, 0.5, 1.0, 1.0)))
    four, few, samples, three = (np.array([number]) for number in (4, missing, 100, 3))
    work = Workload(four, few, samples, three, np.array([setup_s]))
    task = make_task(batch=BATCH, **rules)
    done = cycle_timeline(durations, work, np.array([left_s]), np.array([reserve_s]), task)
    columns = (done.down_s, done.fetch_s, done.train_s, done.up_s, done.fetched, done.visits)
    return [float(column[0]) for column in columns]


def test_model_and_shards_use_the_downlink_and_the_update_the_uplink() -> None:
    link: dict[str, Any] = {"bandwidth_bps": 8e6, "uplink_bps": 2e6, "samples_per_s": 1.0}
    task, fleet = make_task(), make_fleet([link | {"name": "a"}, link | {"name": "b"} | BUSY])
    durations = Devices(task, fleet).durations(np.arange(2), np.ones(2))
    model_s, shard_s = 8 * task.model_bytes / 8e6, 8 * task.shard_bytes / 8e6
    np.testing.assert_allclose(durations.model_down_s, [model_s, 2 * model_s])
    np.testing.assert_allclose(durations.ship_s, [shard_s, 2 * shard_s])
    np.testing.assert_allclose(durations.model_up_s, [4 * model_s, 8 * model_s])


def test_a_cycle_with_enough_time_is_completed() -> None:
    assert run(10.0) == [1.0, 1.0, 3.0, 1.0, 2.0, 300.0]


def test_training_stops_early_enough_to_upload_in_time() -> None:
    down_s, fetch_s, train_s, up_s, _, visits = run(4.0)
    assert down_s + fetch_s + train_s + up_s <= 4.0
    assert 0 < visits < 300


def test_set_up_takes_time_from_training() -> None:
    assert run(10.0, setup_s=2.0) == run(10.0)
    *_, visits = run(4.5)
    assert run(5.5, setup_s=1.0)[-1] == visits
    assert run(3.5, setup_s=1.0) == [1.0, 1.0, 0.0, 0.0, 2.0, 0.0]


def test_phases_take_as_long_as_the_rates_from_their_beginning_allow() -> None:
    """The link is at half its rate from 1 s on, and compute at half its rate from 4 s on."""
    noise = Noise(*(np.array([value]) for value in (0.0, 0.0, 1.0, 1.0, 0.0)))

    class Slowing(VaryingLearners):
        def rate(self, resource: Any, which: Ints, at_s: Floats) -> tuple[Floats, Floats]:
            begins_s = 4.0 if resource == "compute" else 1.0
            slow = at_s >= begins_s
            return np.where(slow, 0.5, 1.0), np.where(slow, np.inf, begins_s)

    variation = Variation(1, np.array([0]), noise, np.array([-1]))
    slowing = Slowing(variation, np.array([0]))
    rates = VaryingRates(slowing, np.zeros(1), np.ones(1), np.array([0.25]))
    durations = Durations(*(np.array([seconds]) for seconds in (0.01, 0.5, 1.0, 1.0)))
    two, samples, three = (np.array([number]) for number in (2, 100, 3))
    work = Workload(two, two, samples, three, np.zeros(1))
    task = make_task(batch=BATCH)
    done = cycle_timeline(durations, work, np.array([99.0]), np.ones(1), task, rates)
    # Two latencies of 0.25 s and 0.5 s of transfer; 1.5 s of 3 s before 4 s; 0.25 and 0.75 s.
    assert [x.tolist() for x in (done.down_s, done.fetch_s, done.train_s, done.up_s)] == [
        [1.0],
        [1.5],
        [pytest.approx(4.5)],
        [1.75],
    ]
    assert done.visits.tolist() == [300]
    early = cycle_timeline(durations, work, np.array([3.0]), np.ones(1), task, rates)
    # One second is left: 0.5 s of latency and 0.25 s of the transfer.
    assert early.fetch_s.tolist() == [1.0]
    assert early.fetched.tolist() == [pytest.approx(2 * (0.5 + 0.25))]


def test_shards_that_arrive_too_late_are_kept_and_nothing_is_trained() -> None:
    assert run(2.75) == [1.0, 0.75, 0.0, 0.0, 1.5, 0.0]


def test_with_overlap_training_waits_only_for_the_first_shard() -> None:
    assert run(10.0, overlap=True) == [1.0, 0.25, 3.0, 1.0, 2.0, 300.0]
    assert run(10.0, missing=4, overlap=True) == [1.0, 1.25, 3.0, 1.0, 4.0, 300.0]
    _, fetch_s, _, _, fetched, visits = run(2.75, missing=4, overlap=True)
    assert (fetch_s, fetched) == (0.5, 1.5)
    assert visits == 24


def test_with_extension_training_goes_on_until_it_has_to_stop() -> None:
    down_s, fetch_s, train_s, up_s, fetched, visits = run(
        10.0, missing=4, overlap=True, extension=True
    )
    assert (down_s, fetch_s, up_s, fetched) == (1.0, 0.5, 1.0, 4.0)
    assert 7.5 - BATCH * 0.01 <= train_s <= 7.5
    assert visits > 300


def test_a_learner_without_time_for_the_model_sends_an_empty_update_at_the_deadline() -> None:
    assert run(0.5) == [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert run(-3.0) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
