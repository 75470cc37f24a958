"""The numbers of learners: a service counts the devices, and each task those that join it."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from melisma.fleet.array_types import Ints
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.service import events

LEARNER_FIELDS = ("learners", "guarded")


class LearnerNumbers:
    """Translates between the numbers of a task and of the service, by the names of learners."""

    def __init__(
        self, mailboxes: Mailboxes, number: Callable[[str], int], name: Callable[[int], str]
    ) -> None:
        self._mailboxes, self._number, self._name = mailboxes, number, name

    def to_service(self, learners: Ints) -> Ints:
        """Return the numbers in the service of these learners of the task."""
        names = [self._mailboxes[learner].name for learner in learners.tolist()]
        return np.array([self._number(name) for name in names], np.int64)

    def to_task(self, learners: Ints) -> Ints:
        """Return the numbers in the task; -1 for a learner that has not joined it."""
        known = {mailbox.name: number for number, mailbox in enumerate(self._mailboxes)}
        return np.array(
            [known.get(self._name(learner), -1) for learner in learners.tolist()], np.int64
        )

    def translate(self, event: events.AnyEvent) -> events.AnyEvent:
        """Return an event with the numbers of the service."""
        changes: dict[str, Any] = {
            name: self.to_service(getattr(event, name))
            for name in LEARNER_FIELDS
            if hasattr(event, name)
        }
        covered = getattr(event, "covered", None)
        if covered is not None:
            changes["covered"] = msgspec.structs.replace(
                covered, learners=self.to_service(covered.learners)
            )
        return msgspec.structs.replace(event, **changes) if changes else event
