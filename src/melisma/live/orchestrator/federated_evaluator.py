"""Evaluation by the learners, where the orchestrator has no test data.

Each learner evaluates the model on samples that it holds back from training and reports sums. Only
learners whose update was averaged in the cycle are asked, unless they are at work again: others are
late or left out, and waiting for them would delay the next cycle. A learner that was not asked,
leaves or does not answer in time is not part of the result.
"""

import asyncio
from collections.abc import Iterable, Sequence

from melisma.backports import timeout
from melisma.learning.data.partition import HOLDOUT_EVERY
from melisma.learning.trainer import Score
from melisma.live.orchestrator.combined_score import CombinedScore, combine_scores
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.protocol import EvaluateModel


class FederatedEvaluator:
    """Collects the scores of one cycle at a time."""

    def __init__(self, mailboxes: Sequence[Mailbox]) -> None:
        self._mailboxes = mailboxes
        self._cycle = 0
        self._asked: list[int] = []
        self._scores: dict[int, Score] = {}
        self._changed = asyncio.Event()

    async def evaluate(
        self, cycle: int, model: str, learners: Iterable[int], timeout_s: float
    ) -> CombinedScore:
        """Ask those of the learners that are not at work for their scores of `model`; combine them.

        Scores that have not come after `timeout_s` are not part of the result.
        """
        self._cycle, self._scores = cycle, {}
        boxes = self._mailboxes
        self._asked = [k for k in learners if is_idle(boxes[k])]
        for learner in self._asked:
            boxes[learner].put(EvaluateModel(cycle, model))
        try:
            async with timeout(timeout_s):
                while self._is_waiting():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        # In the order of learners, so that the sum does not depend on the order of arrival.
        numbers = sorted(self._scores)
        limits = [most_held_out(boxes[learner].declared_samples) for learner in numbers]
        return combine_scores([self._scores[learner] for learner in numbers], limits)

    def add(self, learner: int, cycle: int, score: Score) -> None:
        """Add the score of a learner; ignore one that it was not asked for, or of another cycle."""
        if cycle == self._cycle and learner in self._asked:
            self._scores[learner] = score
        self._changed.set()

    def recheck(self) -> None:
        """Check again whether a score is missing, after a learner has left."""
        self._changed.set()

    def _is_waiting(self) -> bool:
        return any(
            is_joined(self._mailboxes[learner]) and learner not in self._scores
            for learner in self._asked
        )


def is_joined(mailbox: Mailbox) -> bool:
    """Return whether a learner has joined and does not restart."""
    return mailbox.joined and not mailbox.restarts


def is_idle(mailbox: Mailbox) -> bool:
    """Return whether a learner has joined and has no work."""
    return is_joined(mailbox) and mailbox.open_work is None


def most_held_out(declared_samples: int) -> int:
    """Return the samples that a learner holds out which trains on `declared_samples` others."""
    return -(-declared_samples // (HOLDOUT_EVERY - 1))
