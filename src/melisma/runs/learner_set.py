"""A set of learners as one mark for each, so that a million of them are no million objects."""

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.ragged import Ints


class LearnerSet(Collection[int]):
    """Some of the learners, by number."""

    def __init__(self) -> None:
        self._marks = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._marks))

    def __contains__(self, learner: object) -> bool:
        return isinstance(learner, int) and bool(self.mask(learner + 1)[learner])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __sub__(self, other: "LearnerSet") -> "LearnerSet":
        rest = LearnerSet()
        rest._marks = self._marks & ~other.mask(self._marks.size)
        return rest

    @property
    def numbers(self) -> Ints:
        """Who they are, in order."""
        return np.flatnonzero(self._marks)

    def mask(self, count: int) -> NDArray[np.bool_]:
        """For each of the first so many learners whether it is one of them."""
        missing = count - self._marks.size
        return np.pad(self._marks, (0, missing)) if missing > 0 else self._marks[:count]

    def add(self, learners: Ints) -> None:
        """These too."""
        self._marks = self.mask(max(self._marks.size, int(learners.max(initial=-1)) + 1))
        self._marks[learners] = True

    def discard(self, learners: Ints) -> None:
        """Without these."""
        self._marks[learners[learners < self._marks.size]] = False

    def clear(self) -> None:
        """Nobody."""
        self._marks[:] = False
