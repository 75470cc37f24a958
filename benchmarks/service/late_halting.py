"""Learners that notice a deadline only when it has passed, as in the code of the MED study.

They look at the clock before every tenth batch, keep no time for the upload, and upload what they
have. Our learners keep time for the upload and look before every batch. No setting of a task
changes that: `late_halting` replaces the two functions of simulated learners that decide it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from numpy.typing import ArrayLike

from melisma.cycle.learner import CostHistory
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task

CHECKED_BATCHES = 10
LEARNERS = "melisma.simulation.learners"


@contextmanager
def late_halting() -> Iterator[None]:
    """Let simulated learners halt late."""
    with (
        patch(f"{LEARNERS}.simulated_training.reserve_s", _no_reserve_s),
        patch(f"{LEARNERS}.cycle_timeline.batches_in_time", late_batches),
    ):
        yield


def late_batches(
    spare_s: ArrayLike, sample_s: ArrayLike, samples: Ints, passes: Ints, batch: int
) -> Ints:
    """Return the batches that are trained until the deadline is noticed, `spare_s` from now."""
    time_for = np.maximum(np.asarray(spare_s) / np.asarray(sample_s), 0.0)
    per_pass = -(-samples // batch)
    whole_passes = np.floor(time_for / samples)
    in_last = np.minimum(np.ceil((time_for - whole_passes * samples) / batch), per_pass)
    begun = whole_passes * per_pass + in_last
    noticed = CHECKED_BATCHES * np.ceil(begun / CHECKED_BATCHES)
    done: Ints = np.minimum(noticed, passes * per_pass).astype(np.int64)
    return done


def _no_reserve_s(_history: CostHistory | None, _task: Task, down_s: ArrayLike) -> Floats:
    reserve: Floats = np.zeros_like(np.asarray(down_s, dtype=np.float64))
    return reserve
