"""The kernel of virtual time: one heap of what is to come; time stands still in between."""

import heapq
from collections.abc import Callable
from math import inf

Action = Callable[[], object]


class EventQueue:
    """Acts by their instants; of one instant, what was added first comes first."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._added = 0

    @property
    def next_s(self) -> float:
        """The instant of what comes next; infinity if nothing does."""
        return self._heap[0][0] if self._heap else inf

    def schedule(self, at_s: float, act: Action) -> None:
        """Do this then, or now if that has passed."""
        self._added += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._added, act))

    def advance(self, at_s: float) -> None:
        """Time passes without anything of this agenda, as far as what comes next."""
        self.now_s = min(max(self.now_s, at_s), self.next_s)

    def step(self) -> bool:
        """Do what comes next; whether there was anything."""
        if not self._heap:
            return False
        self.now_s, _, act = heapq.heappop(self._heap)
        act()
        return True
