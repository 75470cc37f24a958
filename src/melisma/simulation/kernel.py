"""The event queue of a simulation: one heap of actions ordered by virtual time."""

import heapq
from collections.abc import Callable
from math import inf

Action = Callable[[], object]


class EventQueue:
    """Actions ordered by time; actions at the same time run in the order they were scheduled."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._scheduled = 0

    @property
    def next_s(self) -> float:
        """The time of the next action; infinity if the queue is empty."""
        return self._heap[0][0] if self._heap else inf

    def schedule(self, at_s: float, action: Action) -> None:
        """Run an action at `at_s`, or now if that time has passed."""
        self._scheduled += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._scheduled, action))

    def advance(self, at_s: float) -> None:
        """Move the clock forward to `at_s`, but not past the next action."""
        self.now_s = min(max(self.now_s, at_s), self.next_s)

    def step(self) -> bool:
        """Run the next action; return False if the queue is empty."""
        if not self._heap:
            return False
        self.now_s, _, action = heapq.heappop(self._heap)
        action()
        return True
