"""The computation of learners as the driver uses it: nothing, where only time matters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from melisma.cycle.events import NO_VERIFIED_UPDATES, VerifiedUpdates
from melisma.fleet.array_types import NO_FLOATS, Floats
from melisma.simulation.compute.work_record import WeightedWork
from melisma.simulation.faults import Greed


class ScoreValues(NamedTuple):
    """Loss and accuracy of a model, None where unknown or not finite.

    `finite` is False if the loss was computed and is not finite.
    """

    loss: float | None
    accuracy: float | None
    finite: bool = True


@dataclass(frozen=True, eq=False)
class Averaged:
    """The training losses of this cycle's updates, and the factor for the change of each update.

    `scales` are 1 unless the guard reduced a change, and 0 for updates left out, part after part.
    """

    losses: Floats
    scales: list[Floats]
    verified: VerifiedUpdates = NO_VERIFIED_UPDATES


class ComputeBackend(Protocol):
    """The computation of simulated learners, and the model that results.

    A backend that `trains` reads the shards and batches of updates.
    """

    trains: bool

    def average(self, cycle: int, parts: Sequence[WeightedWork]) -> Averaged:
        """Set the model to the weighted mean of updates, as far as the guard lets them count.

        Parts are by cycle. Updates of earlier cycles began with other parameters: their changes are
        applied to the present ones. Without parts the model stays.
        """

    def set_greedy(self, learners: Mapping[int, Greed]) -> None:
        """Let these learners cheat from now on, each in its way."""

    def score(self) -> ScoreValues:
        """Return loss and accuracy of the model, None where unknown."""

    def restore(self) -> None:
        """Return to the model before the latest average."""

    def close(self) -> None:
        """Release processes and memory."""


class TimingOnly:
    """Computes nothing: only time matters."""

    trains = False

    def average(self, cycle: int, parts: Sequence[WeightedWork]) -> Averaged:  # noqa: ARG002
        """Return no losses; every update counts."""
        return Averaged(NO_FLOATS, [np.ones(part.learners.size) for part in parts])

    def set_greedy(self, learners: Mapping[int, Greed]) -> None:
        """Do nothing: without training, nobody can tell."""

    def score(self) -> ScoreValues:
        """Return None twice."""
        return ScoreValues(None, None)

    def restore(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
