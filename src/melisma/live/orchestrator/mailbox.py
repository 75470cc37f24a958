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
    `silence_limit_s` is `silent`: it has left the run until it calls again.
    """

    name: str
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
        if not self._closed:
            self._arrived.clear()

    def close(self) -> None:
        """Answer every poll, pending or future, with `Leave` and without delay."""
        self._closed = True
        self._arrived.set()

    async def get(self, timeout_s: float) -> list[AnyInstruction]:
        """Return all pending instructions; wait up to `timeout_s` for the first one."""
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout_s)
        except TimeoutError:
            return []
        instructions = [create() for create in self._pending]
        self._pending.clear()
        if self._closed:
            return [*instructions, Leave()]
        self._arrived.clear()
        return instructions
