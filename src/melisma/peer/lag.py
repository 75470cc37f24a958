"""The number of rounds that neighbours may be behind: fixed, or chosen by measured times.

A neighbour that is late by L seconds makes no node wait while d rounds of T seconds cover the
delay, so d = L / T, rounded up. L is the time of a message plus the excess of a neighbour's rounds
over their median, both at the 90th percentile; T is this node's median round.

The theory allows tau(t) ~ sqrt(t / ln t) missing iterations after t iterations, up to a factor.
Ours is the factor by which the largest d that the paper recommends, 7 at 60,000 iterations with
rounds of 10 i, is just allowed.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, e, log, sqrt

import msgspec
import numpy as np

TOLERANCE_FACTOR = 115.5
LARGEST_LAG = 10
"""The largest lag in the paper's experiments."""
WINDOW = 20
"""The number of measurements that count."""
LATE_QUANTILE = 0.9
MAX_SLOWNESS = 16.0


def iteration_tolerance(iterations: int) -> float:
    """Return how many iterations may be missing after that many."""
    t = max(float(iterations), e)
    return TOLERANCE_FACTOR * sqrt(t / log(t))


def lag_bound(number: int, iterations: int, round_size: Callable[[int], int]) -> int:
    """Return the largest lag after a round for which the missing iterations are tolerated.

    With lag d a node begins the round `number` + 1 while the neighbour's last d rounds, and the
    one that it begins, are missing.
    """
    tolerated, lag = iteration_tolerance(iterations), 0
    missing = round_size(number + 1)
    while lag < min(number, LARGEST_LAG):
        missing += round_size(number - lag)
        if missing > tolerated:
            break
        lag += 1
    return lag if number > LARGEST_LAG else max(lag, 1)


@dataclass(frozen=True)
class LagChoice:
    """The lag chosen before a round: `needed` by measured times, `allowed` by theory."""

    round_number: int
    needed: int
    allowed: int

    @property
    def lag(self) -> int:
        """The lag needed, but at most the lag allowed."""
        return min(self.needed, self.allowed)


class LagState(msgspec.Struct, frozen=True):
    """The choices of a `LagPolicy`, and its measurements by node."""

    choices: list[LagChoice]
    step_s: list[float]
    message_s: list[float]
    neighbour_step_s: dict[str, list[float]]


class LagPolicy:
    """The maximum lag of the neighbours of one node; `fixed` or chosen before each round."""

    def __init__(self, fixed: int | None, round_size: Callable[[int], int]) -> None:
        self.fixed, self._round_size = fixed, round_size
        self.choices: list[LagChoice] = []
        self._step_s: deque[float] = deque(maxlen=WINDOW)
        self._message_s: deque[float] = deque(maxlen=WINDOW)
        self._neighbour_step_s: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._last_update: dict[str, tuple[int, float]] = {}

    def state(self) -> LagState:
        """Return the choices and measurements."""
        neighbours = {name: [*seconds] for name, seconds in self._neighbour_step_s.items()}
        return LagState([*self.choices], [*self._step_s], [*self._message_s], neighbours)

    def restore(self, state: LagState) -> None:
        """Set choices and measurements; the time between two updates is measured anew."""
        self.choices[:] = state.choices
        self._step_s.extend(state.step_s)
        self._message_s.extend(state.message_s)
        for name, seconds in state.neighbour_step_s.items():
            self._neighbour_step_s[name].extend(seconds)

    def max_lag(self, rounds: int, iterations: int) -> int:
        """Return the maximum lag after that many rounds and iterations."""
        if self.fixed is not None:
            return self.fixed
        if not self.choices or self.choices[-1].round_number != rounds:
            allowed = lag_bound(rounds, iterations, self._round_size)
            self.choices.append(LagChoice(rounds, self._lag_for_delays(rounds), allowed))
        return self.choices[-1].lag

    def record_round(self, seconds: float, steps: int) -> None:
        """Record the duration of a round of this node."""
        self._step_s.append(seconds / steps)

    def record_update(self, at_s: float, sender: str, number: int) -> None:
        """Record the arrival of an update; consecutive ones show how long a round takes."""
        previous = self._last_update.get(sender)
        if previous is not None and number == previous[0] + 1:
            step_s = (at_s - previous[1]) / self._round_size(number)
            self._neighbour_step_s[sender].append(step_s)
        if previous is None or number > previous[0]:
            self._last_update[sender] = number, at_s

    def predict_round_s(self, sender: str, number: int) -> float:
        """Return how long a round of a neighbour takes, by the slower of its steps and ours.

        Its steps count as at most `MAX_SLOWNESS` times ours: it could delay them on purpose.
        """
        own_s = float(np.median(self._step_s)) if self._step_s else 0.0
        measured = self._neighbour_step_s.get(sender)
        neighbour_s = float(np.median(measured)) if measured else 0.0
        step_s = max(own_s, min(neighbour_s, MAX_SLOWNESS * own_s))
        return step_s * self._round_size(number)

    def record_round_trip(self, seconds: float) -> None:
        """Record the duration of a message and its acknowledgement."""
        self._message_s.append(seconds / 2)

    def _lag_for_delays(self, number: int) -> int:
        if not self._step_s:
            return 1
        steps = self._round_size(number + 1)
        round_s = steps * float(np.median(self._step_s))
        excess_s = [_excess(step_s) * steps for step_s in self._neighbour_step_s.values()]
        late_s = _late(self._message_s) + max(excess_s, default=0.0)
        return max(1, ceil(late_s / round_s)) if round_s > 0 else LARGEST_LAG


def _late(seconds: deque[float]) -> float:
    return float(np.quantile(seconds, LATE_QUANTILE)) if seconds else 0.0


def _excess(seconds: deque[float]) -> float:
    return _late(seconds) - float(np.median(seconds)) if seconds else 0.0
