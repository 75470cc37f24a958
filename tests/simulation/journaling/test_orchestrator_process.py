"""The orchestrator of a simulation stops at any step, and goes on from its journal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.runs.journal import Journal, StepJournal
from melisma.runs.journal_database import SyncedWrites
from melisma.runs.report import Report
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.fault_search import find_violation
from melisma.simulation.faults import parse_faults
from tests.cycle.recorded_runs import DEFAULT_RULES, FEDERATED, KINDS
from tests.lanes import cases
from tests.simulation.scenarios import (
    LEARNERS,
    commands_of,
    make_fleet,
    make_scenario,
    run,
    run_steps,
)


def events_of(report: Report, kind: type[events.Event]) -> list[Any]:
    return [step.event for step in report.trace if isinstance(step.event, kind)]


@pytest.mark.parametrize("stop", ["crash orchestrator", "cut power"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "total time"])
def test_a_run_that_stops_at_any_step_finishes_as_without(kind: str, stop: str) -> None:
    scenario = make_scenario(**{"cycles": 2, **KINDS[kind]})
    steps = run_steps(scenario)
    rng = np.random.default_rng(len(kind))
    for _ in range(cases(48)):
        nth, for_s = rng.integers(1, len(steps) + 1), 10 ** rng.uniform(-2, 1.5)
        text = f"{stop} at step {nth} for {for_s:.3g}"
        stopped = replace(scenario, faults=parse_faults(text, 3))
        assert not find_violation(stopped), text
        finish = Driver(stopped, TimingOnly()).run()
        expected = steps[-1].commands[-1]
        assert isinstance(expected, commands.Finish)
        assert finish.outcome == expected.outcome, text


def test_an_update_that_arrives_while_the_orchestrator_is_down_counts_after_its_restart() -> None:
    report = run("crash orchestrator at 8 for 4", **DEFAULT_RULES)
    (restarted,) = events_of(report, events.OrchestratorRestarted)
    assert restarted.at_s == 12.0
    first = report.cycles[0]
    assert first.counts == {"counted": 3}
    assert (first.assignments.arrived_s >= restarted.at_s).all()
    # Each learner calls again after a pause no longer than the downtime.
    assert (first.assignments.arrived_s <= restarted.at_s + 4.0).all()


def test_instructions_that_were_not_sent_are_sent_again() -> None:
    steps = run_steps(make_scenario(**DEFAULT_RULES))
    nth = next(
        number
        for number, step in enumerate(steps, 1)
        if any(isinstance(command, commands.Dispatch) for command in step.commands)
    )
    report = run(f"crash orchestrator at step {nth} for 1", **DEFAULT_RULES)
    (resent,) = commands_of(report, commands.Resend)
    (dispatched,) = (each for each in commands_of(report, commands.Dispatch) if each.cycle == 1)
    assert resent.shards.values.tolist() == dispatched.shards.values.tolist()
    assert resent.seconds_left == pytest.approx(dispatched.seconds_left - 1)
    assert report.cycles[0].counts == {"counted": 3}


@pytest.mark.parametrize("job", [commands.Aggregate, commands.Evaluate])
def test_a_job_that_was_under_way_is_done_again(job: type[commands.Command]) -> None:
    steps = run_steps(make_scenario(**DEFAULT_RULES))
    nth = next(
        number
        for number, step in enumerate(steps, 1)
        if any(isinstance(command, job) for command in step.commands)
    )
    report = run(f"crash orchestrator at step {nth} for 1", **DEFAULT_RULES)
    assert len(events_of(report, events.Aggregated)) == len(report.cycles)
    assert len(events_of(report, events.Evaluated)) == len(report.cycles)


def test_learners_that_join_and_leave_meanwhile_are_noticed_after_the_restart() -> None:
    faults = "crash orchestrator at 4 for 9; crash 0 at 5; crash 1 at 5 for 3"
    report = run(faults, **DEFAULT_RULES)
    assert report.departed == ("tortoise",)
    assert {each.status for each in report.cycles[0].assignments} == {"left", "counted"}
    joined = events_of(report, events.LearnersJoined)
    assert [each.learners.tolist() for each in joined] == [[0, 1, 2], [1]]
    assert joined[1].at_s >= 13.0


def test_a_learner_that_vanished_before_its_join_was_on_disk_is_not_awaited() -> None:
    report = run("cut power at step 1 for 13; vanish 0 at 4", **DEFAULT_RULES)
    assert report.outcome == "finished"
    assert {each.learner for each in report.cycles[0].assignments} == {1, 2}


def test_a_learner_that_joins_long_after_a_restart_is_not_missed_before() -> None:
    late = LEARNERS[2] | {"availability": {"joins_s": 35.0}}
    report = run("crash orchestrator at 3 for 5", make_fleet([*LEARNERS[:2], late]), cycles=5)
    assert report.outcome == "finished"
    assert not report.departed
    assert {each.learner for each in report.cycles[-1].assignments} == {0, 1, 2}


def test_the_last_cycle_of_a_run_whose_time_was_up_meanwhile_is_not_lost() -> None:
    rules = {**DEFAULT_RULES, "total_s": 60.0, "cycles": None}
    last = run(**rules).cycles[-1]
    from_s = last.began_s + last.deadline_s / 2
    report = run(f"crash orchestrator at {from_s:.4g} for 30", **rules)
    assert report.outcome == "finished"
    assert report.cycles[-1].visits_counted > 0
    restarted = events_of(report, events.OrchestratorRestarted)[0]
    assert report.ended_s <= restarted.at_s + 20.0


def test_the_report_has_restarts_and_the_time_without_an_orchestrator() -> None:
    plain, report = run(**DEFAULT_RULES), run("crash orchestrator at 8 for 40", **DEFAULT_RULES)
    assert (plain.restarts, plain.downtime_s, plain.restart_summary) == (0, 0.0, "")
    assert (report.restarts, report.downtime_s) == (1, 40.0)
    assert report.as_dict()["restarts"] == 1
    assert "restarted once; it was down for 40 s in all" in str(report)
    # Its time is part of the cycle, in which learners had nothing to do after their deadline.
    assert report.cycles[0].cycle_s > 40.0
    assert not report.cycles[0].met_deadline
    assert "</svg>" in report.plot().svg


def test_a_run_without_stops_keeps_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(StepJournal, "write")
    assert run("crash 1 at 3 for 4").outcome == "finished"


@pytest.mark.parametrize("rules", [DEFAULT_RULES, {**DEFAULT_RULES, **FEDERATED}])
def test_a_damaged_update_is_dropped_and_never_averaged(rules: dict[str, Any]) -> None:
    report = run("rot update 2 from 1", **rules)
    (dropped,) = (each for each in report.cycles[1].assignments if each.learner == 1)
    assert (dropped.status, dropped.weight) == ("dropped", 0.0)
    assert dropped.reason == "it was damaged on the disk of the orchestrator"
    assert report.left_out == {}
    assert report.outcome == "finished"


@pytest.mark.parametrize("fault", ["fill disk", "fail sync"])
def test_a_disk_that_fails_for_a_while_delays_the_run(fault: str) -> None:
    report = run(f"{fault} at 5 for 20", **DEFAULT_RULES)
    assert report.outcome == "finished"
    assert report.restarts >= 1
    assert report.ended_s > run(**DEFAULT_RULES).ended_s


def test_a_search_notices_an_orchestrator_that_does_not_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Journal, "sync", lambda _: None)
    assert violations("cut power")


def test_a_search_notices_an_orchestrator_that_forgets_assignments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("melisma.cycle.restarts.resend", lambda *_: [])
    assert violations("crash orchestrator")


def test_a_search_notices_damage_in_the_log_that_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SyncedWrites, "check", lambda *_: None)
    texts = [f"rot journal at {at_s}; crash orchestrator at {at_s} for 1" for at_s in range(2, 40)]
    assert any(map(violation, texts))


def violations(stop: str) -> list[str]:
    return [text for at_s in range(2, 30, 2) if (text := violation(f"{stop} at {at_s} for 1"))]


def violation(faults: str) -> str:
    return find_violation(make_scenario(faults, **DEFAULT_RULES))
