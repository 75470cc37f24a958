"""The guard of the mean: bounds how far one update may change the parameters.

The change of an update is its distance from the parameters that it began with (Euclidean, over all
floating-point arrays; others are not taken from updates). Its limit is 4 times the median change of
the updates of its cycle, where a change after fewer visits is first scaled up to the visits of this
update. With `guard = "clip"` a larger change is scaled down to the limit, with "drop" the update is
left out; 25 times beyond the limit, it is left out in both cases.

A cycle with fewer than five updates says little about what is usual: updates of the last three
cycles are then compared too, the limit is twice as high, and at least the norm of the parameters.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Floats, Ints
from melisma.learning.parameters import Arrays

LIMIT_FACTOR: Final = 4.0  # the limit, in median changes
FEW_LIMIT_FACTOR: Final = 8.0  # with fewer than FEW_UPDATES
LEFT_OUT_FACTOR: Final = 25.0  # limits beyond which an update is left out
FEW_UPDATES: Final = 5
HISTORY_CYCLES: Final = 3
MAX_REFERENCES: Final = 512  # of many updates, compare with this many, evenly spaced
CHUNK_NUMBERS: Final = 1 << 15


@dataclass(frozen=True, eq=False)
class UpdateChanges:
    """The distance of each update from the parameters that it began with, and its visits."""

    distances: Floats
    visits: Ints

    def take(self, rows: NDArray[np.bool_] | Ints) -> "UpdateChanges":
        """Return the changes in these rows."""
        return UpdateChanges(self.distances[rows], self.visits[rows])


@dataclass
class UpdateGuard:
    """Decides by `rule` (`guard` of the task) how much of each update counts."""

    rule: str
    history: list[UpdateChanges] = field(default_factory=list)  # changes that counted, by cycle

    def scales(self, changes: UpdateChanges, norm: float) -> Floats:
        """Return the factor for the change of each update of a cycle, 0 to leave it out.

        `norm` is that of the parameters. A cycle whose result is kept has to be recorded.
        """
        if self.rule == "off":
            return np.ones(changes.distances.size)
        limits = self._limits(changes, norm)
        scales, beyond = np.ones(limits.size), changes.distances > limits
        scales[beyond] = limits[beyond] / changes.distances[beyond]
        least = 1.0 if self.rule == "drop" else 1.0 / LEFT_OUT_FACTOR
        return np.where(scales < least, 0.0, scales)

    def record(self, changes: UpdateChanges, scales: Floats) -> None:
        """Remember the changes of a cycle as they count, for cycles with few updates."""
        kept = UpdateChanges(changes.distances * scales, changes.visits).take(scales > 0)
        self.history = [*self.history, kept][-HISTORY_CYCLES:]

    def forget_last(self) -> None:
        """Forget the last recorded cycle, because its model was not kept."""
        self.history = self.history[:-1]

    def _limits(self, changes: UpdateChanges, norm: float) -> Floats:
        """Return the largest change allowed for each update."""
        few = changes.distances.size < FEW_UPDATES
        reference = _join([*self.history, changes]) if few else changes
        # An update without any change does not show what is usual.
        reference = reference.take(reference.distances > 0)
        count = reference.distances.size
        if not count:
            return np.full(changes.distances.size, np.inf)
        if count > MAX_REFERENCES:
            spaced = np.linspace(0, count - 1, MAX_REFERENCES).astype(np.int64)
            reference = reference.take(spaced)
        usual = _usual_changes(reference, changes.visits)
        return np.maximum(FEW_LIMIT_FACTOR * usual, norm) if few else LIMIT_FACTOR * usual


def distances(updates: Arrays, start: Arrays) -> Floats:
    """Return the distance of each update, stacked along the first axis, from the same start.

    A distance beyond double precision is infinite.
    """
    rows = len(next(iter(updates.values())))
    squares, step = np.zeros(rows), max(1, CHUNK_NUMBERS // max(rows, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for name, array in updates.items():
            if array.dtype.kind != "f":
                continue
            flat, origin = array.reshape(rows, -1), start[name].reshape(-1)
            for first in range(0, origin.size, step):
                part = slice(first, first + step)
                change = np.subtract(flat[:, part], origin[part], dtype=np.float64)
                squares += np.einsum("ij,ij->i", change, change)
    found: Floats = np.where(np.isnan(squares), np.inf, np.sqrt(squares))
    return found


def distance(update: Arrays, start: Arrays) -> float:
    """Return the distance of one update from its start."""
    return float(distances({name: array[None] for name, array in update.items()}, start)[0])


def norm_of(parameters: Arrays) -> float:
    """Return the Euclidean norm of all floating-point arrays."""
    return distance(parameters, {name: np.zeros_like(a) for name, a in parameters.items()})


def _usual_changes(reference: UpdateChanges, visits: Ints) -> Floats:
    """Return the median change that the reference suggests after these numbers of visits.

    Changes grow at most in proportion to visits, so a change after fewer visits is scaled up; one
    after more visits is not scaled down. Of an even number of changes the lower median counts.
    """
    middle = (reference.distances.size - 1) // 2
    known = np.maximum(reference.visits, 1)
    levels, rows = np.unique(visits, return_inverse=True)
    usual = [
        np.partition(reference.distances * np.maximum(1.0, level / known), middle)[middle]
        for level in levels.tolist()
    ]
    return np.array(usual)[rows]


def _join(parts: list[UpdateChanges]) -> UpdateChanges:
    return UpdateChanges(
        np.concatenate([part.distances for part in parts]),
        np.concatenate([part.visits for part in parts]),
    )
