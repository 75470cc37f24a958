"""How far neighbours may be behind: a number that was set, or one chosen from what was measured.

A neighbour that is late by L seconds makes nobody wait while d rounds of T seconds cover it, so
d = L / T, rounded up. L is what messages take and by how much a neighbour's rounds are longer than
usual, of which one in ten may be exceeded; T is this node's usual round.

The theory allows what misses tau(t) ~ sqrt(t / ln t) iterations after t of them. It leaves a factor
open. Ours is the one by which the largest d that the paper recommends, 7 at 60,000 iterations with
rounds of 10 i, is just allowed.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, e, log, sqrt

import numpy as np

FACTOR = 115.5
LARGEST_LAG = 10
"""The largest that the paper has tried."""
WINDOW = 20
LATE_QUANTILE = 0.9


def tolerated_iterations(iterations: int) -> float:
    """So many iterations may be missing after so many."""
    t = max(float(iterations), e)
    return FACTOR * sqrt(t / log(t))


def allowed_lag(number: int, iterations: int, size: Callable[[int], int]) -> int:
    """The largest lag after that round for which no more are missing than is tolerated.

    With lag d a node begins the round `number` + 1 while the last d of a neighbour, and the one
    that it begins as well, are missing.
    """
    room, lag = tolerated_iterations(iterations), 0
    missing = size(number + 1)
    while lag < min(number, LARGEST_LAG):
        missing += size(number - lag)
        if missing > room:
            break
        lag += 1
    return lag if number > LARGEST_LAG else max(lag, 1)


@dataclass(frozen=True)
class LagChoice:
    """What was chosen before a round: `needed` by the measured times, `allowed` by theory."""

    round_number: int
    needed: int
    allowed: int

    @property
    def lag(self) -> int:
        """As far as needed, and no farther than allowed_lag."""
        return min(self.needed, self.allowed)


class LagPolicy:
    """The largest lag of one node's neighbours."""

    def __init__(self, said: int | None, size: Callable[[int], int]) -> None:
        self.fixed, self._size = said, size
        self.choices: list[LagChoice] = []
        self._step_s: deque[float] = deque(maxlen=WINDOW)
        self._message_s: deque[float] = deque(maxlen=WINDOW)
        self._neighbour_step_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._last_update: dict[str, tuple[int, float]] = {}

    def max_lag(self, number: int, iterations: int) -> int:
        """After so many rounds and iterations."""
        if self.fixed is not None:
            return self.fixed
        if not self.choices or self.choices[-1].round_number != number:
            bound = allowed_lag(number, iterations, self._size)
            self.choices.append(LagChoice(number, self._needed(number), bound))
        return self.choices[-1].lag

    def record_round(self, seconds: float, steps: int) -> None:
        """A round of this node took so long."""
        self._step_s.append(seconds / steps)

    def record_update(self, at_s: float, sender: str, number: int) -> None:
        """An update of that number came."""
        before = self._last_update.get(sender)
        if before is not None and number == before[0] + 1:
            self._neighbour_step_s[sender].append((at_s - before[1]) / self._size(number))
        if before is None or number > before[0]:
            self._last_update[sender] = number, at_s

    def record_round_trip(self, took_s: float) -> None:
        """A message and the answer took so long."""
        self._message_s.append(took_s / 2)

    def _needed(self, number: int) -> int:
        if not self._step_s:
            return 1
        steps = self._size(number + 1)
        round_s = steps * float(np.median(self._step_s))
        over_s = [_over_usual(each) * steps for each in self._neighbour_step_s.values()]
        late_s = _late(self._message_s) + max(over_s, default=0.0)
        return max(1, ceil(late_s / round_s)) if round_s > 0 else LARGEST_LAG


def _late(seconds: deque[float]) -> float:
    return float(np.quantile(seconds, LATE_QUANTILE)) if seconds else 0.0


def _over_usual(seconds: deque[float]) -> float:
    return _late(seconds) - float(np.median(seconds)) if seconds else 0.0
