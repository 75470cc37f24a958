"""A set of learners as one bit for each, so that a million learners need no million objects."""

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Ints


class LearnerSet(Collection[int]):
    """A set of learners, by number."""

    def __init__(self) -> None:
        self._mask = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._mask))

    def __contains__(self, learner: object) -> bool:
        return isinstance(learner, int) and bool(self.mask(learner + 1)[learner])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __sub__(self, other: "LearnerSet") -> "LearnerSet":
        difference = LearnerSet()
        difference._mask = self._mask & ~other.mask(self._mask.size)
        return difference

    @property
    def numbers(self) -> Ints:
        """The numbers of the learners, ascending."""
        return np.flatnonzero(self._mask)

    def mask(self, count: int) -> NDArray[np.bool_]:
        """Return whether each of the first `count` learners is in the set."""
        missing = count - self._mask.size
        return np.pad(self._mask, (0, missing)) if missing > 0 else self._mask[:count]

    def add(self, learners: Ints) -> None:
        """Add learners to the set."""
        self._mask = self.mask(max(self._mask.size, int(learners.max(initial=-1)) + 1))
        self._mask[learners] = True

    def discard(self, learners: Ints) -> None:
        """Remove learners from the set."""
        self._mask[learners[learners < self._mask.size]] = False

    def clear(self) -> None:
        """Remove all learners."""
        self._mask[:] = False
