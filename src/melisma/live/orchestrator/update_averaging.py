"""The average of the updates on disk: their weighted mean, or what a function of the user returns.

The change of a late update is applied to the present parameters.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Floats
from melisma.learning.aggregation import StartShares, add_parameters, weighted_mean
from melisma.learning.own_aggregation import OwnAggregation, UpdateStack
from melisma.learning.parameters import Layout
from melisma.live.orchestrator.accepted_updates import AcceptedUpdate

Parameters = dict[str, NDArray[Any]]
Starts = Mapping[int, Parameters | None]
"""The parameters that each cycle began with; None if they are damaged."""


@dataclass(frozen=True)
class UpdateAveraging:
    """Averages updates of one layout, by the user's `aggregation` if there is one."""

    layout: Layout
    aggregation: OwnAggregation | None

    def combine(
        self, updates: Sequence[AcceptedUpdate], starts: Starts, parameters: Parameters
    ) -> Parameters:
        """Return the aggregate of updates; `parameters` are the present ones."""
        if self.aggregation is None:
            return self._average(updates, starts, parameters)
        return self.aggregation(*self._stack(updates, starts, parameters), parameters)

    def _stack(
        self, updates: Sequence[AcceptedUpdate], starts: Starts, parameters: Parameters
    ) -> tuple[Parameters, Floats]:
        """Return all updates in memory, in the order of learners, and their weights."""
        ordered = sorted(updates, key=lambda item: (item.update.learner, item.cycle))
        stack = UpdateStack(self.layout, len(ordered))
        for row, item in enumerate(ordered):
            start = starts[item.cycle]
            assert start is not None
            arrays = self.layout.unpack(item.update.path.read_bytes())
            rows = {name: array[None] for name, array in arrays.items()}
            stack.set(slice(row, row + 1), rows, start, parameters)
        scales = np.array([item.update.scale for item in ordered])
        scaled = stack.take_scaled(np.arange(len(ordered)), parameters, scales)
        return scaled, np.array([item.update.weight for item in ordered])

    def _average(
        self, updates: Sequence[AcceptedUpdate], starts: Starts, parameters: Parameters
    ) -> Parameters:
        """Return the weighted mean, with the changes of late updates."""
        mean = weighted_mean(self.layout, [item.update for item in updates])
        groups = [
            StartShares(share, scaled, None if starts[started] is parameters else starts[started])
            for started, (share, scaled) in _shares_by_cycle(updates).items()
        ]
        return add_parameters(mean, parameters, groups)


def _shares_by_cycle(updates: Sequence[AcceptedUpdate]) -> dict[int, tuple[float, float]]:
    """Return by cycle of the assignments the share of all weights, and that of scaled changes."""
    total = sum(item.update.weight for item in updates)
    sums: defaultdict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for item in updates:
        share, scaled = sums[item.cycle]
        weight = item.update.weight / total
        sums[item.cycle] = share + weight, scaled + item.update.scale * weight
    return dict(sums)
