"""Instructions that wait until a learner polls: the orchestrator never connects to a learner."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from melisma.live.protocol import AnyInstruction, Leave

InstructionFactory = Callable[[], AnyInstruction]


@dataclass
class Mailbox:
    """The pending instructions of one learner, and whether it has joined or left."""

    name: str
    joined: bool = False
    left: bool = False
    dispatched_s: float = 0.0  # when its latest assignment was sent, in seconds of the run
    _pending: list[InstructionFactory] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False

    def put(self, instruction: AnyInstruction | InstructionFactory) -> None:
        """Add an instruction, or a function that creates it when the learner polls."""
        self._pending.append(instruction if callable(instruction) else lambda: instruction)
        self._arrived.set()

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
