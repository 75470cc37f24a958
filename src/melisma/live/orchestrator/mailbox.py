"""Instructions that wait until a learner polls: the orchestrator never connects to a learner."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from melisma.live.protocol import AnyInstruction, JoinRequest, Leave

InstructionFactory = Callable[[], AnyInstruction]


@dataclass
class Mailbox:
    """The pending instructions of one learner, whether it has joined or left, and its open work.

    Instants are seconds of the run. A learner with open work that has been silent for
    `silence_limit_s` is `silent`: it has left the run until it calls again. A new session of the
    learner starts with an empty mailbox.
    """

    name: str
    session: str | None = None
    request: JoinRequest | None = None  # with which it joined
    joined: bool = False
    left: bool = False
    silent: bool = False
    called_s: float = 0.0  # when it last called
    silence_limit_s: float = 0.0
    open_work: tuple[int, int] | None = None  # cycle and latest attempt of its assignment
    dispatched_s: dict[int, float] = field(default_factory=dict)  # by cycle
    _pending: list[InstructionFactory] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False

    def start_session(self, session: str) -> None:
        """Forget the session before, as if the learner had never joined; end its polls."""
        self.session, self.request = session, None
        self.joined = self.left = self.silent = False
        self.open_work = None
        self.dispatched_s.clear()
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

    def close(self) -> None:
        """Answer every poll, pending or future, of any session with `Leave` and without delay."""
        self._closed = True
        self._arrived.set()

    async def get(self, timeout_s: float) -> list[AnyInstruction]:
        """Return all pending instructions; wait up to `timeout_s` for the first one.

        Return none if another session starts meanwhile.
        """
        arrived = self._arrived
        try:
            await asyncio.wait_for(arrived.wait(), timeout_s)
        except TimeoutError:
            return []
        if arrived is not self._arrived:
            return []
        instructions = [create() for create in self._pending]
        self._pending.clear()
        if self._closed or self.left:
            return [*instructions, Leave()]
        self._arrived.clear()
        return instructions
