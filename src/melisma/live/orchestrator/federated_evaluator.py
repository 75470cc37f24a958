"""How good a model is where the orchestrator has no data of its own: learners say, in sums.

Each scores the model on samples that it holds back from training. Who does not answer in time, or
leaves, is left out of the sum.
"""

import asyncio
from collections.abc import Sequence

from melisma.learning.trainer import Score
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.protocol import EvaluateModel

EMPTY_SCORE = Score(0, 0.0, 0, 0)


class FederatedEvaluator:
    """Scores of one cycle at a time."""

    def __init__(self, seats: Sequence[Mailbox]) -> None:
        self._seats = seats
        self._cycle = 0
        self._scores: dict[int, Score] = {}
        self._changed = asyncio.Event()

    async def score(self, cycle: int, model: str, timeout_s: float) -> Score:
        """The sum of what learners say of that model."""
        self._cycle, self._scores = cycle, {}
        for seat in self._seats:
            if seat.joined:
                seat.put(EvaluateModel(cycle, model))
        try:
            async with asyncio.timeout(timeout_s):
                while any(s.joined and n not in self._scores for n, s in enumerate(self._seats)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        # In the order of learners, so that the sum does not depend on who came first.
        return sum((self._scores[number] for number in sorted(self._scores)), EMPTY_SCORE)

    def add(self, learner: int, cycle: int, score: Score) -> None:
        """What one learner says; too late for another cycle."""
        if cycle == self._cycle:
            self._scores[learner] = score
        self._changed.set()

    def recheck(self) -> None:
        """Somebody is not to be waited for any more."""
        self._changed.set()
