"""Which shards an update covers: those of the dispatch, and of extensions that were trained.

A plan grows by extensions, each with an attempt of its own, and an update names the latest attempt
that its learner has trained on. Shards of later attempts leave the plan. The machine decides by
this rule, and the record of a run follows it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Bools

Integers = NDArray[np.integer[Any]]
ALL_ATTEMPTS = np.iinfo(np.int64).max


class Coverage:
    """The latest attempt that the update of each learner covers; without an update, all of them.

    `count` is more than the number of any learner.
    """

    def __init__(self, count: int, learners: Integers, attempts: Integers) -> None:
        self._last = np.full(count, ALL_ATTEMPTS)
        self._last[learners] = attempts

    def excludes(self, owners: Integers, attempts: Integers) -> Bools:
        """Return which shards, given to these owners in these attempts, no update covers."""
        excluded: Bools = attempts > self._last[owners]
        return excluded
