"""The costs that simulated learners report to a scheme that plans several tasks.

A learner measures its costs in the state that it is in, and knows how its states differ; what was
measured is kept as costs of the first state. `cycle.state_costs` says what it reports of them.
"""

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from melisma.allocation.schemes import CostsIn
from melisma.cycle.learner import CostHistory
from melisma.cycle.state_costs import mean_over_states, report_weights
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.estimates import Estimate
from melisma.fleet.observed_states import ObservedStates
from melisma.simulation.learners.cost_histories import CostHistories, history_before_upload
from melisma.simulation.learners.cycle_timeline import CycleTimeline, Workload
from melisma.simulation.learners.devices import Devices, Durations


class CostReports:
    """The costs that learners report; `present` returns the state of each in the next cycle."""

    def __init__(
        self,
        devices: Devices,
        observed: ObservedStates,
        costs_in: CostsIn,
        present: Callable[[Ints], Ints],
        shard_samples: int,
    ) -> None:
        self._devices, self._observed = devices, observed
        self._costs_in, self._present, self._shard_samples = costs_in, present, shard_samples
        self._histories = CostHistories(len(observed.counts))
        self._measured_in = np.zeros(len(observed.counts), np.int64)

    @property
    def are_present(self) -> bool:
        """Whether costs are those of the present state, which needs no benchmark once known."""
        return self._costs_in == "present"

    def record_benchmark(self, learners: Ints, history: CostHistory) -> None:
        """Record what learners measured in the state that they are in."""
        states = self._devices.states(learners)
        self._measured_in[learners] = states
        ratio = _ratio(self._in_first(learners), self._in_states(learners, states))
        self._histories.record_benchmark(learners, scale(history, ratio))

    def record_cycle(
        self, learners: Ints, wait_s: Floats, work: Workload, done: CycleTimeline
    ) -> None:
        """Refresh the costs by those of a cycle, unless they stay those of the benchmark."""
        if self._costs_in == "measured":
            return
        states = self._devices.states(learners)
        ratio = _ratio(self._in_first(learners), self._in_states(learners, states))
        done = replace(
            done,
            down_s=done.down_s * ratio.model_down_s,
            link_s=done.link_s * ratio.ship_s,
            train_s=done.train_s * ratio.sample_s,
            up_s=done.up_s * ratio.model_up_s,
        )
        history = self._histories.read(learners)
        refreshed = history_before_upload(history, wait_s, work, done, self._shard_samples)
        self._histories.record_cycle(learners, refreshed, done)

    def read(self, learners: Ints) -> Floats:
        """Return the costs that learners report: costs by parts by learners."""
        weights = report_weights(
            self._costs_in,
            self._observed.probability(learners),
            self._measured_in[learners],
            self._present(learners),
        )
        parts = [
            self._in_states(learners, np.full(learners.size, state))
            for state in range(weights.shape[1])
        ]
        target = Durations(
            *(
                mean_over_states([getattr(part, column.name) for part in parts], weights)
                for column in fields(Durations)
            )
        )
        ratio = _ratio(target, self._in_first(learners))
        return scale(self._histories.read(learners), ratio).costs()

    def _in_states(self, learners: Ints, states: Ints) -> Durations:
        return self._devices.durations(learners, 1.0, states)

    def _in_first(self, learners: Ints) -> Durations:
        return self._in_states(learners, np.zeros(learners.size, np.int64))


def scale(history: CostHistory, ratio: Durations) -> CostHistory:
    """Return a history as if all durations had been longer by these factors."""
    return replace(
        history,
        train_s=_times(history.train_s, ratio.sample_s),
        ship_s=_times(history.ship_s, ratio.ship_s),
        first_ship_s=_times(history.first_ship_s, ratio.ship_s),
        down_s=_times(history.down_s, ratio.model_down_s),
        up_s=_times(history.up_s, ratio.model_up_s),
    )


def _times(estimate: Estimate, factor: Floats) -> Estimate:
    return Estimate(estimate.mean * factor, estimate.spread * factor, estimate.count)


def _ratio(durations: Durations, others: Durations) -> Durations:
    """Return the factor between durations, 1 where both are 0."""
    return Durations(
        *(
            np.divide(values, base, out=np.ones(values.size), where=base > 0)
            for values, base in (
                (getattr(durations, column.name), getattr(others, column.name))
                for column in fields(Durations)
            )
        )
    )
