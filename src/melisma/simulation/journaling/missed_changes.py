"""Joins and departures of learners that the orchestrator misses while it is down."""

import numpy as np

from melisma.fleet.array_types import Ints


class MissedChanges:
    """The latest change of each learner: it wants to join, or it has left for a reason."""

    def __init__(self) -> None:
        self._joined = set[int]()
        self._left = dict[int, str]()

    def join(self, learners: Ints) -> None:
        """Record learners that want to join."""
        self._joined.update(learners.tolist())
        for learner in learners.tolist():
            self._left.pop(learner, None)

    def leave(self, learners: Ints, reason: str) -> None:
        """Record learners that have left."""
        self._joined.difference_update(learners.tolist())
        self._left |= dict.fromkeys(learners.tolist(), reason)

    def take_joined(self) -> Ints:
        """Return learners that want to join, in order, and forget them."""
        joined, self._joined = self._joined, set()
        return np.array(sorted(joined), np.int64)

    def take_left(self) -> dict[str, Ints]:
        """Return learners that have left, by reason, and forget them."""
        left, self._left = self._left, {}
        reasons = dict.fromkeys(left.values())
        return {
            reason: np.array(sorted(n for n, why in left.items() if why == reason), np.int64)
            for reason in reasons
        }
