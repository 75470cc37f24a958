"""The time before a run begins: learners register, measure and wait until enough are ready."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments
from melisma.live.orchestrator.mailbox import Mailboxes

DEFAULT_UNTIL_READY_S = 60.0


@dataclass(frozen=True)
class StartCondition:
    """A run begins when `learners` are ready, or after `until_ready_s` with at least one.

    With both, the first of them decides. With none, the run begins after `DEFAULT_UNTIL_READY_S`.
    """

    learners: int | None = None
    until_ready_s: float | None = None

    def __post_init__(self) -> None:
        types = {"learners": int | None, "until_ready_s": float | None}
        check_arguments("", types, vars(self))
        if self.learners is not None and self.learners < 1:
            raise SettingError(f"learners = {self.learners} is too small: use learners >= 1")
        if self.until_ready_s is not None and not self.until_ready_s >= 0:
            raise SettingError(
                f"until_ready_s = {self.until_ready_s:g} is invalid: use until_ready_s >= 0"
            )
        if self.learners is None and self.until_ready_s is None:
            object.__setattr__(self, "until_ready_s", DEFAULT_UNTIL_READY_S)

    def __str__(self) -> str:
        number = self.learners or 1
        count = f"{number} learner{'s are' if number > 1 else ' is'} ready"
        if self.until_ready_s is None:
            return f"when {count}"
        after = f"in {self.until_ready_s:g} s with those that are ready"
        return f"when {count}, or {after}" if self.learners is not None else after

    async def wait(self, mailboxes: Mailboxes) -> None:
        """Wait until the run can begin."""
        loop = asyncio.get_running_loop()
        ends_at = None if self.until_ready_s is None else loop.time() + self.until_ready_s
        while True:
            mailboxes.became_ready.clear()
            ready = len(mailboxes.ready)
            time_is_up = ends_at is not None and loop.time() >= ends_at
            if ready and (time_is_up or ready >= (self.learners or ready + 1)):
                return
            timeout_s = None if ends_at is None or time_is_up else ends_at - loop.time()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(mailboxes.became_ready.wait(), timeout_s)
