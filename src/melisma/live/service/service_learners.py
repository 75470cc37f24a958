"""The devices of a service: they register once, and then for each task that it lists.

A device has one number in the service, and one of its own in each task.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from melisma.axon import Worker, current_call
from melisma.errors import RefusedError, SettingError, SupersededError, UnregisteredError
from melisma.live import protocol
from melisma.live.orchestrator.learner_authentication import check_learner
from melisma.live.orchestrator.learner_service import SMALL_BYTES
from melisma.live.orchestrator.mailbox import MAX_IDLE_SILENCE_S, MAX_POLL_S
from melisma.live.orchestrator.strict_methods import StrictMethods
from melisma.prices import check_price
from melisma.text import visible

METHODS: Final = ("register", "list_tasks", "report_failure")
DEFAULT_PRICE: Final = 1.0


@dataclass
class ServiceLearner:
    """A device that takes part; `called_s` is when it last called, on the clock of the service."""

    name: str
    number: int
    session: str = ""
    price: float = DEFAULT_PRICE
    host: str | None = None
    fingerprint: str | None = None
    called_s: float = 0.0
    polls: int = 0  # that wait for a change now
    dismissed: bool = False
    has_left: bool = False

    def is_present(self, now_s: float) -> bool:
        """Return whether the device has called lately, and has not left since."""
        if self.has_left:
            return False
        return bool(self.polls) or now_s - self.called_s < MAX_IDLE_SILENCE_S


class ServiceLearners:
    """Serves the devices of a service.

    `on_registered` is called with each, and whether its price is new; `on_left` with the reason.
    """

    def __init__(
        self,
        run: str,
        now: Callable[[], float],
        on_registered: Callable[[ServiceLearner, bool], object],
        on_left: Callable[[ServiceLearner, str], object],
    ) -> None:
        self._run, self._now = run, now
        self._on_registered, self._on_left = on_registered, on_left
        self._learners: dict[str, ServiceLearner] = {}
        self._priced: set[str] = set()
        self._refs: tuple[protocol.TaskRef, ...] = ()
        self._ended, self._changed = False, asyncio.Event()

    def __iter__(self) -> Iterator[ServiceLearner]:
        return iter(self._learners.values())

    @property
    def present(self) -> list[ServiceLearner]:
        """The devices that have called lately."""
        now_s = self._now()
        return [each for each in self._learners.values() if each.is_present(now_s)]

    def add(self, name: str) -> ServiceLearner:
        """Return a device by its name; it gets a number if it is new."""
        if name not in self._learners:
            self._learners[name] = ServiceLearner(name, len(self._learners))
        return self._learners[name]

    def require_known(self, name: str) -> None:
        """Raise `UnregisteredError` unless a device has registered here, as it does first."""
        check_learner(name)
        if name not in self._learners:
            raise UnregisteredError("this device has not registered: call register first")

    def number(self, name: str) -> int:
        """Return the number of a device that is known."""
        return self._learners[name].number

    def name(self, number: int) -> str:
        """Return the name of a device by its number."""
        return list(self._learners)[number]

    def expose(self, worker: Worker) -> None:
        """Let devices call these methods."""
        expose = partial(worker.expose, StrictMethods(self), name="", max_body_bytes=SMALL_BYTES)
        expose(METHODS, check_caller=check_learner)

    def list(self, refs: Iterable[protocol.TaskRef]) -> None:
        """Set the tasks that devices can work for."""
        self._refs = tuple(refs)
        self._wake()

    def end(self) -> None:
        """Tell all devices that there will be no other tasks."""
        self._refs, self._ended = (), True
        self._wake()

    @property
    def all_dismissed(self) -> bool:
        """Whether all devices that are present know that the service has ended."""
        return all(each.dismissed for each in self.present)

    def _wake(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def register(self, message: Any) -> Any:
        """Start a session of the device that calls."""
        request, call = protocol.parse_registration(message), current_call()
        if request.price is not None:
            try:
                check_price(request.price, call.caller)
            except SettingError as error:
                raise RefusedError(str(error)) from None
        learner = self.add(call.caller)
        learner.session, learner.called_s, learner.dismissed = request.session, self._now(), False
        learner.has_left = False
        learner.host, learner.fingerprint = call.host, call.fingerprint
        is_new = call.caller not in self._priced or request.price not in (None, learner.price)
        if request.price is not None:
            learner.price = request.price
        self._priced.add(call.caller)
        self._on_registered(learner, is_new)
        return protocol.to_builtins(protocol.TasksResponse(self._run))

    async def list_tasks(self, session: str, known: Any) -> Any:
        """Return the tasks, as soon as they are not those whose names the device knows."""
        learner = self._caller(session)
        names = set(protocol.parse(known, tuple[protocol.ShortText, ...]))
        changed = self._changed
        if not self._ended and names == {ref.name for ref in self._refs}:
            learner.polls += 1
            try:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), MAX_POLL_S)
            finally:
                learner.polls -= 1
        self._caller(session)
        learner.dismissed = self._ended
        return protocol.to_builtins(protocol.TaskList(self._refs, self._ended))

    async def report_failure(self, session: str, reason: str) -> None:
        """Record that a device leaves; the processes for its tasks say so themselves."""
        learner = self._caller(session)
        learner.has_left = True
        self._on_left(learner, visible(protocol.parse(reason, protocol.ShortText)))

    def _caller(self, session: str) -> ServiceLearner:
        """Return the device that calls, if the session is its latest one."""
        learner = self._learners.get(current_call().caller)
        if learner is None or not learner.session:
            raise UnregisteredError("this device has not registered: call register first")
        if protocol.parse(session, protocol.ShortText) != learner.session:
            raise SupersededError(
                f"the identity of {learner.name} is in use elsewhere, in a session that started "
                "later: stop one of them; if the disk of a device was copied, run "
                "melisma join --new-identity on the copy"
            )
        learner.called_s = self._now()
        return learner
