"""The time before a run begins: learners register, measure and wait until enough are ready."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments
from melisma.fleet.finish_time import parse_finish_time
from melisma.live.orchestrator.mailbox import Mailboxes

DEFAULT_UNTIL_READY_S = 60.0
TIME_FORMAT = "%Y-%m-%d %H:%M"


@dataclass(frozen=True)
class StartCondition:
    """A run begins when `learners` are ready, or with at least one after `until_ready`.

    That is a number of seconds, or a local time such as ``"23:00"`` or ``"2026-11-19 06:30"``. With
    both, the first of them decides. With none, the run begins after `DEFAULT_UNTIL_READY_S`.
    """

    learners: int | None = None
    until_ready: float | str | None = None
    _begin_at: datetime | None = field(init=False, default=None)  # of a local time

    def __post_init__(self) -> None:
        types = {"learners": int | None, "until_ready": float | str | None}
        check_arguments("", types, {name: getattr(self, name) for name in types})
        if self.learners is not None and self.learners < 1:
            raise SettingError(f"learners = {self.learners} is too small: use learners >= 1")
        if isinstance(self.until_ready, str):
            object.__setattr__(self, "_begin_at", _parse_time(self.until_ready))
        elif self.until_ready is not None and not self.until_ready >= 0:
            raise SettingError(
                f"until_ready = {self.until_ready:g} is invalid: use until_ready >= 0"
            )
        if self.learners is None and self.until_ready is None:
            object.__setattr__(self, "until_ready", DEFAULT_UNTIL_READY_S)

    def __str__(self) -> str:
        number = self.learners or 1
        count = f"{number} learner{'s are' if number > 1 else ' is'} ready"
        if self.until_ready is None:
            return f"when {count}"
        is_time = isinstance(self.until_ready, str)
        when = f"at {self.until_ready}" if is_time else f"in {self.until_ready:g} s"
        after = f"{when} with those that are ready"
        return f"when {count}, or {after}" if self.learners is not None else after

    @property
    def begins_at(self) -> str | None:
        """The local date and time at which the run begins, None if no time is set."""
        return None if self._begin_at is None else f"{self._begin_at:{TIME_FORMAT}}"

    def left_s(self, now: datetime) -> float | None:
        """Return the seconds until the run begins with those that are ready, if it does so."""
        if self._begin_at is not None:
            return (self._begin_at - now).total_seconds()
        assert not isinstance(self.until_ready, str)
        return self.until_ready

    async def wait(self, mailboxes: Mailboxes) -> None:
        """Wait until the run can begin."""
        loop = asyncio.get_running_loop()
        left_s = self.left_s(datetime.now().astimezone())
        ends_at = None if left_s is None else loop.time() + left_s
        while True:
            mailboxes.became_ready.clear()
            ready = len(mailboxes.ready)
            time_is_up = ends_at is not None and loop.time() >= ends_at
            if ready and (time_is_up or ready >= (self.learners or ready + 1)):
                return
            timeout_s = None if ends_at is None or time_is_up else ends_at - loop.time()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(mailboxes.became_ready.wait(), timeout_s)


def _parse_time(text: str) -> datetime:
    """Return the instant of a local time; raise `SettingError` if it is invalid or past."""
    now = datetime.now().astimezone()
    try:
        begin_at = parse_finish_time(text, now, "until_ready")
    except ValueError as error:
        raise SettingError(f"{error}, or a number of seconds") from None
    if begin_at < now:
        raise SettingError(f"until_ready is {text!r}, which is past: use a later time")
    return begin_at
