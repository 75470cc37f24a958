"""A sample of the learners for each cycle: the others wait, and are not asked for anything.

Learners are drawn without replacement, weighted by the cycles since each was drawn, or joined: one
that was left out longer is more likely. Each learner waits for an exponential time with its weight
as the rate, and those with the shortest times are drawn (Efraimidis and Spirakis 2006). The times
depend on the seed, the cycle and the learner only.
"""

from math import ceil

import numpy as np

from melisma.cycle.state import CycleState
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.rng import uniform

# Decimal fractions have no exact binary form: 0.07 of 100 learners are 7, not 8.
ROUNDING = 1e-9


def sample_size(sample: float | None, learners: int) -> int:
    """Return how many learners to draw: an integer is a number, and a float a fraction of them."""
    if sample is None:
        return learners
    count = sample if isinstance(sample, int) else ceil(sample * learners - ROUNDING)
    return min(max(count, 1), learners)


def draw_waits(seed: int, cycle: int, learners: Ints, weights: Floats | float) -> Floats:
    """Return a random time for each learner, shorter with a larger weight."""
    waits: Floats = -np.log1p(-uniform(seed, "sample", cycle, learners)) / weights
    return waits


def draw_learners(state: CycleState) -> None:
    """Draw the learners of this cycle from those that are present; all without a sample."""
    table, sample = state.learners, state.task.sample
    if sample is None:
        return
    present = np.flatnonzero(table.present)
    count = sample_size(sample, present.size)
    if count < present.size:
        weights = np.maximum(state.cycle - table.last_drawn[present], 1)
        waits = draw_waits(state.task.seed, state.cycle, present, weights)
        present = present[np.argpartition(waits, count - 1)[:count]]
    table.drawn[:] = False
    table.drawn[present], table.last_drawn[present] = True, state.cycle


def draw_if_none(state: CycleState) -> None:
    """Draw again if all learners that were drawn have left."""
    if not (state.learners.present & state.learners.drawn).any():
        draw_learners(state)


def await_next_draw(state: CycleState, learners: Ints) -> None:
    """Let learners that join for the first time wait for the next draw."""
    table = state.learners
    if state.task.sample is not None:
        new = learners[table.last_drawn[learners] < 0]
        table.drawn[new], table.last_drawn[new] = False, state.cycle


def draws_all(state: CycleState) -> bool:
    """Return whether all present learners were drawn for this cycle."""
    return not (state.learners.present & ~state.learners.drawn).any()
