"""Simulated learners that notice a deadline only at every tenth batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.service.late_halting import CHECKED_BATCHES, late_batches, late_halting
from benchmarks.service.med_study import by_learners, run
from melisma.simulation.learners import cycle_timeline


def batches_one_by_one(spare_s: float, samples: int, passes: int, batch: int) -> int:
    """Count batches as a learner does whose samples take a second each."""
    now_s, done = 0.0, 0
    for _ in range(passes):
        for first in range(0, samples, batch):
            if done % CHECKED_BATCHES == 0 and now_s >= spare_s:
                return done
            now_s += min(batch, samples - first)
            done += 1
    return done


@given(
    st.integers(-20, 3000).map(float), st.integers(1, 400), st.integers(1, 4), st.integers(1, 50)
)
def test_training_ends_at_the_first_check_after_the_deadline(
    spare_s: float, samples: int, passes: int, batch: int
) -> None:
    counts = np.array([samples]), np.array([passes])
    found = late_batches(np.array([spare_s]), np.ones(1), *counts, batch)
    assert found.tolist() == [batches_one_by_one(spare_s, samples, passes, batch)]


def test_learners_that_halt_late_miss_deadlines_that_others_meet() -> None:
    point = by_learners()[2]
    late, again = (run(point, "mmtt", 5, like_thesis=True) for _ in range(2))
    in_time = run(point, "mmtt", 5)
    assert late is not None
    assert in_time is not None
    assert late == again
    assert late["satisfaction"] < in_time["satisfaction"] == 1.0


def test_late_halting_ends_with_its_block() -> None:
    names = vars(cycle_timeline)
    before = names["batches_in_time"]
    with late_halting():
        assert names["batches_in_time"] is late_batches
    assert names["batches_in_time"] is before
