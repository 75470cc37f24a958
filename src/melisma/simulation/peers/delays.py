"""Random delays of steps and messages."""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from melisma.fleet.array_types import Floats
from melisma.fleet.rng import uniform
from melisma.fleet.tables import NonNegative, Positive, Table


class Delays(Table, frozen=True, kw_only=True):
    """Seconds of a step and of a message, uniform between two limits; defaults as in the paper.

    Steps are `drawn` for each iteration, for each round, or once for each node. With a `tail`, the
    steps of a round are longer by a factor that exceeds x with probability x^-tail: the lower, the
    heavier. `bandwidth_bps` adds the transfer time of a message.
    """

    step_s: tuple[NonNegative, NonNegative] = (1e-4, 1e-3)
    message_s: tuple[NonNegative, NonNegative] = (1e-4, 1.5e-3)
    drawn: Literal["iteration", "round", "node"] = "iteration"
    tail: Annotated[float, Meta(ge=0.1, le=100)] | None = None
    bandwidth_bps: Positive | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the order of limits."""
        for name in ("step_s", "message_s"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} is {low:g} to {high:g}; expected the lower one first")

    def step_seconds(self, node: int, number: int, steps: int) -> Floats:
        """Return the duration of each step of a round."""
        nodes = np.array([node])
        match self.drawn:
            case "iteration":
                draws = uniform(self.seed, "step", number, nodes, np.arange(steps))
            case "round":
                draws = np.repeat(uniform(self.seed, "step", number, nodes), steps)
            case "node":
                draws = np.repeat(uniform(self.seed, "step", 0, nodes), steps)
        seconds = _scale(self.step_s, draws)
        if self.tail is not None:
            survival = 1.0 - uniform(self.seed, "tail", number, nodes)
            seconds = seconds * survival ** (-1 / self.tail)
        return seconds

    def message_seconds(self, sender: int, nth: int, size_bytes: int) -> float:
        """Return the duration of the nth message of a node."""
        draws = uniform(self.seed, "message", nth, np.array([sender]))
        seconds = float(_scale(self.message_s, draws)[0])
        if self.bandwidth_bps is not None:
            seconds += 8 * size_bytes / self.bandwidth_bps
        return seconds


def _scale(limits: tuple[float, float], draws: Floats) -> Floats:
    low, high = limits
    return low + (high - low) * draws
