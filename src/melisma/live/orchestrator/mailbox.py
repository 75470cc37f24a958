"""Orders that wait until a learner asks for them: it calls, nobody calls it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from melisma.live.protocol import AnyOrder

Making = Callable[[], AnyOrder]


@dataclass
class Seat:
    """What the orchestrator keeps for one learner."""

    name: str
    here: bool = False
    gone: bool = False
    sent_s: float = 0.0  # when its work of this cycle was given out
    _pending: list[Making] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, order: AnyOrder | Making) -> None:
        """An order, or how to make it when it is asked for, with the time that is left then."""
        self._pending.append(order if callable(order) else lambda: order)
        self._news.set()

    async def take(self, timeout_s: float) -> list[AnyOrder]:
        """The orders that there are, or the next ones, or none for so long."""
        try:
            await asyncio.wait_for(self._news.wait(), timeout_s)
        except TimeoutError:
            return []
        self._news.clear()
        made = [order() for order in self._pending]
        self._pending.clear()
        return made
