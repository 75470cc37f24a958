"""Tasks that were submitted, but not confirmed yet: their owner sees first what they would cost.

The devices prepare the task and measure their costs of it. With these, and those of the other
tasks, the candidates are computed. Until it is confirmed, the service does not plan the task.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from melisma.fleet.array_types import NO_INTS, Floats, Ints
from melisma.live.service.task_host import TaskHost
from melisma.service import events
from melisma.service.commands import PlanRound
from melisma.service.plan_candidates import (
    LIMIT_S,
    PlanCandidate,
    Submission,
    find_candidates,
)
from melisma.service.service_state import ServiceState, SharesRequest, TaskRecord

MEASURING_S: Final = 300.0
"""The longest time in which devices prepare a task and measure their costs of it."""
EXPIRY_S: Final = 900.0
"""Time after which a task that was not confirmed is withdrawn."""


@dataclass(eq=False)
class Proposal:
    """A task that is not confirmed yet, and the shares that it requests once they are known."""

    host: TaskHost
    request: events.SharesRequested | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def set_request(self, request: events.SharesRequested) -> None:
        """Set the shares that the task requests."""
        self.request = request
        self.changed.set()

    async def wait(self) -> bool:
        """Wait until devices have reported their costs; return whether they did in time."""
        ended = asyncio.ensure_future(asyncio.wait({self.host.orchestrator.finished}))
        known = asyncio.ensure_future(self.changed.wait())
        await asyncio.wait({ended, known}, timeout=MEASURING_S, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        known.cancel()
        return self.request is not None and not self.host.has_ended


def candidates_of(proposal: Proposal, state: ServiceState) -> list[PlanCandidate]:
    """Return the candidates of a proposal beside the tasks of a service; may take seconds."""
    assert proposal.request is not None
    return find_candidates(_submission(proposal.request, proposal.host, state))


def _submission(request: events.SharesRequested, host: TaskHost, state: ServiceState) -> Submission:
    live = [record for record in state.live if record.latest is not None]
    own = SharesRequest(request.cycle, *_ordered(request))
    requests = [*(record.latest for record in live if record.latest is not None), own]
    learners = np.unique(np.concatenate([each.learners for each in requests]))
    task = host.prepared.task
    command = PlanRound(
        reason="candidates",
        round=1,
        numbers=(*(record.number for record in live), host.number),
        tasks=(*(record.task for record in live), task),
        scheme=state.scheme.name,
        learners=learners,
        names=tuple(state.names[learner] for learner in learners.tolist()),
        costs=tuple(each.costs_of(learners) for each in requests),
        price=state.price[learners],
        budget=state.budget,
        limit_s=LIMIT_S,
        assigned=NO_INTS,
        budgets_left=(*(record.account.left for record in live), task.budget),
    )
    cycles = (*_cycles_left(live), task.expected_cycles)
    return Submission(command, cycles, (len(live),))


def _ordered(request: events.SharesRequested) -> tuple[Ints, Floats]:
    order = np.argsort(request.learners)
    return request.learners[order], request.costs[:, order]


def _cycles_left(live: Sequence[TaskRecord]) -> list[int]:
    return [record.remaining_cycles or record.task.expected_cycles for record in live]
