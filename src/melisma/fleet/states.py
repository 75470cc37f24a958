"""Costs of devices whose operating states, and how likely each is, are known.

A cycle's seconds add up costs of one and the same state, so quantiles of single costs do not do:
a state that slows training and another that slows the link would both be left out, and together
they are likely. Instead states are left out one by one, the slowest first, as long as the rest is
as likely as `caution`. Each cost is the largest in the states that stay: whatever the shards and
passes, a cycle in one of these takes no longer than planned.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.estimates import check_caution
from melisma.fleet.rng import uniform

# What sums of probabilities may lack by rounding, and by the digits in which files give them.
ROUNDING = 1e-6


def cycle_states(cycle: int, chances: Floats, seed: int, learners: Ints) -> Ints:
    """The states of these learners in a cycle; a device by itself finds its own as all find it."""
    return choose_states(chances, uniform(seed, "state", cycle, learners))


def choose_states(chances: Floats, numbers: Floats) -> Ints:
    """The state of each learner, by its chances, learners by states, and a number from 0 to 1."""
    passed = np.cumsum(chances, axis=1)
    # By their sum, which may lack what files round: a state that never happens is not drawn.
    before = passed[:, :-1] <= numbers[:, None] * passed[:, -1:]
    return np.asarray(before.sum(axis=1, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class StateCosts:
    """The three costs of a cycle, learners by states, and how likely each state is.

    `typical_s` is what a cycle of usual size takes in each state; by it one is slower than another.
    """

    probability: Floats
    typical_s: Floats
    train_s: Floats
    ship_s: Floats
    fixed_s: Floats

    def costs(self) -> dict[str, Floats]:
        """Each cost by name, learners by states."""
        return {"train_s": self.train_s, "ship_s": self.ship_s, "fixed_s": self.fixed_s}

    def mean(self) -> dict[str, Floats]:
        """Each cost by name, as expected (Eq. 4.3 of Mays' thesis is linear in them)."""
        return {name: (self.probability * row).sum(axis=1) for name, row in self.costs().items()}

    def in_states(self, state: Ints) -> dict[str, Floats]:
        """Each cost by name, with each learner in the state of that number."""
        at = np.arange(state.size), state
        return {name: row[at] for name, row in self.costs().items()}

    def quantile(self, share: float) -> dict[str, Floats]:
        """Each cost by name; no cycle exceeds all three together more often than 1 - `share`."""
        check_caution(share)
        kept = self._likely_states(share)
        return {
            name: np.where(kept, row, 0.0).max(axis=1, initial=0.0)
            for name, row in self.costs().items()
        }

    def _likely_states(self, share: float) -> NDArray[np.bool_]:
        """The fastest states that are together as likely as `share`."""
        order = np.argsort(self.typical_s, axis=1, kind="stable")
        likely = np.take_along_axis(self.probability, order, axis=1)
        faster = np.cumsum(likely, axis=1) - likely
        kept = np.zeros(order.shape, dtype=np.bool_)
        np.put_along_axis(
            kept, order, (faster < max(share - ROUNDING, 1e-300)) & (likely > 0), axis=1
        )
        return kept
