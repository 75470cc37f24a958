"""Tasks that were submitted, but not confirmed yet: their owner sees first what they would cost.

The devices prepare the task and measure their costs of it. With these, and those of the other
tasks, the candidates are computed. Until it is confirmed, the service does not plan the task.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from melisma.live.service.task_host import TaskHost
from melisma.service import events
from melisma.service.plan_candidates import Submission
from melisma.service.service_state import ServiceState, SharesRequest

MEASURING_S: Final = 300.0
"""The longest time in which devices prepare a task and measure their costs of it."""
EXPIRY_S: Final = 900.0
"""Time after which a task that was not confirmed is withdrawn."""


@dataclass(eq=False)
class Proposal:
    """A task that is not confirmed yet, and the shares that it requests once they are known."""

    host: TaskHost
    request: events.SharesRequested | None = None
    observed: int = 0  # events of its steps so far
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def set_request(self, request: events.SharesRequested) -> None:
        """Set the shares that the task requests."""
        self.request = request
        self.changed.set()

    @property
    def observed_before(self) -> int:
        """The events before the request."""
        return self.observed - (self.request is not None)

    async def wait(self) -> bool:
        """Wait until devices have reported their costs; return whether they did in time."""
        ended = asyncio.ensure_future(asyncio.wait({self.host.orchestrator.finished}))
        known = asyncio.ensure_future(self.changed.wait())
        await asyncio.wait({ended, known}, timeout=MEASURING_S, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        known.cancel()
        return self.request is not None and not self.host.has_ended


def submission_of(proposal: Proposal, state: ServiceState) -> Submission | None:
    """Return what candidates are computed from; None if no learner has reported its costs."""
    request = proposal.request
    if request is None:
        return None
    order = np.argsort(request.learners)
    own = SharesRequest(request.cycle, request.learners[order], request.costs[:, order])
    return Submission.beside_live(state, proposal.host.prepared.task, own)
