"""Instructions that wait until a learner polls: the orchestrator never connects to a learner."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, overload

from melisma.cycle.learner import MAX_ABSENCE_S
from melisma.errors import BusyError, RefusedError, UnregisteredError
from melisma.live.protocol import AnyInstruction, JoinRequest, Leave

InstructionFactory = Callable[[], AnyInstruction]
MAX_POLL_S: Final = 20.0
"""The longest time that one request waits for instructions."""
MAX_IDLE_SILENCE_S: Final = 3 * MAX_POLL_S
"""Silence after which a learner without work counts as gone, until its next call."""
MAX_REPLACED: Final = 16
"""Sessions of a learner that are remembered, to notice that an identity is in use twice."""


@dataclass
class Mailbox:
    """The pending instructions of one learner, whether it has joined or left, and its open work.

    Instants are seconds on the orchestrator's clock. A learner that has not called for too long, at
    work for `silence_limit_s`, is `silent`: it has left the run until it calls again. A new session
    of the learner starts with an empty mailbox.
    """

    name: str
    session: str | None = None
    replaced_sessions: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_REPLACED))
    request: JoinRequest | None = None  # with which it is ready to join, or has joined
    earlier_request: JoinRequest | None = None  # of the session before, whose work is kept
    joined: bool = False  # the run has begun, and the learner is part of it; also in a restart
    left: bool = False
    silent: bool = False
    fingerprint: str | None = None  # of its certificate
    host: str | None = None  # that it registered from
    dismissed: bool = False  # it was told to leave, in this session
    superseded_calls: int = 0  # of sessions that another one had replaced
    conflict: str = ""  # where its identity is in use twice
    departure: str = ""  # why it left last
    refusal: str = ""  # why its calls are refused from now on
    samples_per_s: float | None = None  # as it measured
    slowness: str = ""  # why its device runs slower than it could
    called_s: float = 0.0  # when it last called, or was first given work after that
    heard_s: float = 0.0  # when it last called
    silence_limit_s: float = 0.0
    open_work: tuple[int, int] | None = None  # cycle and latest attempt of its assignment
    dispatched_s: dict[int, float] = field(default_factory=dict)  # by cycle
    _pending: list[InstructionFactory] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False
    _resumable: bool = False

    @property
    def ready(self) -> bool:
        """Whether the learner would train: it asked to join, and has neither left nor is silent."""
        return self.request is not None and not self.left and not self.silent

    @property
    def restarts(self) -> bool:
        """Whether the learner has registered again, and not joined again yet."""
        return self.earlier_request is not None and self.request is None

    @property
    def declared_samples(self) -> int:
        """The samples to train on that the learner has, in federated learning."""
        return sum(self.request.local_shard_samples) if self.request is not None else 0

    def is_overdue(self, silence_s: float) -> bool:
        """Return whether a learner that is silent for this time is taken to be gone."""
        at_work = self.open_work is not None
        return silence_s > (self.silence_limit_s if at_work else MAX_IDLE_SILENCE_S)

    def start_session(self, session: str) -> None:
        """Forget the session before, but for its work if the learner joined; end its polls."""
        if self.session is not None:
            self.replaced_sessions.append(self.session)
        # The run goes on with a learner that restarts quickly.
        self.earlier_request = self.request or self.earlier_request if self.joined else None
        self.session, self.request, self.samples_per_s = session, None, None
        self.left = self.silent = self.dismissed = False
        self.open_work = None
        self._pending.clear()
        before, self._arrived = self._arrived, asyncio.Event()
        before.set()
        if self._closed:
            self._arrived.set()

    def leave(self) -> None:
        """Answer every poll of this session with `Leave` and without delay."""
        self.left = True
        self._arrived.set()

    def put(self, instruction: AnyInstruction | InstructionFactory) -> None:
        """Add an instruction, or a function that creates it when the learner polls."""
        self._pending.append(instruction if callable(instruction) else lambda: instruction)
        self._arrived.set()

    def end_work(self, cycle: int) -> None:
        """Record that the assignment of a cycle is no longer open."""
        if self.open_work is not None and self.open_work[0] == cycle:
            self.open_work = None

    def clear(self) -> None:
        """Drop the instructions that were not taken yet."""
        self._pending.clear()
        if not self._closed and not self.left:
            self._arrived.clear()

    def close(self, *, resumable: bool = False) -> None:
        """Answer every poll, pending or future, of any session with `Leave` and without delay.

        In a run that can be resumed, raise `BusyError` instead: the learner calls again later.
        """
        self._closed, self._resumable = True, resumable
        self._arrived.set()

    async def get(self, timeout_s: float) -> list[AnyInstruction]:
        """Return all pending instructions; wait up to `timeout_s` for the first one.

        Return none if another session starts meanwhile.
        """
        arrived = self._arrived
        try:
            await asyncio.wait_for(arrived.wait(), timeout_s)
        except asyncio.TimeoutError:
            return []
        if arrived is not self._arrived:
            return []
        if self._resumable:
            raise BusyError("the orchestrator has failed, and can be resumed: call again later")
        instructions = [create() for create in self._pending]
        self._pending.clear()
        if self._closed or self.left:
            self.dismissed = True
            return [*instructions, Leave()]
        self._arrived.clear()
        return instructions


class Mailboxes(Sequence[Mailbox]):
    """The mailboxes of all learners of a run, numbered in the order of first registration.

    A run with a fleet has a mailbox for each of `names` from the start and no others. Otherwise it
    `grows`: `max_learners` may register. `on_fetch` receives the number of a learner whenever it
    requests a file.
    """

    def __init__(self, names: Iterable[str] = (), max_learners: int | None = None) -> None:
        self._items = [Mailbox(name) for name in names]
        self._numbers = {mailbox.name: number for number, mailbox in enumerate(self._items)}
        self.grows, self._max_learners = max_learners is not None, max_learners or len(self._items)
        self.became_ready = asyncio.Event()
        self.on_fetch: Callable[[int], None] = lambda _learner: None
        self._closed = self._resumable = False

    @property
    def max_learners(self) -> int:
        """The number of learners that can have a mailbox."""
        return self._max_learners

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Mailbox: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mailbox]: ...
    def __getitem__(self, index: int | slice) -> Mailbox | list[Mailbox]:
        return self._items[index]

    @property
    def ready(self) -> list[int]:
        """The numbers of the learners that are ready or have joined."""
        return [number for number, mailbox in enumerate(self._items) if mailbox.ready]

    def are_deserted(self, now_s: float) -> bool:
        """Return whether the run waits for learners, of which none calls.

        After `MAX_ABSENCE_S` without a call the wait is over: then it is False again.
        """
        last_heard_s = max((mailbox.heard_s for mailbox in self._items), default=0.0)
        is_deserted = all(
            mailbox.is_overdue(now_s - mailbox.heard_s) for mailbox in self._items if mailbox.joined
        )
        return is_deserted and now_s - last_heard_s < MAX_ABSENCE_S

    def awaited_until_s(self, now_s: float) -> float | None:
        """Return until when a run waits for a learner to call; None while one of them does."""
        works = any(
            mailbox.joined and not mailbox.is_overdue(now_s - mailbox.called_s)
            for mailbox in self._items
        )
        if works or not self.are_deserted(now_s):
            return None
        return max((mailbox.heard_s for mailbox in self._items), default=0.0) + MAX_ABSENCE_S

    def number(self, name: str) -> int:
        """Return the number of a learner; raise `UnregisteredError` if it is unknown."""
        if name not in self._numbers:
            raise UnregisteredError(f"{name} is not a learner of this run: call register first")
        return self._numbers[name]

    def open(self, name: str) -> int:
        """Return the number of a learner, which gets a mailbox if it has none and there is room."""
        if name not in self._numbers:
            if not self.grows:
                raise RefusedError(f"{name} is not a learner of this run")
            if len(self._items) >= self._max_learners:
                raise RefusedError(
                    f"the run has {len(self._items)} learners, the most that it takes: ask the "
                    "owner of the orchestrator to raise --max-learners"
                )
            self._numbers[name] = len(self._items)
            self._items.append(Mailbox(name))
            if self._closed:
                self._items[-1].close(resumable=self._resumable)
        return self.number(name)

    def close(self, *, resumable: bool = False) -> None:
        """Close all mailboxes, and those that are opened later."""
        if self._closed:
            return
        self._closed, self._resumable = True, resumable
        for mailbox in self._items:
            mailbox.close(resumable=resumable)
