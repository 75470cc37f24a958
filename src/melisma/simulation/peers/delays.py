"""How long steps and messages of nodes take, by chance."""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from melisma.fleet.channel import Floats
from melisma.fleet.rng import uniform
from melisma.fleet.task import Least, Positive, Table


class Delays(Table, frozen=True, kw_only=True):
    """Seconds for a step and for a message, even between two limits; the paper's unless said.

    Steps are `drawn` anew for each iteration, for each round, or once for each node. With a `tail`,
    rounds now and then take longer by a factor whose chance to exceed x is x^-tail: the lower, the
    heavier. `bandwidth_bps` is what messages take beside by their bytes.
    """

    step_s: tuple[Least, Least] = (1e-4, 1e-3)
    message_s: tuple[Least, Least] = (1e-4, 1.5e-3)
    drawn: Literal["iteration", "round", "node"] = "iteration"
    tail: Annotated[float, Meta(ge=0.1, le=100)] | None = None
    bandwidth_bps: Positive | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        """Limits in their order."""
        for name in ("step_s", "message_s"):
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name} is {least:g} to {most:g}; expected the lower one first")

    def steps(self, node: int, number: int, steps: int) -> Floats:
        """Of each step of that round."""
        who = np.array([node])
        match self.drawn:
            case "iteration":
                drawn = uniform(self.seed, "step", number, who, np.arange(steps))
            case "round":
                drawn = np.repeat(uniform(self.seed, "step", number, who), steps)
            case "node":
                drawn = np.repeat(uniform(self.seed, "step", 0, who), steps)
        seconds = _between(self.step_s, drawn)
        if self.tail is not None:
            rest = 1.0 - uniform(self.seed, "tail", number, who)
            seconds = seconds * rest ** (-1 / self.tail)
        return seconds

    def message(self, sender: int, nth: int, size_bytes: int) -> float:
        """Of that message from a node."""
        drawn = uniform(self.seed, "message", nth, np.array([sender]))
        seconds = float(_between(self.message_s, drawn)[0])
        if self.bandwidth_bps is not None:
            seconds += 8 * size_bytes / self.bandwidth_bps
        return seconds


def _between(limits: tuple[float, float], drawn: Floats) -> Floats:
    least, most = limits
    return least + (most - least) * drawn
