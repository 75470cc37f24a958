from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.snapshot import encode_state
from melisma.errors import DataError
from melisma.runs.journal import Journal
from melisma.runs.model_versions import ModelVersions
from melisma.runs.recovery import SNAPSHOT, RecoveredRun, Snapshot
from melisma.runs.trace import Step
from tests.cycle.recorded_runs import recorded_runs

JOBS = (commands.Aggregate, commands.Evaluate)
RESULTS = (events.Aggregated, events.Evaluated)


def write_run(journal: Journal, steps: list[Step], *, snapshots: bool) -> Iterator[CycleMachine]:
    """Write one step after another, with snapshots at the ends of cycles."""
    machine, models = CycleMachine(), ModelVersions()
    for step in steps:
        machine.handle(step.event)
        models.apply(step)
        if snapshots and isinstance(step.event, events.Evaluated):
            journal.put(SNAPSHOT, Snapshot.take(journal.last + 1, machine.state, models))
        journal.write(step)
        yield machine


def open_job(steps: list[Step]) -> commands.Command | None:
    """Return the last job of these steps, unless its result is among them."""
    messages = [message for step in steps for message in (step.event, *step.commands)]
    last = [each for each in messages if isinstance(each, (*JOBS, *RESULTS))][-1:]
    return last[0] if last and isinstance(last[0], JOBS) else None


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("kind", ["default rules", "federated", "too short", "total time"])
def test_a_run_is_recovered_after_every_step(tmp_path: Path, kind: str, snapshots: bool) -> None:
    steps = next(recorded_runs(kind))
    journal = Journal.create(tmp_path)
    machines = write_run(journal, steps, snapshots=snapshots)
    for count, machine in enumerate(machines, 1):
        recovered = RecoveredRun.from_journal(journal)
        assert encode_state(recovered.machine.state) == encode_state(machine.state)
        assert recovered.at_s == max(step.event.at_s for step in steps[:count])
        job, expected = recovered.job, open_job(steps[:count])
        assert type(job) is type(expected)
        assert job is None or job.cycle == expected.cycle  # type: ignore[union-attr]


def test_a_job_that_began_in_the_step_of_the_snapshot_is_recovered(tmp_path: Path) -> None:
    """A cycle in which no learner can train begins and ends in the step that ends another."""
    steps = [*next(recorded_runs("equal"))]
    evaluated = next(i for i, step in enumerate(steps) if isinstance(step.event, events.Evaluated))
    ints = np.zeros(0, np.int64)
    job = commands.Aggregate(
        reason="empty", cycle=2, learners=ints, attempts=ints, weights=np.zeros(0), visits=ints
    )
    machine = CycleMachine()
    for step in steps[: evaluated + 1]:
        machine.handle(step.event)
    journal = Journal.create(tmp_path)
    journal.write(*steps[:evaluated])
    journal.put(SNAPSHOT, Snapshot.take(evaluated + 1, machine.state, ModelVersions()))
    journal.write(Step(steps[evaluated].event, [job]))
    recovered = RecoveredRun.from_journal(journal)
    assert isinstance(recovered.job, commands.Aggregate)
    assert recovered.at_s == steps[evaluated].event.at_s


def test_the_end_of_a_run_is_recovered(tmp_path: Path) -> None:
    steps = next(recorded_runs("default rules"))
    journal = Journal.create(tmp_path)
    for _ in write_run(journal, steps, snapshots=True):
        pass
    recovered = RecoveredRun.from_journal(journal)
    assert recovered.finish is not None
    assert recovered.finish.reason == steps[-1].commands[-1].reason


def test_commands_that_this_version_would_not_issue_are_refused(tmp_path: Path) -> None:
    steps = next(recorded_runs("default rules"))
    journal = Journal.create(tmp_path)
    journal.write(*steps[:-1], Step(steps[-1].event, []))
    with pytest.raises(DataError, match="decides differently"):
        RecoveredRun.from_journal(journal)


def test_a_journal_without_a_task_is_refused(tmp_path: Path) -> None:
    steps = next(recorded_runs("default rules"))
    journal = Journal.create(tmp_path)
    with pytest.raises(DataError, match="has no steps"):
        RecoveredRun.from_journal(journal)
    journal.write(*steps[1:3])
    with pytest.raises(DataError, match="does not begin with TaskSubmitted"):
        RecoveredRun.from_journal(journal)


def test_a_snapshot_of_a_step_that_is_missing_is_refused(tmp_path: Path) -> None:
    steps = next(recorded_runs("default rules"))
    machine = CycleMachine()
    machine.handle(steps[0].event)
    journal = Journal.create(tmp_path)
    journal.put(SNAPSHOT, Snapshot.take(7, machine.state, ModelVersions()))
    journal.write(steps[0])
    with pytest.raises(DataError, match="snapshot of step 7"):
        RecoveredRun.from_journal(journal)
