"""How far learners get in a cycle, compared with the stopping rule of a live learner."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.learner import batches_in_time, count_visits, time_is_up
from melisma.simulation.devices import Devices, Durations
from melisma.simulation.timeline import Workload, cycle_timeline
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


def run(left_s: float, missing: int = 2, reserve_s: float = 1.0) -> list[float]:
    durations = Durations(*(np.array([seconds]) for seconds in (0.01, 0.5, 1.0, 1.0)))
    work = Workload(np.array([missing]), np.array([100]), np.array([3]))
    done = cycle_timeline(durations, work, np.array([left_s]), np.array([reserve_s]), BATCH)
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


def test_shards_that_arrive_too_late_are_kept_and_nothing_is_trained() -> None:
    assert run(2.75) == [1.0, 0.75, 0.0, 0.0, 1.5, 0.0]


def test_a_learner_without_time_for_the_model_sends_an_empty_update_at_the_deadline() -> None:
    assert run(0.5) == [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert run(-3.0) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
