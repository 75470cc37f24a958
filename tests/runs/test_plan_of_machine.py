"""Plans and weights in the record of a run are those of the cycle machine."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.cycle import commands, events
from melisma.cycle.ragged import RaggedArray
from melisma.cycle.state import Stage, WorkStatus, update_weights
from melisma.runs.assignments import Assignments
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.testing import ScriptedMachine, commands_in, make_task
from tests.lanes import cases

LEARNERS = 5
NAMES = [f"device-{k}" for k in range(LEARNERS)]


class RandomRun:
    """A machine with extension and late updates, and the record of its steps."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now_s = np.random.default_rng(seed), 0.0
        task = make_task(
            scheme="equal", cycles=4, extension=True, late="carry", quorum=0.6, min_shards=1
        )
        self.script = ScriptedMachine(task, NAMES)
        self.progress, self.applied = RunProgress(), 0
        self.script.join(0.0)

    @property
    def state(self) -> Any:
        return self.script.machine.state

    def step(self) -> None:
        """Let one random event happen."""
        self.now_s += float(self.rng.random() * 2)
        if self.state.stage is Stage.AGGREGATING:
            self.script.aggregate(self.now_s)
        elif self.state.stage is Stage.EVALUATING:
            self.script.evaluate(self.now_s)
        else:
            self.script.send(self.random_event())
        for step in self.script.trace[self.applied :]:
            self.progress.apply(step)
        self.applied = len(self.script.trace)

    def random_event(self) -> events.AnyEvent:
        learner, cycle = np.array([self.rng.integers(LEARNERS)]), self.state.cycle
        message: Any = {"at_s": self.now_s, "learners": learner, "cycle": cycle}
        kind = self.rng.integers(0, 12)
        if kind < 3:
            return events.ShardsRequested(**message, shards=self.rng.integers(1, 4, 1))
        if kind < 5:
            shards = RaggedArray.from_rows([self.rng.permutation(20)[:6]])
            return events.ShardsReleased(**message, shards=shards)
        if kind == 5:
            name = NAMES[learner[0]]
            if self.rng.random() < 0.5 or self.state.learners.present.sum() <= 2:
                return events.LearnersJoined(
                    at_s=self.now_s, learners=learner, names=(name,), discloses=("costs",)
                )
            return events.LearnersLeft(at_s=self.now_s, learners=learner, reason=f"{name} left")
        if kind < 8:
            return events.TimeReached(at_s=self.now_s)
        late = self.state.learners.late_cycles[learner[0]]
        if late and self.rng.random() < 0.5:
            message["cycle"] = int(late)
        return events.UpdatesReceived(
            **message,
            attempts=self.rng.integers(1, 4, 1),
            visits=self.rng.integers(0, 200, 1),
            shipped=np.array([0]),
            loss=np.array([0.5]),
            phases=self.rng.random((1, 6)),
            refused="not finite" if self.rng.random() < 0.1 else "",
        )


def open_rows(work: Assignments) -> dict[int, tuple[int, int, int]]:
    """Return the plan of each open assignment: its attempt, shards and samples."""
    return {
        row.learner: (row.attempt, row.shards, row.samples)
        for row in work
        if row.status == "training"
    }


@settings(max_examples=cases(60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_plans_of_open_assignments_are_those_of_the_machine(seed: int) -> None:
    run = RandomRun(seed)
    for _ in range(60):
        run.step()
        cycle = run.progress.current_cycle
        if cycle is None or run.state.stage is not Stage.TRAINING:
            continue
        table = run.state.learners
        assigned = table.having(WorkStatus.ASSIGNED)
        columns = (table.attempts, table.shards, table.samples)
        expected = {k: tuple(int(column[k]) for column in columns) for k in assigned.tolist()}
        assert open_rows(cycle.assignments) == expected


@settings(max_examples=cases(60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_weights_of_counted_updates_follow_from_plan_and_visits(seed: int) -> None:
    run = RandomRun(seed)
    for _ in range(60):
        run.step()
    report = Report.from_trace(run.script.trace)
    for cycle in report.cycles:
        for row in cycle.assignments:
            if row.status == "counted" and cycle.ending == "aggregated":
                samples, passes, visits = (
                    np.array([v]) for v in (row.samples, row.passes, row.visits)
                )
                assert row.weight == pytest.approx(update_weights(samples, passes, visits)[0])
    carried = sum(c.late.learners.size for c in commands_in(report.trace, commands.Aggregate))
    dropped = sum(row.status == "dropped" for c in report.cycles for row in c.assignments)
    assert 0 <= carried - int(report.learners.carried.sum()) <= dropped


def test_random_runs_extend_release_hand_on_and_carry() -> None:
    steps: list[Step] = []
    for seed in range(30):
        run = RandomRun(seed)
        for _ in range(60):
            run.step()
        steps += run.script.trace
    extensions = commands_in(steps, commands.Extend)
    assert extensions
    assert any(command.handed_on.size for command in extensions)
    assert any(command.late.learners.size for command in commands_in(steps, commands.Aggregate))
