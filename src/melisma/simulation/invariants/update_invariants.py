"""Invariants of updates: which of them count, and with which weight.

None counts twice, none counts that did not arrive, and weights are the samples assigned, less where
not all visits were made. A late update counts once, with a discount. In federated learning no
update weighs more than 10 times the median, unless the guard is off.
"""

from math import isnan

import numpy as np

from melisma.cycle import commands, events
from melisma.fleet.task import Task
from melisma.runs.assignments import COUNTED
from melisma.runs.report import Report
from melisma.simulation.invariants.assignment_records import AssignmentRecords
from melisma.simulation.invariants.violations import InvariantError, expect


class UpdateInvariants:
    """The updates that the averages of one run count, and the checks of their weights."""

    def __init__(self, task: Task, records: AssignmentRecords) -> None:
        self._task, self._records = task, records
        self._carried: set[tuple[int, int]] = set()
        # Weight, samples and visits by cycle and learner.
        self._counted: dict[tuple[int, int], tuple[float, int, int]] = {}
        self._last_average: list[tuple[int, int]] = []

    def check_average(self, command: commands.Aggregate) -> None:
        """Check the weights of the updates that are averaged."""
        learners, cycle = command.learners.tolist(), self._records.cycle
        expect(len(set(learners)) == len(learners), "an update counts twice")
        limit = self._weight_limit(command)
        for learner, weight in zip(learners, command.weights.tolist(), strict=True):
            record = self._records.open.get(learner)
            if record is None or record.visits is None:
                raise InvariantError(f"learner {learner} counts, but its update never arrived")
            expected = min(record.weight, limit)
            expect(np.isclose(weight, expected), f"{learner} has weight {weight:g}")
            self._counted[cycle, learner] = weight, record.all_samples, record.visits
        self._last_average = [(cycle, learner) for learner in learners]
        self._check_late(command, limit)

    def _check_late(self, command: commands.Aggregate, limit: float) -> None:
        """Check that late updates arrived, count once, and have their discounted weight."""
        late, records = command.late, self._records.late
        rows = zip(late.cycles.tolist(), late.learners.tolist(), late.weights.tolist(), strict=True)
        for cycle, learner, weight in rows:
            record = records.pop((cycle, learner), None)
            if record is None or record.visits is None:
                raise InvariantError(f"{learner} counts late, but its update never arrived")
            expected = min(record.weight, limit) / (1 + command.cycle - cycle)
            expect(np.isclose(weight, expected), f"{learner} has late weight {weight:g}")
            expect(self._task.late == "carry", "a late update counts, but the task drops them")
            self._counted[cycle, learner] = weight, record.all_samples, record.visits
            self._last_average.append((cycle, learner))
            expect((cycle, learner) not in self._carried, "a late update counts twice")
            self._carried.add((cycle, learner))
        forgotten = [key for key, record in records.items() if record.visits]
        expect(not forgotten, f"late updates of {forgotten} arrived and do not count")

    def _weight_limit(self, command: commands.Aggregate) -> float:
        """Return the most that an update may weigh: in federated learning 10 times the median."""
        task, late = self._task, command.late
        if task.mode != "federated" or task.guard == "off":
            return np.inf
        keys = zip(late.cycles.tolist(), late.learners.tolist(), strict=True)
        records = [self._records.open.get(learner) for learner in command.learners.tolist()]
        records += [self._records.late.get(key) for key in keys]
        weights = sorted(record.weight for record in records if record is not None)
        return 10 * weights[(len(weights) - 1) // 2] if weights else np.inf

    def check_complete(self, command: commands.Aggregate) -> None:
        """Check that all updates of the cycle that arrived count."""
        records = self._records.open
        arrived = {learner for learner, record in records.items() if record.visits}
        complete = arrived == set(command.learners.tolist()) or not records
        expect(complete, "an update that arrived does not count")

    def leave_out_guarded(self, event: events.Aggregated) -> None:
        """Forget updates that the guard left out: the report does not count them."""
        pairs = zip(event.guarded_cycles.tolist(), event.guarded.tolist(), strict=True)
        for key, scale in zip(pairs, event.scales.tolist(), strict=True):
            expect(key in self._last_average, f"{key} is guarded, but not averaged")
            damaged = isnan(scale)
            expect(damaged or 0 <= scale < 1, f"the change of {key} counts {scale:g} times")
            if damaged or not scale:
                del self._counted[key]

    def forget_last_average(self) -> None:
        """Forget the updates of a model that was not kept."""
        for key in self._last_average:
            self._counted.pop(key, None)

    def check_report(self, report: Report, *, interrupted: bool) -> None:
        """Check that the report has the updates of all averages, with their weights.

        Updates of an average that was interrupted are in no model.
        """
        reported = {}
        for cycle in report.cycles:
            known = all(each.status != "training" for each in cycle.assignments)
            expect(known, f"work of cycle {cycle.number} is lost")
            for each in cycle.assignments:
                if each.status in COUNTED and each.weight > 0:
                    reported[each.cycle, each.learner] = each.weight, each.samples, each.visits
        if interrupted:
            for key in self._last_average:
                if key not in reported:
                    self._counted.pop(key, None)
        expect(reported.keys() == self._counted.keys(), "the report has other updates")
        for key, values in reported.items():
            expect(np.allclose(values, self._counted[key]), f"the report differs in {key}")
