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
from melisma.runs.progress import RunProgress
from melisma.runs.report import FIGURES, Cycle, Report
from melisma.runs.trace import Step, read_trace, write_trace
from melisma.testing import FakeDevice, VirtualRun, commands_in, make_task

SHARD_SAMPLES = 10

Change = Callable[[events.Event], list[events.Event]]
FAST = [FakeDevice(0.2), FakeDevice(0.3), FakeDevice(0.4)]


def changed(learner: int, cycle: int, change: Change) -> Change:
    """The update of one learner in one cycle, or in all with 0, becomes something else."""

    def apply(event: events.Event) -> list[events.Event]:
        if not isinstance(event, events.UpdatesReceived) or event.learners[0] != learner:
            return [event]
        return change(event) if cycle in (0, event.cycle) else [event]

    return apply


def later(seconds: float) -> Change:
    return lambda event: [msgspec.structs.replace(event, at_s=event.at_s + seconds)]


def refused(event: events.Event) -> list[events.Event]:
    return [msgspec.structs.replace(event, refused="bias holds numbers that are not finite")]


def left(event: events.Event) -> list[events.Event]:
    assert isinstance(event, events.UpdatesReceived)
    gone = events.LearnersLeft(
        at_s=event.at_s - 0.5, learners=event.learners, reason="connection lost"
    )
    return [gone]


def cancelled(event: events.Event) -> list[events.Event]:
    return [event, events.TaskCancelled(at_s=event.at_s + 0.01, reason="Ctrl-C")]


def played(
    devices: list[FakeDevice] = FAST, change: Change = lambda e: [e], **settings: Any
) -> list[Step]:
    defaults = {"scheme": "equal", "passes": 3}
    return VirtualRun(make_task(**(defaults | settings)), devices, change).run()


ALONE: dict[str, Any] = {"scheme": "staleness", "passes": None}
PLAYS: dict[str, Callable[[], list[Step]]] = {
    "equal": played,
    "dab": lambda: played(scheme="dab"),
    "staleness": lambda: played([FakeDevice(0.1), FakeDevice(0.3), FakeDevice(1.5)], **ALONE),
    "federated": lambda: played(
        [FakeDevice(0.1, local_shards=10), FakeDevice(0.3, local_shards=10)], mode="federated"
    ),
    "late": lambda: played(change=changed(1, 2, later(6))),
    "tail": lambda: played(change=changed(2, 1, later(2.5))),
    "halted": lambda: played(passes=6),
    "again": lambda: played(change=changed(1, 2, lambda event: [event, *later(0.1)(event)])),
    "refused": lambda: played(change=changed(1, 2, refused)),
    "left": lambda: played(change=changed(2, 2, left)),
    "all left": lambda: played(FAST[:1], changed(0, 2, left)),
    "cancelled": lambda: played(change=changed(0, 2, cancelled)),
    "stopped": lambda: played(stop=StopSettings(accuracy=0.65), cycles=9),
    "empty": lambda: played(FAST[:1], changed(0, 0, later(50))),
    "one empty": lambda: played(FAST[:1], changed(0, 2, later(50))),
    "no plan": lambda: played(deadline_s=0.05, scheme="dab"),
    "no costs": lambda: played([FakeDevice(0.1, discloses="nothing")], **ALONE),
}


@pytest.fixture(params=PLAYS)
def trace(request: pytest.FixtureRequest) -> list[Step]:
    return PLAYS[request.param]()


def report(name: str) -> Report:
    return Report.of(PLAYS[name]())


def test_a_trace_written_and_read_gives_the_same_report(trace: list[Step], tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, trace)
    whole = Report.of(trace)
    again = Report.of(read_trace(path)).as_dict()
    assert again == whole.as_dict()
    assert json.loads(json.dumps(again, allow_nan=False)) == again
    assert len(whole.trace) == len(trace)


def test_a_story_says_at_each_step_what_the_report_of_so_much_says(trace: list[Step]) -> None:
    story = RunProgress()
    for count, step in enumerate(trace, 1):
        story.apply(step)
        assert story.report().as_dict() == Report.of(trace[:count]).as_dict()


def test_every_assignment_is_told_once_and_counts_as_the_machine_says(trace: list[Step]) -> None:
    found = Report.of(trace)
    work = {
        (each.cycle, each.learner): each for cycle in found.cycles for each in cycle.assignments
    }
    given = [
        (d.cycle, k) for d in commands_in(trace, commands.Dispatch) for k in d.learners.tolist()
    ]
    assert sorted(work) == sorted(given)
    weights = {
        (a.cycle, k): weight
        for a in commands_in(trace, commands.Aggregate)
        for k, weight in zip(a.learners.tolist(), a.weights.tolist(), strict=True)
    }
    assert {key: each.weight for key, each in work.items() if each.weight} == weights
    for each in work.values():
        assert each.status == ("counted" if (each.cycle, each.learner) in weights else each.status)
        assert each.counted_visits <= each.planned_visits == each.samples * each.passes
        assert each.samples == each.shards * SHARD_SAMPLES
        assert bool(each.reason) == (each.status not in ("counted", "training"))
    assert sum(each.counted_visits for each in found.learners) == sum(
        e.counted_visits for e in work.values()
    )


def test_the_run_ends_as_the_machine_ended_it(trace: list[Step]) -> None:
    found, (end,) = Report.of(trace), commands_in(trace, commands.Finish)
    assert (found.outcome, found.reason) == (end.outcome, end.reason)
    assert all(each.ending != "running" for each in found.cycles)


def test_figures_of_cycles_keep_their_laws(trace: list[Step]) -> None:
    found = Report.of(trace)
    for each in found.cycles:
        assert each.met_deadline == (each.waited_s <= each.deadline_s)
        assert each.ending != "aggregated" or each.cycle_s <= each.waited_s
        assert isnan(each.cycle_s) == isnan(each.truancy) == (each.ending != "aggregated")
        if each.assignments:
            assert each.fulfilment + each.drop_rate == pytest.approx(1)
    kept = [each.met_deadline for each in found.ended_cycles]
    np.testing.assert_equal(found.satisfaction, np.mean(kept) if kept else nan)


def test_a_plain_run_has_the_figures_that_its_devices_make() -> None:
    found = report("equal")
    assert (found.outcome, found.satisfaction, found.mean_truancy) == ("done", 1, 0)
    first = found.cycles[0]
    assert [each.shards for each in first.assignments] == [7, 7, 6]
    # fixed_s, then each shard shipped and trained three times
    seconds = [0.2 + 0.1 * 7 + 0.2 * 21, 0.2 + 0.1 * 7 + 0.3 * 21, 0.2 + 0.1 * 6 + 0.4 * 18]
    assert first.cycle_s == first.waited_s == pytest.approx(max(seconds))
    assert first.began_s == pytest.approx(0.1)
    assert (first.fulfilment, first.max_staleness, first.average_staleness) == (1, 0, 0)
    assert (first.aggregate_s, first.evaluate_s) == (0.01, 0.02)
    assert first.occupancy == pytest.approx(np.mean(seconds) / max(seconds))
    assert first.assignments[0].phases == pytest.approx((0, 0.1, 0.7, 0, 4.2, 0.1))
    assert isnan(first.assignments[0].predicted_s)
    assert found.training_s == pytest.approx(sum(each.cycle_s for each in found.cycles))
    assert [found.accuracy, found.loss] == pytest.approx([0.8, 1 / 0.8])
    assert (
        found.deadline_summary == "the deadline of 10 s held in 3 of 3 cycles; the longest took 8 s"
    )
    assert [each.counted_visits for each in found.learners] == [
        3 * sum(each.samples for cycle in found.cycles for each in cycle.assignments[k : k + 1])
        for k in range(3)
    ]


def test_predictions_are_there_where_costs_are_known() -> None:
    for each in report("staleness").cycles[0].assignments:
        assert each.predicted_s == pytest.approx(each.arrived_s - each.dispatched_s, rel=1e-3)


def test_who_halts_is_stale_and_leaves_visits_undone() -> None:
    first = report("halted").cycles[0]
    # Each trains from the end of its shards until fixed_s before the deadline.
    did = [42, int((10 - 0.2 - 0.7) / 0.3 * 10) / 10, int((10 - 0.2 - 0.6) / 0.4 * 10) / 10]
    assert [each.counted_visits / SHARD_SAMPLES for each in first.assignments] == did
    assert first.fulfilment == pytest.approx(sum(did) / (42 + 42 + 36))
    assert first.max_staleness == pytest.approx(42 / 7 - did[2] / 6)
    pairs = (42 / 7 - did[2] / 6) + (42 / 7 - did[1] / 7) + (did[1] / 7 - did[2] / 6)
    assert first.average_staleness == pytest.approx(pairs / 3)
    assert first.met_deadline
    assert first.assignments[2].weight == pytest.approx(60 * did[2] / 36)


def test_an_update_past_the_deadline_but_in_the_tail_is_taken_and_makes_the_cycle_truant() -> None:
    found = report("tail")
    first = found.cycles[0]
    assert [each.status for each in first.assignments] == ["counted"] * 3
    assert first.cycle_s == pytest.approx(10.5)
    assert first.truancy == pytest.approx(0.05)
    assert not first.met_deadline
    assert found.satisfaction == pytest.approx(2 / 3)


def test_who_is_late_beyond_the_tail_is_dropped_and_the_deadline_did_not_hold() -> None:
    found = report("late")
    second = found.cycles[1]
    late = second.assignments[1]
    assert (late.status, late.reason) == ("late", "the deadline and the predicted tail have passed")
    assert late.weight == late.counted_visits == 0
    assert late.ended_s == pytest.approx(second.began_s + 11)
    # Its update came in the next cycle: what it trained is known, and does not count.
    assert late.visits == late.planned_visits
    assert late.arrived_s > second.closed_s
    # The papers' time ends with the last update taken; the orchestrator waited longer.
    assert second.cycle_s < 10 < second.waited_s == pytest.approx(11)
    assert (second.truancy, second.met_deadline) == (0, False)
    assert second.drop_rate == pytest.approx(
        late.planned_visits / sum(w.planned_visits for w in second.assignments)
    )
    assert found.learners[1].late == 1


def test_a_refused_update_does_not_count_and_says_why() -> None:
    second = report("refused").cycles[1]
    assert second.assignments[1].status == "refused"
    assert second.assignments[1].reason == "bias holds numbers that are not finite"
    assert second.assignments[1].counted_visits == 0
    assert second.met_deadline


def test_an_update_that_comes_twice_is_told_once() -> None:
    assert report("again").as_dict()["cycles"] == report("equal").as_dict()["cycles"]


def test_who_leaves_takes_its_work_with_it() -> None:
    found = report("left")
    second, third = found.cycles[1:]
    assert (second.assignments[2].status, second.assignments[2].reason) == (
        "left",
        "connection lost",
    )
    assert [each.learner for each in third.assignments] == [0, 1]
    assert (second.ending, found.learners[2].left) == ("aggregated", 1)
    assert found.outcome == "done"


def test_a_cycle_that_is_cancelled_is_neither_held_nor_missed() -> None:
    found = report("cancelled")
    assert [each.ending for each in found.cycles] == ["aggregated", "interrupted"]
    assert (found.outcome, found.reason, found.satisfaction) == ("cancelled", "Ctrl-C", 1)
    # What had come is in no model.
    assert [each.status for each in found.cycles[1].assignments] == ["dropped"] * 3
    assert found.learners[0].counted_visits == found.cycles[0].assignments[0].counted_visits


def test_empty_cycles_say_why_and_hold_no_deadline() -> None:
    found = report("empty")
    assert [each.ending for each in found.cycles] == ["empty"] * 3
    assert found.cycles[0].reason == "no update was received"
    assert found.cycles[2].reason == found.reason
    assert (found.outcome, found.satisfaction, found.fulfilment) == ("failed", 0, 0)
    assert isnan(found.training_s)
    assert found.deadline_summary == "the deadline of 10 s held in 0 of 3 cycles"


def test_one_empty_cycle_does_not_end_a_run() -> None:
    found = report("one empty")
    assert [each.ending for each in found.cycles] == ["aggregated", "empty", "aggregated"]
    assert found.satisfaction == pytest.approx(2 / 3)
    assert isnan(found.cycles[1].truancy)
    assert found.mean_truancy == 0


def test_a_run_whose_last_learner_left_failed_in_that_cycle() -> None:
    found = report("all left")
    assert (found.outcome, found.reason) == ("failed", "no learner is left: connection lost")
    assert [each.ending for each in found.cycles] == ["aggregated", "empty"]


@pytest.mark.parametrize("name", ["no plan", "no costs"])
def test_a_run_that_fails_before_its_first_cycle_has_none(name: str) -> None:
    found = report(name)
    assert (found.outcome, found.cycles) == ("failed", ())
    assert isnan(found.satisfaction)
    assert isnan(found.accuracy)
    assert found.deadline_summary.startswith("no cycle ended")


def test_cycles_for_which_nobody_asked_for_a_shard_are_empty_too() -> None:
    def shy(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.BoundsReported) and event.cycle > 1:
            return [msgspec.structs.replace(event, shards=event.shards * 0)]
        return [event]

    found = Report.of(played(scheme="dab", change=shy, cycles=9))
    assert [each.ending for each in found.cycles] == ["aggregated", "empty", "empty", "empty"]
    assert found.cycles[1].reason == "no learner asked for a shard"
    assert found.outcome == "failed"


def test_progress_is_told_while_training_goes_on() -> None:
    trace = played()
    start = next(k for k, step in enumerate(trace) if commands_in([step], commands.Dispatch))
    story = RunProgress()
    for step in trace[: start + 1]:
        story.apply(step)
    who = np.array([1])
    visits = events.ProgressReported(at_s=1, learners=who, cycle=1, visits=np.array([30]))
    story.apply(Step(visits, []))
    assert story.current_cycle is not None
    assert [each.visits for each in story.current_cycle.assignments] == [0, 30, 0]
    assert [each.counted_visits for each in story.current_cycle.assignments] == [0, 0, 0]
    assert (story.current_cycle.ending, story.report().outcome) == ("running", "running")
    assert isnan(story.current_cycle.fulfilment)


def test_what_is_heard_after_the_end_changes_nothing() -> None:
    trace = PLAYS["cancelled"]()
    end = next(k for k, step in enumerate(trace) if commands_in([step], commands.Finish))
    assert end < len(trace) - 1
    assert Report.of(trace[: end + 1]).as_dict() == Report.of(trace).as_dict()


def test_a_trace_without_a_task_is_refused() -> None:
    with pytest.raises(DataError, match="begin with TaskSubmitted"):
        Report.of([])


def test_paths_are_kept_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    found = replace(report("equal"), model=Path("a/model.npz"), folder=Path("a"))
    plain = found.as_dict()
    assert (plain["model"], plain["phases"][4]) == ("a/model.npz", "train")
    assert plain["cycles"][0]["assignments"][0]["planned_visits"] == 210
    assert plain["learners"][0]["name"] == "device-0"
    assert "trace" not in plain
    assert (found.trace_path, found.picture_path) == (Path("a/trace.jsonl"), None)
    Path("a/picture.svg").touch()
    assert found.picture_path == Path("a/picture.svg")


def test_waiting_is_not_being_busy() -> None:
    first = report("equal").cycles[0]
    waited = replace(first.assignments[0], phases=(5.0, 0.5, 0.5, 0.5, 2.0, 0.5))
    assert replace(
        first, assignments=Assignments.from_records([waited])
    ).occupancy == pytest.approx(4 / (waited.arrived_s - first.began_s))


def test_a_plain_run_costs_what_its_learners_cost() -> None:
    trace = PLAYS["equal"]()
    rates = np.array([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1], [0.0, 0.0, 0.5]])
    assert isinstance(trace[0].event, events.TaskSubmitted)
    priced = msgspec.structs.replace(trace[0].event, rates=rates)
    found = Report.of([Step(priced, trace[0].commands), *trace[1:]])
    model_bytes, shard_bytes = found.task.model_bytes, found.task.shard_bytes
    first = found.cycles[0]
    assert first.bytes == 3 * 2 * model_bytes + 20 * shard_bytes
    assert first.cost == 7 * 1 + 7 * 2 + 6 * 3
    assert first.joules == pytest.approx(
        0.1 * first.samples_trained + 0.5 * (2 * model_bytes + 6 * shard_bytes)
    )
    assert found.cost == sum(each.cost for each in found.cycles) == found.as_dict()["cost"]
    assert found.bytes == sum(each.bytes for each in found.cycles)


def test_who_never_hands_in_gets_a_model_and_sends_none() -> None:
    late, whole = report("left").cycles[1], report("equal").cycles[1]
    lost = whole.assignments[2].shipped * report("equal").task.shard_bytes
    assert late.bytes == whole.bytes - lost - report("equal").task.model_bytes


def test_what_is_not_known_of_rates_and_sizes_is_no_number() -> None:
    found = report("equal")
    assert isnan(found.joules)
    assert isnan(found.cost)
    assert (found.as_dict()["joules"], found.as_dict()["cycles"][0]["cost"]) == (None, None)
    trace = PLAYS["equal"]()
    assert isinstance(trace[0].event, events.TaskSubmitted)
    own = msgspec.structs.replace(trace[0].event, task=make_task(model="nets:Mine"))
    assert isnan(Report.of([Step(own, []), *trace[1:]]).bytes)


def test_visits_are_trained_or_dropped() -> None:
    for name in ("equal", "late", "halted", "left", "refused", "cancelled"):
        found = report(name)
        planned = sum(int(each.assignments.planned_visits.sum()) for each in found.cycles)
        assert found.samples_trained + found.samples_dropped == planned
        assert found.samples_trained == sum(each.counted_visits for each in found.learners)
    assert report("equal").samples_dropped == 0
    assert report("halted").fulfilment == pytest.approx(
        1 - report("halted").samples_dropped / report("halted").learners.planned_visits.sum()
    )


def test_seconds_to_an_accuracy_run_from_the_beginning_to_the_first_that_reached_it() -> None:
    found = report("equal")
    assert [each.accuracy for each in found.cycles] == pytest.approx([0.6, 0.7, 0.8])
    second = found.cycles[1]
    assert found.seconds_to(0.65) == pytest.approx(second.closed_s + 0.01 + 0.02)
    assert found.seconds_to(0.1) < found.seconds_to(0.75)
    assert isnan(found.seconds_to(0.9))


def test_staleness_counts_learners_whose_work_was_lost_as_without_a_pass() -> None:
    second = report("late").cycles[1]
    passes = [each.counted_visits / each.samples for each in second.assignments]
    assert passes == [3, 0, 3]
    assert second.max_staleness == 3
    assert second.average_staleness == pytest.approx(2)


def test_staleness_counts_learners_that_could_not_make_one_pass() -> None:
    found = Report.of(played([FakeDevice(0.1), FakeDevice(0.2), FakeDevice(9.0)], passes=None))
    for each in found.cycles:
        assert (each.no_pass, len(each.assignments)) == (1, 2)
        passes = [*(one.counted_visits / one.samples for one in each.assignments), 0]
        assert each.max_staleness == max(passes)
        assert each.average_staleness == pytest.approx(metrics.average_staleness(passes))
    assert found.max_staleness == max(each.max_staleness for each in found.cycles)
    assert found.as_dict()["cycles"][0]["no_pass"] == 1


def test_work_that_is_under_way_takes_no_part_in_staleness() -> None:
    trace = PLAYS["equal"]()
    arrived = next(
        k for k, step in enumerate(trace) if isinstance(step.event, events.UpdatesReceived)
    )
    (first,) = Report.of(trace[: arrived + 1]).cycles
    assert first.counts == {"training": 2, "counted": 1}
    assert first.max_staleness == 0


def test_deadlines_that_did_not_hold_are_counted_and_staleness_is_of_all_cycles() -> None:
    assert [report(name).deadline_misses for name in ("equal", "late", "empty")] == [0, 1, 3]
    found = report("halted")
    each = [(cycle.max_staleness, cycle.average_staleness) for cycle in found.cycles]
    assert found.max_staleness == max(most for most, _ in each)
    assert found.average_staleness == pytest.approx(np.mean([mean for _, mean in each]))
    assert isnan(report("no plan").max_staleness)


def test_what_the_page_says_of_figures_is_what_there_is() -> None:
    page = (Path(__file__).parents[2] / "docs/cycle/index.md").read_text(encoding="utf-8")
    rows = page.split("| figure | of | |\n")[1].split("\n\n")[0].splitlines()[1:]
    said: dict[str, list[str]] = {"Cycle": [], "Report": []}
    for row in rows:
        names, of, _ = (cell.strip() for cell in row.strip("|").split("|"))
        for record in of.split(", "):
            said[record] += re.findall(r"`(\w+)`", names)
    assert {name: set(figures) for name, figures in said.items()} == {
        kind.__name__: set(FIGURES[kind]) for kind in (Cycle, Report)
    }
