"""Orders that wait until a learner asks for them: it calls, nobody calls it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from melisma.live.protocol import AnyInstruction

InstructionFactory = Callable[[], AnyInstruction]


@dataclass
class Mailbox:
    """What the orchestrator keeps for one learner."""

    name: str
    joined: bool = False
    left: bool = False
    dispatched_s: float = 0.0  # when its work of this cycle was given out
    _pending: list[InstructionFactory] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, order: AnyInstruction | InstructionFactory) -> None:
        """An order, or how to make it when it is asked for, with the time that is left then."""
        self._pending.append(order if callable(order) else lambda: order)
        self._arrived.set()

    async def get(self, timeout_s: float) -> list[AnyInstruction]:
        """The orders that there are, or the next ones, or none for so long."""
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout_s)
        except TimeoutError:
            return []
        self._arrived.clear()
        made = [order() for order in self._pending]
        self._pending.clear()
        return made
