"""Updates that simulated learners will send, as columns."""

from collections.abc import Iterable
from dataclasses import Field, dataclass, field, fields
from typing import Any

import numpy as np

from melisma.fleet.array_types import Bools, Floats, Ints

LEARNERS_LAST = {"learners": "last"}


@dataclass(frozen=True, eq=False)
class SimulatedUpdates:
    """Updates of many learners: when training stops, when the update arrives, and its contents.

    A learner requests `wanted` shards at `ask_s`, or releases the last `released` of its shards
    then. Extensions that arrive before it stops change attempts and shipped.
    """

    indices: Ints  # into the instruction
    learners: Ints
    attempts: Ints
    ask_s: Floats
    wanted: Ints
    released: Ints
    passes: Ints
    stops_s: Floats
    arrives_s: Floats
    batches: Ints
    visits: Ints
    arrived_visits: Ints  # planned visits of the shards that arrived in time
    shipped: Ints
    phases: Floats
    costs: Floats = field(metadata=LEARNERS_LAST)  # COSTS x PARTS x learners
    measured: Bools  # whether the learner has measured its costs

    @classmethod
    def concatenate(cls, parts: Iterable["SimulatedUpdates"], count: int) -> "SimulatedUpdates":
        """Return the updates of all parts, `count` in all; each part is copied as it comes."""
        columns: dict[str, Any] = {}
        first = 0
        for part in parts:
            rows = slice(first, first + part.learners.size)
            for f in fields(cls):
                values, axis = getattr(part, f.name), _learners_axis(f)
                if f.name not in columns:
                    columns[f.name] = _allocate(values, axis, count)
                np.moveaxis(columns[f.name], axis, 0)[rows] = np.moveaxis(values, axis, 0)
            first = rows.stop
        return cls(**columns)

    def take(self, rows: Ints) -> "SimulatedUpdates":
        """Return the updates in these rows."""
        if rows.size == self.learners.size and rows[0] == 0 and np.all(np.diff(rows) == 1):
            return self
        return SimulatedUpdates(
            *(np.take(getattr(self, f.name), rows, axis=_learners_axis(f)) for f in fields(self))
        )


def _learners_axis(column: Field[Any]) -> int:
    """Return the axis of learners in a column: the first, unless its metadata puts them last."""
    return -1 if column.metadata.items() >= LEARNERS_LAST.items() else 0


def _allocate(values: Any, axis: int, count: int) -> Any:
    """Return an array like `values`, with `count` learners."""
    shape = list(values.shape)
    shape[axis] = count
    return np.empty(shape, values.dtype)
