import json
import re
from collections.abc import Callable
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.errors import DataError
from melisma.fleet.task import StopSettings
from melisma.learning import metrics
from melisma.runs.assignments import Assignments
from melisma.runs.cycle_figures import Cycle
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.report_json import FIGURES
from melisma.runs.trace import Step, read_trace, write_trace
from melisma.testing import FakeDevice, VirtualRun, commands_in, make_task

SHARD_SAMPLES = 10

Change = Callable[[events.AnyEvent], list[events.AnyEvent]]
FAST_DEVICES = [FakeDevice(0.2), FakeDevice(0.3), FakeDevice(0.4)]


def change_update(learner: int, cycle: int, change: Change) -> Change:
    """Change the update of one learner in one cycle, or in all cycles if `cycle` is 0."""

    def apply(event: events.AnyEvent) -> list[events.AnyEvent]:
        if not isinstance(event, events.UpdatesReceived) or event.learners[0] != learner:
            return [event]
        return change(event) if cycle in (0, event.cycle) else [event]

    return apply


def delay(seconds: float) -> Change:
    return lambda event: [msgspec.structs.replace(event, at_s=event.at_s + seconds)]


def refuse(event: events.AnyEvent) -> list[events.AnyEvent]:
    return [msgspec.structs.replace(event, refused="bias holds numbers that are not finite")]


def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
    assert isinstance(event, events.UpdatesReceived)
    event_left = events.LearnersLeft(
        at_s=event.at_s - 0.5, learners=event.learners, reason="connection lost"
    )
    return [event_left]


def cancel(event: events.AnyEvent) -> list[events.AnyEvent]:
    return [event, events.TaskCancelled(at_s=event.at_s + 0.01, reason="Ctrl-C")]


def run_virtually(
    devices: list[FakeDevice] = FAST_DEVICES, change: Change = lambda e: [e], **settings: Any
) -> list[Step]:
    defaults = {"scheme": "equal", "passes": 3}
    return VirtualRun(make_task(**(defaults | settings)), devices, change).run()


CHOSEN_PASSES: dict[str, Any] = {"scheme": "staleness", "passes": None}
SCENARIOS: dict[str, Callable[[], list[Step]]] = {
    "equal": run_virtually,
    "dab": lambda: run_virtually(scheme="dab"),
    "staleness": lambda: run_virtually(
        [FakeDevice(0.1), FakeDevice(0.3), FakeDevice(1.5)], **CHOSEN_PASSES
    ),
    "federated": lambda: run_virtually(
        [FakeDevice(0.1, local_shards=10), FakeDevice(0.3, local_shards=10)], mode="federated"
    ),
    "late": lambda: run_virtually(change=change_update(1, 2, delay(6))),
    "tail": lambda: run_virtually(change=change_update(2, 1, delay(2.5))),
    "halted": lambda: run_virtually(passes=6),
    "again": lambda: run_virtually(
        change=change_update(1, 2, lambda event: [event, *delay(0.1)(event)])
    ),
    "refused": lambda: run_virtually(change=change_update(1, 2, refuse)),
    "left": lambda: run_virtually(change=change_update(2, 2, leave)),
    "all left": lambda: run_virtually(FAST_DEVICES[:1], change_update(0, 2, leave)),
    "cancelled": lambda: run_virtually(change=change_update(0, 2, cancel)),
    "stopped": lambda: run_virtually(stop=StopSettings(accuracy=0.65), cycles=9),
    "empty": lambda: run_virtually(FAST_DEVICES[:1], change_update(0, 0, delay(50))),
    "one empty": lambda: run_virtually(FAST_DEVICES[:1], change_update(0, 2, delay(50))),
    "no plan": lambda: run_virtually(deadline_s=0.05, scheme="dab"),
    "no costs": lambda: run_virtually([FakeDevice(0.1, discloses="nothing")], **CHOSEN_PASSES),
}


@pytest.fixture(params=SCENARIOS)
def trace(request: pytest.FixtureRequest) -> list[Step]:
    return SCENARIOS[request.param]()


def report_of(name: str) -> Report:
    return Report.from_trace(SCENARIOS[name]())


def test_a_trace_written_and_read_gives_the_same_report(trace: list[Step], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, trace)
    report = Report.from_trace(trace)
    again = Report.from_trace(read_trace(path)).as_dict()
    assert again == report.as_dict()
    assert json.loads(json.dumps(again, allow_nan=False)) == again
    assert len(report.trace) == len(trace)


def test_progress_after_each_step_equals_the_report_of_the_steps_so_far(trace: list[Step]) -> None:
    progress = RunProgress()
    for count, step in enumerate(trace, 1):
        progress.apply(step)
        assert progress.report().as_dict() == Report.from_trace(trace[:count]).as_dict()


def test_every_assignment_is_reported_once_and_counts_as_the_machine_decided(
    trace: list[Step],
) -> None:
    report = Report.from_trace(trace)
    work = {
        (assignment.cycle, assignment.learner): assignment
        for cycle in report.cycles
        for assignment in cycle.assignments
    }
    dispatched = [
        (d.cycle, k) for d in commands_in(trace, commands.Dispatch) for k in d.learners.tolist()
    ]
    assert sorted(work) == sorted(dispatched)
    weights = {
        (a.cycle, k): weight
        for a in commands_in(trace, commands.Aggregate)
        for k, weight in zip(a.learners.tolist(), a.weights.tolist(), strict=True)
    }
    assert {
        key: assignment.weight for key, assignment in work.items() if assignment.weight
    } == weights
    for assignment in work.values():
        assert assignment.status == (
            "counted" if (assignment.cycle, assignment.learner) in weights else assignment.status
        )
        assert (
            assignment.counted_visits
            <= assignment.planned_visits
            == assignment.samples * assignment.passes
        )
        assert assignment.samples == assignment.shards * SHARD_SAMPLES
        assert bool(assignment.reason) == (assignment.status not in ("counted", "training"))
    assert sum(total.counted_visits for total in report.learners) == sum(
        e.counted_visits for e in work.values()
    )


def test_the_run_ends_as_the_machine_ended_it(trace: list[Step]) -> None:
    report, (end,) = Report.from_trace(trace), commands_in(trace, commands.Finish)
    assert (report.outcome, report.reason) == (end.outcome, end.reason)
    assert all(cycle.ending != "running" for cycle in report.cycles)


def test_figures_of_cycles_are_consistent(trace: list[Step]) -> None:
    report = Report.from_trace(trace)
    for cycle in report.cycles:
        assert cycle.met_deadline == (cycle.cycle_s <= cycle.deadline_s)
        assert isnan(cycle.cycle_s) == isnan(cycle.truancy) == (cycle.ending != "aggregated")
        if cycle.assignments:
            assert cycle.fulfilment + cycle.drop_rate == pytest.approx(1)
    met = [cycle.met_deadline for cycle in report.ended_cycles]
    np.testing.assert_equal(report.satisfaction, np.mean(met) if met else nan)


def test_the_figures_of_a_run_follow_from_its_devices() -> None:
    report = report_of("equal")
    assert (report.outcome, report.satisfaction, report.mean_truancy) == ("finished", 1, 0)
    first = report.cycles[0]
    assert [assignment.shards for assignment in first.assignments] == [7, 7, 6]
    # fixed_s, then each shard shipped and trained three times
    seconds = [0.2 + 0.1 * 7 + 0.2 * 21, 0.2 + 0.1 * 7 + 0.3 * 21, 0.2 + 0.1 * 6 + 0.4 * 18]
    assert first.cycle_s == pytest.approx(max(seconds))
    assert first.began_s == pytest.approx(0.1)
    assert (first.fulfilment, first.max_staleness, first.average_staleness) == (1, 0, 0)
    assert (first.aggregate_s, first.evaluate_s) == (0.01, 0.02)
    assert first.occupancy == pytest.approx(np.mean(seconds) / max(seconds))
    assert first.assignments[0].phases == pytest.approx((0, 0.1, 0.7, 0, 4.2, 0.1))
    assert isnan(first.assignments[0].predicted_s)
    assert report.training_s == pytest.approx(sum(cycle.cycle_s for cycle in report.cycles))
    assert [report.accuracy, report.loss] == pytest.approx([0.8, 1 / 0.8])
    assert (
        report.deadline_summary
        == "the deadline of 10 s held in 3 of 3 cycles; the longest took 8 s"
    )
    assert [total.counted_visits for total in report.learners] == [
        3
        * sum(
            assignment.samples
            for cycle in report.cycles
            for assignment in cycle.assignments[k : k + 1]
        )
        for k in range(3)
    ]


def test_predictions_are_known_where_costs_are() -> None:
    for assignment in report_of("staleness").cycles[0].assignments:
        assert assignment.predicted_s == pytest.approx(
            assignment.arrived_s - assignment.dispatched_s, rel=1e-3
        )


def test_a_learner_that_stops_early_is_stale_and_has_visits_undone() -> None:
    first = report_of("halted").cycles[0]
    # Each trains from the end of its shards until fixed_s before the deadline.
    done = [42, int((10 - 0.2 - 0.7) / 0.3 * 10) / 10, int((10 - 0.2 - 0.6) / 0.4 * 10) / 10]
    assert [assignment.counted_visits / SHARD_SAMPLES for assignment in first.assignments] == done
    assert first.fulfilment == pytest.approx(sum(done) / (42 + 42 + 36))
    assert first.max_staleness == pytest.approx(42 / 7 - done[2] / 6)
    pairs = (42 / 7 - done[2] / 6) + (42 / 7 - done[1] / 7) + (done[1] / 7 - done[2] / 6)
    assert first.average_staleness == pytest.approx(pairs / 3)
    assert first.met_deadline
    assert first.assignments[2].weight == pytest.approx(60 * done[2] / 36)


def test_an_update_between_deadline_and_tail_counts_and_makes_the_cycle_truant() -> None:
    report = report_of("tail")
    first = report.cycles[0]
    assert [assignment.status for assignment in first.assignments] == ["counted"] * 3
    assert first.cycle_s == pytest.approx(10.5)
    assert first.truancy == pytest.approx(0.05)
    assert not first.met_deadline
    assert report.satisfaction == pytest.approx(2 / 3)


def test_a_cycle_within_the_tolerance_of_timers_has_met_its_deadline() -> None:
    report = report_of("equal")
    longest = replace(report.cycles[1], closed_s=report.cycles[1].began_s + 10.04)
    report = replace(report, cycles=(report.cycles[0], longest, report.cycles[2]))
    assert (
        report.deadline_summary
        == "the deadline of 10 s held in 3 of 3 cycles; the longest took 10.04 s (within 0.5%)"
    )


def test_with_cycles_of_several_lengths_the_summary_names_the_deadline_that_was_missed() -> None:
    report = report_of("equal")
    first, second, third = report.cycles
    late = replace(second, deadline_s=4.0, closed_s=second.began_s + 5.0)
    report = replace(report, cycles=(first, late, third))
    assert report.deadline_summary == (
        "the deadline of 4 to 10 s held in 2 of 3 cycles; the latest took 5 s, 1 s more than its "
        "deadline of 4 s"
    )


def test_a_cycle_without_an_update_is_counted_in_the_summary_of_the_deadline() -> None:
    report = report_of("equal")
    empty = replace(report.cycles[2], ending="empty")
    report = replace(report, cycles=(*report.cycles[:2], empty))
    assert report.deadline_summary == (
        "the deadline of 10 s held in 2 of 3 cycles, 1 ended without an update; the longest took "
        "8 s"
    )


def test_an_update_after_the_tail_is_dropped_and_the_deadline_is_missed() -> None:
    report = report_of("late")
    second = report.cycles[1]
    late = second.assignments[1]
    assert (late.status, late.reason) == ("late", "the deadline and the predicted tail have passed")
    assert late.weight == late.counted_visits == 0
    assert late.ended_s == pytest.approx(second.began_s + 11)
    # Its update arrived in the next cycle: its visits are known, and do not count.
    assert late.visits == late.planned_visits
    assert late.arrived_s > second.closed_s
    # The cycle time ends when the cycle closes, not with the last counted update.
    assert second.cycle_s == pytest.approx(11)
    assert second.truancy == pytest.approx(0.1)
    assert not second.met_deadline
    assert second.drop_rate == pytest.approx(
        late.planned_visits / sum(w.planned_visits for w in second.assignments)
    )
    assert report.learners[1].late == 1


def test_a_refused_update_does_not_count_and_has_a_reason() -> None:
    second = report_of("refused").cycles[1]
    assert second.assignments[1].status == "refused"
    assert second.assignments[1].reason == "bias holds numbers that are not finite"
    assert second.assignments[1].counted_visits == 0
    assert second.met_deadline


def test_a_repeated_update_is_reported_once() -> None:
    assert report_of("again").as_dict()["cycles"] == report_of("equal").as_dict()["cycles"]


def test_the_work_of_a_learner_that_leaves_is_lost() -> None:
    report = report_of("left")
    second, third = report.cycles[1:]
    assert (second.assignments[2].status, second.assignments[2].reason) == (
        "left",
        "connection lost",
    )
    assert [assignment.learner for assignment in third.assignments] == [0, 1]
    assert (second.ending, report.learners[2].left) == ("aggregated", 1)
    assert report.outcome == "finished"


def test_a_cancelled_cycle_neither_meets_nor_misses_its_deadline() -> None:
    report = report_of("cancelled")
    assert [cycle.ending for cycle in report.cycles] == ["aggregated", "interrupted"]
    assert (report.outcome, report.reason, report.satisfaction) == ("cancelled", "Ctrl-C", 1)
    # Updates received before are in no model.
    assert [assignment.status for assignment in report.cycles[1].assignments] == ["dropped"] * 3
    assert report.learners[0].counted_visits == report.cycles[0].assignments[0].counted_visits


def test_empty_cycles_have_a_reason_and_miss_the_deadline() -> None:
    report = report_of("empty")
    assert [cycle.ending for cycle in report.cycles] == ["empty"] * 3
    assert report.cycles[0].reason == "no update was received"
    assert report.cycles[2].reason == report.reason
    assert (report.outcome, report.satisfaction, report.fulfilment) == ("failed", 0, 0)
    assert isnan(report.training_s)
    assert report.deadline_summary == (
        "the deadline of 10 s held in 0 of 3 cycles, 3 ended without an update"
    )


def test_one_empty_cycle_does_not_end_a_run() -> None:
    report = report_of("one empty")
    assert [cycle.ending for cycle in report.cycles] == ["aggregated", "empty", "aggregated"]
    assert report.satisfaction == pytest.approx(2 / 3)
    assert isnan(report.cycles[1].truancy)
    assert report.mean_truancy == 0


def test_a_run_whose_last_learner_left_failed_in_that_cycle() -> None:
    report = report_of("all left")
    assert (report.outcome, report.reason) == ("failed", "no learner is left: connection lost")
    assert [cycle.ending for cycle in report.cycles] == ["aggregated", "empty"]


@pytest.mark.parametrize("name", ["no plan", "no costs"])
def test_a_run_that_fails_before_its_first_cycle_has_no_cycles(name: str) -> None:
    report = report_of(name)
    assert (report.outcome, report.cycles) == ("failed", ())
    assert isnan(report.satisfaction)
    assert isnan(report.accuracy)
    assert report.deadline_summary.startswith("no cycle ended")


def test_cycles_for_which_no_learner_asked_for_a_shard_are_empty() -> None:
    def report_no_bounds(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.BoundsReported) and event.cycle > 1:
            return [msgspec.structs.replace(event, shards=event.shards * 0)]
        return [event]

    report = Report.from_trace(run_virtually(scheme="dab", change=report_no_bounds, cycles=9))
    assert [cycle.ending for cycle in report.cycles] == ["aggregated", "empty", "empty", "empty"]
    assert report.cycles[1].reason == "no learner asked for a shard"
    assert report.outcome == "failed"


def test_progress_is_known_during_training() -> None:
    trace = run_virtually()
    start = next(k for k, step in enumerate(trace) if commands_in([step], commands.Dispatch))
    progress = RunProgress()
    for step in trace[: start + 1]:
        progress.apply(step)
    event = events.ProgressReported(at_s=1, learners=np.array([1]), cycle=1, visits=np.array([30]))
    progress.apply(Step(event, []))
    assert progress.current_cycle is not None
    assert [assignment.visits for assignment in progress.current_cycle.assignments] == [0, 30, 0]
    assert [assignment.counted_visits for assignment in progress.current_cycle.assignments] == [
        0,
        0,
        0,
    ]
    assert (progress.current_cycle.ending, progress.report().outcome) == ("running", "running")
    assert isnan(progress.current_cycle.fulfilment)


def test_steps_after_the_end_change_nothing() -> None:
    trace = SCENARIOS["cancelled"]()
    end = next(k for k, step in enumerate(trace) if commands_in([step], commands.Finish))
    assert end < len(trace) - 1
    assert Report.from_trace(trace[: end + 1]).as_dict() == Report.from_trace(trace).as_dict()


def test_a_trace_without_a_task_is_refused() -> None:
    with pytest.raises(DataError, match="begin with TaskSubmitted"):
        Report.from_trace([])


def test_paths_are_part_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    report = replace(report_of("equal"), model=Path("a/model.npz"), folder=Path("a"))
    values = report.as_dict()
    assert (values["model"], values["phases"][4]) == ("a/model.npz", "train")
    assert values["cycles"][0]["assignments"][0]["planned_visits"] == 210
    assert values["learners"][0]["name"] == "device-0"
    assert "trace" not in values
    assert (report.trace_path, report.picture_path) == (Path("a/trace.jsonl"), None)
    Path("a/picture.svg").touch()
    assert report.picture_path == Path("a/picture.svg")


def test_waiting_is_not_part_of_occupancy() -> None:
    first = report_of("equal").cycles[0]
    waiting = replace(first.assignments[0], phases=(5.0, 0.5, 0.5, 0.5, 2.0, 0.5))
    assert replace(
        first, assignments=Assignments.from_records([waiting])
    ).occupancy == pytest.approx(4 / (first.closed_s - first.began_s))


def test_work_after_the_end_of_a_cycle_is_not_part_of_occupancy() -> None:
    first = report_of("equal").cycles[0]
    late = replace(first.assignments[0], phases=(0.0, 0.5, 0.5, 0.5, 200.0, 0.5))
    assert replace(first, assignments=Assignments.from_records([late])).occupancy == 1.0


def test_a_printed_report_is_a_few_lines_and_its_repr_is_one() -> None:
    report = replace(report_of("equal"), model=Path("runs/a/model.safetensors"))
    assert str(report).splitlines() == [
        f"{report.task.name}: {report.outcome} after 3 cycles: cycle 3 was the last",
        f"accuracy {report.accuracy:.1%}, loss {report.loss:.4g}",
        report.deadline_summary,
        "model: runs/a/model.safetensors",
    ]
    assert repr(report).startswith(f"Report(run={report.run!r}, ")
    assert len(repr(report)) < 300
    copied = replace(report, shared_identities=("pi: in use twice\x1b",))
    assert "copied identity: pi: in use twice\\x1b" in str(copied).splitlines()
    early = replace(report, cycles=(), outcome="cancelled", reason="Ctrl-C", model=None)
    assert str(early) == (
        f"{report.task.name}: cancelled after 0 cycles: Ctrl-C\n{early.deadline_summary}"
    )


def test_bytes_cost_and_joules_follow_from_the_rates() -> None:
    trace = SCENARIOS["equal"]()
    rates = np.array([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1], [0.0, 0.0, 0.5]])
    assert isinstance(trace[0].event, events.TaskSubmitted)
    priced = msgspec.structs.replace(trace[0].event, rates=rates)
    report = Report.from_trace([Step(priced, trace[0].commands), *trace[1:]])
    model_bytes, shard_bytes = report.task.model_bytes, report.task.shard_bytes
    first = report.cycles[0]
    assert first.bytes == 3 * 2 * model_bytes + 20 * shard_bytes
    assert first.cost == 7 * 1 + 7 * 2 + 6 * 3
    assert first.joules == pytest.approx(
        0.1 * first.visits_counted + 0.5 * (2 * model_bytes + 6 * shard_bytes)
    )
    assert report.cost == sum(cycle.cost for cycle in report.cycles) == report.as_dict()["cost"]
    assert report.bytes == sum(cycle.bytes for cycle in report.cycles)


def test_a_learner_that_leaves_downloads_a_model_and_uploads_none() -> None:
    left, complete = report_of("left").cycles[1], report_of("equal").cycles[1]
    lost_bytes = complete.assignments[2].shipped * report_of("equal").task.shard_bytes
    assert left.bytes == complete.bytes - lost_bytes - report_of("equal").task.model_bytes


def test_figures_with_unknown_rates_or_sizes_are_nan() -> None:
    report = report_of("equal")
    assert isnan(report.joules)
    assert isnan(report.cost)
    assert (report.as_dict()["joules"], report.as_dict()["cycles"][0]["cost"]) == (None, None)
    trace = SCENARIOS["equal"]()
    assert isinstance(trace[0].event, events.TaskSubmitted)
    own_model = msgspec.structs.replace(trace[0].event, task=make_task(model="nets:Mine"))
    assert isnan(Report.from_trace([Step(own_model, []), *trace[1:]]).bytes)


def test_visits_are_trained_or_dropped() -> None:
    for name in ("equal", "late", "halted", "left", "refused", "cancelled"):
        report = report_of(name)
        planned = sum(int(cycle.assignments.planned_visits.sum()) for cycle in report.cycles)
        assert report.visits_counted + report.visits_dropped == planned
        assert report.visits_counted == sum(total.counted_visits for total in report.learners)
    assert report_of("equal").visits_dropped == 0
    assert report_of("halted").fulfilment == pytest.approx(
        1 - report_of("halted").visits_dropped / report_of("halted").learners.planned_visits.sum()
    )


def test_seconds_to_an_accuracy_end_with_the_first_cycle_that_reached_it() -> None:
    report = report_of("equal")
    assert [cycle.accuracy for cycle in report.cycles] == pytest.approx([0.6, 0.7, 0.8])
    second = report.cycles[1]
    assert report.seconds_to(0.65) == pytest.approx(second.closed_s + 0.01 + 0.02)
    assert report.seconds_to(0.1) < report.seconds_to(0.75)
    assert isnan(report.seconds_to(0.9))


def test_in_staleness_lost_work_counts_as_no_pass() -> None:
    second = report_of("late").cycles[1]
    passes = [assignment.counted_visits / assignment.samples for assignment in second.assignments]
    assert passes == [3, 0, 3]
    assert second.max_staleness == 3
    assert second.average_staleness == pytest.approx(2)


def test_staleness_counts_learners_that_could_not_make_one_pass() -> None:
    report = Report.from_trace(
        run_virtually([FakeDevice(0.1), FakeDevice(0.2), FakeDevice(9.0)], passes=None)
    )
    for cycle in report.cycles:
        assert (cycle.no_pass, len(cycle.assignments)) == (1, 2)
        passes = [*(row.counted_visits / row.samples for row in cycle.assignments), 0]
        assert cycle.max_staleness == max(passes)
        assert cycle.average_staleness == pytest.approx(metrics.average_staleness(passes))
    assert report.max_staleness == max(cycle.max_staleness for cycle in report.cycles)
    assert report.as_dict()["cycles"][0]["no_pass"] == 1


def test_staleness_excludes_open_assignments() -> None:
    trace = SCENARIOS["equal"]()
    arrived = next(
        k for k, step in enumerate(trace) if isinstance(step.event, events.UpdatesReceived)
    )
    (first,) = Report.from_trace(trace[: arrived + 1]).cycles
    assert first.counts == {"training": 2, "counted": 1}
    assert first.max_staleness == 0


def test_missed_deadlines_are_counted_and_staleness_covers_all_cycles() -> None:
    assert [report_of(name).deadline_misses for name in ("equal", "late", "empty")] == [0, 1, 3]
    report = report_of("halted")
    staleness = [(cycle.max_staleness, cycle.average_staleness) for cycle in report.cycles]
    assert report.max_staleness == max(most for most, _ in staleness)
    assert report.average_staleness == pytest.approx(np.mean([mean for _, mean in staleness]))
    assert isnan(report_of("no plan").max_staleness)


def test_the_docs_page_lists_all_figures() -> None:
    page = (Path(__file__).parents[2] / "docs/cycle/index.md").read_text(encoding="utf-8")
    rows = page.split("| figure | of | |\n")[1].split("\n\n")[0].splitlines()[1:]
    documented: dict[str, list[str]] = {"Cycle": [], "Report": []}
    for row in rows:
        names, of, _ = (cell.strip() for cell in row.strip("|").split("|"))
        for record in of.split(", "):
            documented[record] += re.findall(r"`(\w+)`", names)
    assert {name: set(figures) for name, figures in documented.items()} == {
        kind.__name__: set(FIGURES[kind]) for kind in (Cycle, Report)
    }


def test_a_restart_while_the_clock_stood_still_is_not_reported_as_downtime() -> None:
    report = Report.from_trace(SCENARIOS[next(iter(SCENARIOS))]())
    stopped = replace(report, restarts=2)
    assert stopped.restart_summary == (
        "the orchestrator restarted 2 times; the clock of the run stood still meanwhile"
    )
    assert "it was down for 9 s in all" in replace(stopped, downtime_s=9.0).restart_summary
