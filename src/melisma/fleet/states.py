"""Costs of devices whose operating states and their probabilities are known.

All costs of a cycle are those of the same state, so the quantile of each cost alone would be too
low: a state that slows training and another that slows the link would both be left out, although
one of the two is likely. Instead states are left out, the slowest first, while the probability of
the others is at least `caution`, and each cost is its maximum over the states that remain. A cycle
in one of these takes no longer than planned, for any number of shards and passes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.estimates import check_caution
from melisma.fleet.rng import uniform

# Sums of probabilities may miss 1 by this much, since files give them rounded.
PROBABILITY_TOLERANCE = 1e-6


def cycle_states(cycle: int, probability: Floats, seed: int, learners: Ints) -> Ints:
    """Return the state of each learner in a cycle; the same for one learner alone as among many."""
    return choose_states(probability, uniform(seed, "state", cycle, learners))


def choose_states(probability: Floats, numbers: Floats) -> Ints:
    """Return the state of each learner, from probabilities (learners by states) and uniforms."""
    cumulative = np.cumsum(probability, axis=1)
    # Scale by the sum, which rounding may leave below 1: no state of probability 0 is drawn.
    before = cumulative[:, :-1] <= numbers[:, None] * cumulative[:, -1:]
    return np.asarray(before.sum(axis=1, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class StateCosts:
    """The three costs of a cycle and the probability of each state, learners by states.

    `typical_s` is the seconds of a cycle of typical size in each state, by which states are ranked.
    """

    probability: Floats
    typical_s: Floats
    train_s: Floats
    ship_s: Floats
    fixed_s: Floats

    def costs(self) -> dict[str, Floats]:
        """Return each cost by name, learners by states."""
        return {"train_s": self.train_s, "ship_s": self.ship_s, "fixed_s": self.fixed_s}

    def mean(self) -> dict[str, Floats]:
        """Return the mean of each cost by name (Eq. 4.3 of Mays' thesis is linear in them)."""
        return {name: (self.probability * row).sum(axis=1) for name, row in self.costs().items()}

    def in_states(self, state: Ints) -> dict[str, Floats]:
        """Return each cost by name, with each learner in the state given by its number."""
        at = np.arange(state.size), state
        return {name: row[at] for name, row in self.costs().items()}

    def quantile(
        self,
        share: float,
        *,
        trained: ArrayLike = 1,  # noqa: ARG002 - holds for any load
        fetched: ArrayLike = 1,  # noqa: ARG002
    ) -> dict[str, Floats]:
        """Return each cost by name; a cycle takes longer with probability 1 - `share` at most.

        This holds for a cycle of any size.
        """
        check_caution(share)
        kept = self._likely_states(share)
        return {
            name: np.where(kept, row, 0.0).max(axis=1, initial=0.0)
            for name, row in self.costs().items()
        }

    def _likely_states(self, share: float) -> NDArray[np.bool_]:
        """Return a mask of the fastest states whose total probability reaches `share`."""
        order = np.argsort(self.typical_s, axis=1, kind="stable")
        likely = np.take_along_axis(self.probability, order, axis=1)
        faster = np.cumsum(likely, axis=1) - likely
        kept = np.zeros(order.shape, dtype=np.bool_)
        threshold = max(share - PROBABILITY_TOLERANCE, 1e-300)
        np.put_along_axis(kept, order, (faster < threshold) & (likely > 0), axis=1)
        return kept
