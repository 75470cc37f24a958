"""Evaluation by learners: which are asked, and how long the orchestrator waits."""

import asyncio
from math import isfinite, nan
from typing import Any

import pytest

from melisma.learning.trainer import Score
from melisma.live import protocol
from melisma.live.orchestrator.combined_score import CombinedScore
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.mailbox import Mailbox

NEVER_S = 1000.0
SCORE = Score(10, 5.0, 9, 10)
COMBINED = CombinedScore(10, 0.5, 0.9)


def joined_mailboxes(names: str) -> list[Mailbox]:
    """Return mailboxes of learners with 100 samples each."""
    request = protocol.JoinRequest("costs", (50, 50))
    return [Mailbox(name, joined=True, request=request) for name in names]


async def asked(mailbox: Mailbox) -> list[Any]:
    return await mailbox.get(0.001)


async def test_learners_that_are_late_or_at_work_do_not_delay_an_evaluation() -> None:
    """Learner 1 sent no update, learner 2 is at work again, learner 3 has left."""
    mailboxes = joined_mailboxes("abcd")
    mailboxes[2].open_work = 2, 1
    mailboxes[3].joined = False
    evaluator = FederatedEvaluator(mailboxes)
    evaluation = asyncio.create_task(evaluator.evaluate(1, "model", [0, 2, 3], NEVER_S))
    await asyncio.sleep(0)
    assert [await asked(mailbox) for mailbox in mailboxes] == [
        [protocol.EvaluateModel(1, "model")],
        [],
        [],
        [],
    ]
    # Not asked, or not about this cycle.
    for learner in (1, 2, 3):
        evaluator.add(learner, 1, Score(10, 0.0, 10, 10))
    evaluator.add(0, 2, Score(10, 0.0, 10, 10))
    evaluator.add(0, 1, SCORE)
    assert await asyncio.wait_for(evaluation, 10.0) == COMBINED


async def test_a_learner_that_leaves_is_not_awaited() -> None:
    mailboxes = joined_mailboxes("ab")
    evaluator = FederatedEvaluator(mailboxes)
    evaluation = asyncio.create_task(evaluator.evaluate(1, "model", [0, 1], NEVER_S))
    await asyncio.sleep(0)
    evaluator.add(1, 1, SCORE)
    mailboxes[0].joined = False
    evaluator.recheck()
    assert await asyncio.wait_for(evaluation, 10.0) == COMBINED


async def test_without_learners_to_ask_an_evaluation_is_empty() -> None:
    evaluator = FederatedEvaluator(joined_mailboxes("a"))
    assert (await evaluator.evaluate(1, "model", [], NEVER_S)).samples == 0


async def test_one_learner_cannot_reject_a_model_but_most_can() -> None:
    mailboxes = joined_mailboxes("abc")
    evaluator, bad = FederatedEvaluator(mailboxes), Score(10, nan, 0, 10)
    for scores, finite in (((SCORE, bad, SCORE), True), ((bad, bad, SCORE), False)):
        evaluation = asyncio.create_task(evaluator.evaluate(1, "model", [0, 1, 2], NEVER_S))
        await asyncio.sleep(0)
        for learner, score in enumerate(scores):
            evaluator.add(learner, 1, score)
        assert isfinite((await asyncio.wait_for(evaluation, 10.0)).loss) == finite


async def test_an_evaluation_counts_with_at_most_the_samples_that_can_be_held_out() -> None:
    mailboxes = joined_mailboxes("abc")
    evaluator = FederatedEvaluator(mailboxes)
    evaluation = asyncio.create_task(evaluator.evaluate(1, "model", [0, 1, 2], NEVER_S))
    await asyncio.sleep(0)
    evaluator.add(0, 1, Score(100, 100.0, 50, 100))
    evaluator.add(1, 1, Score(100, 100.0, 50, 100))
    evaluator.add(2, 1, Score(10**9, 0.0, 10**9, 10**9))
    combined = await asyncio.wait_for(evaluation, 10.0)
    assert combined.samples == 3 * 12
    assert combined.loss == pytest.approx(2 / 3)
    assert combined.accuracy == pytest.approx(2 / 3)
