"""Probabilities of operating states: those of the fleet file, or estimated by each learner.

A learner that estimates them knows which states it has, and which of them it was in. Its estimate
is the posterior mean under a uniform Dirichlet prior: before its first cycle all of its states are
equally likely, and after n cycles, n_k of them in state k of K, that state has (n_k + 1) / (n + K).
"""

from typing import Literal

import numpy as np

from melisma.fleet.array_types import Floats, Ints

ProbabilitySource = Literal["given", "estimated"]


class ObservedStates:
    """The probabilities of states that learners know, and how often each was in which state.

    `given` are the probabilities of the fleet file, learners by states; a state of probability 0
    does not exist. `counts` has the shape of `given`; `counted_in` is the last cycle that counted
    for each learner.
    """

    def __init__(self, given: Floats, source: ProbabilitySource) -> None:
        self._given, self._source = given, source
        self.counts = np.zeros(given.shape, np.int64)
        self.counted_in = np.zeros(given.shape[0], np.int64)

    def count(self, cycle: int, learners: Ints, states: Ints) -> None:
        """Count the states of learners that begin their work of a cycle; once for each cycle."""
        first = self.counted_in[learners] < cycle
        self.counts[learners[first], states[first]] += 1
        self.counted_in[learners] = np.maximum(self.counted_in[learners], cycle)

    def probability(self, learners: Ints) -> Floats:
        """Return the probability of each state that these learners reckon with."""
        given = self._given[learners]
        if self._source == "given":
            return given
        weight = np.where(given > 0, self.counts[learners] + 1.0, 0.0)
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))
