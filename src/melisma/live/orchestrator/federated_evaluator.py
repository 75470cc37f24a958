"""How good a model is where the orchestrator has no data of its own: learners say, in sums.

Each scores the model on samples that it holds back from training. Who does not answer in time, or
leaves, is left out of the sum.
"""

import asyncio
from collections.abc import Sequence

from melisma.learning.trainer import Score
from melisma.live.orchestrator.mailbox import Seat
from melisma.live.protocol import Judge

NOTHING = Score(0, 0.0, 0, 0)


class Jury:
    """Scores of one cycle at a time."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats
        self._cycle = 0
        self._scores: dict[int, Score] = {}
        self._news = asyncio.Event()

    async def score(self, cycle: int, model: str, timeout_s: float) -> Score:
        """The sum of what learners say of that model."""
        self._cycle, self._scores = cycle, {}
        for seat in self._seats:
            if seat.here:
                seat.give(Judge(cycle, model))
        try:
            async with asyncio.timeout(timeout_s):
                while any(s.here and n not in self._scores for n, s in enumerate(self._seats)):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        # In the order of learners, so that the sum does not depend on who came first.
        return sum((self._scores[number] for number in sorted(self._scores)), NOTHING)

    def told(self, learner: int, cycle: int, score: Score) -> None:
        """What one learner says; too late for another cycle."""
        if cycle == self._cycle:
            self._scores[learner] = score
        self._news.set()

    def left(self) -> None:
        """Somebody is not to be waited for any more."""
        self._news.set()
