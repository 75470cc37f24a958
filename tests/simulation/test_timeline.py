"""What devices do in a cycle, beside a live learner's own rule for when to stop."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.learner import batches_in_time, time_is_up, visits_of
from melisma.simulation.devices import Durations
from melisma.simulation.timeline import Workload, cycle_timeline

BATCH = 8


def asked_before_every_batch(spare_s: float, sample_s: float, samples: int, passes: int) -> int:
    """As the live trainer asks: with what the last batch took kept as well."""
    sizes = [min(BATCH, samples - start) for start in range(0, samples, BATCH)] * passes
    now_s = last_s = 0.0
    for begun, size in enumerate(sizes):
        if time_is_up(spare_s - now_s, last_s):
            return begun
        last_s = size * sample_s
        now_s += last_s
    return len(sizes)


@given(st.integers(-4, 200), st.integers(1, 40), st.integers(1, 4), st.booleans())
def test_as_many_batches_are_begun_as_a_live_learner_begins(
    spare: int, samples: int, passes: int, between: bool
) -> None:
    # In whole samples or between two, so that rounding decides nothing.
    spare_s, sample_s = spare + 0.5 * between, 1.0
    one = np.array([samples]), np.array([passes])
    found = batches_in_time(np.array([spare_s]), np.array([sample_s]), *one, BATCH)
    assert found.tolist() == [asked_before_every_batch(spare_s, sample_s, samples, passes)]
    sizes = [min(BATCH, samples - start) for start in range(0, samples, BATCH)] * passes
    assert visits_of(found, one[0], BATCH).tolist() == [sum(sizes[: int(found[0])])]


def run(left_s: float, missing: int = 2, kept_s: float = 1.0) -> list[float]:
    takes = Durations(np.array([0.01]), np.array([0.5]), np.array([1.0]))
    given_work = Workload(np.array([missing]), np.array([100]), np.array([3]))
    done = cycle_timeline(takes, given_work, np.array([left_s]), np.array([kept_s]), BATCH)
    parts = (done.down_s, done.fetch_s, done.train_s, done.up_s, done.came, done.visits)
    return [float(part[0]) for part in parts]


def test_a_cycle_with_time_enough_is_done_to_the_end() -> None:
    assert run(10.0) == [1.0, 1.0, 3.0, 1.0, 2.0, 300.0]


def test_training_stops_so_early_that_the_upload_is_in_time() -> None:
    down_s, fetch_s, train_s, up_s, _, visits = run(4.0)
    assert down_s + fetch_s + train_s + up_s <= 4.0
    assert 0 < visits < 300


def test_shards_that_come_too_late_are_kept_and_nothing_is_trained() -> None:
    assert run(2.75) == [1.0, 0.75, 0.0, 0.0, 1.5, 0.0]


def test_who_has_no_time_for_the_model_hands_in_nothing_at_the_deadline() -> None:
    assert run(0.5) == [0.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert run(-3.0) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
