"""Runs in virtual time, with and without faults."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from melisma.cycle import commands, events, ragged
from melisma.cycle.events import PHASES
from melisma.cycle.learner import silence_limit_s
from melisma.cycle.machine import CycleMachine
from melisma.cycle.restarts import SAVE_S
from melisma.runs.report import Report
from melisma.runs.trace import encode_step
from tests.simulation.scenarios import (
    LEARNERS,
    commands_of,
    make_fleet,
    make_scenario,
    run,
    run_steps,
)

SCHEMES = ("equal", "proportional", "synchronous", "staleness", "dab")
# Sizes with which every scheme finds a plan.
SETTINGS: dict[str, Any] = {"shard_samples": 40, "deadline_s": 12.0}


def passes(scheme: str) -> dict[str, Any]:
    return {"passes": None} if scheme in ("synchronous", "staleness") else {"passes": 2}


def events_of(report: Report, kind: type) -> list[Any]:
    return [each.event for each in report.trace if isinstance(each.event, kind)]


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_completes_the_run(scheme: str, mode: str) -> None:
    report = run(scheme=scheme, mode=mode, **passes(scheme), **SETTINGS)
    assert (report.outcome, len(report.cycles)) == ("finished", 3)
    assert all(cycle.ending == "aggregated" for cycle in report.cycles)
    if scheme != "equal":
        assert report.satisfaction == 1.0
        assert report.fulfilment > 0.9


def test_the_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    faults = "crash 1 at 14 for 9; slow 0 at 5 for 9 by 3; duplicate report 2 from 2 by 1"
    one, other, another = (
        b"".join(map(encode_step, run_steps(make_scenario(faults, seed=seed))))
        for seed in (4, 4, 5)
    )
    assert one == other
    assert one != another


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("scheme", ["dab", "proportional"])
@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_the_trace_does_not_depend_on_the_size_of_blocks(
    mode: str, scheme: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of learners with noise and operating states, some of which are late."""
    states = [{"probability": 0.5, "compute": share, "bandwidth": share} for share in (1.0, 0.4)]
    rates = (150.0, 300.0, 500.0, 700.0, 900.0, 1100.0, 1300.0)
    fleet = make_fleet(
        [
            {"name": f"d{rate:g}", "samples_per_s": rate, "bandwidth_bps": 9e6, "state": states}
            for rate in rates
        ],
        noise={"compute": 0.4, "bandwidth": 0.4, "correlation_s": 2.0},
    )
    rules: dict[str, Any] = {"extension": True, "overlap": True, "late": "carry", "quorum": 0.6}
    scenario = make_scenario(
        fleet=fleet, scheme=scheme, mode=mode, cycles=5, **SETTINGS | {"deadline_s": 4.0}, **rules
    )
    expected = run_steps(scenario)
    assert Report.from_trace(expected).learners.carried.any()
    monkeypatch.setattr(ragged, "BLOCK", block)
    assert list(map(encode_step, run_steps(scenario))) == list(map(encode_step, expected))


def test_predictions_are_exact_without_uncertainty() -> None:
    report = run(scheme="proportional", caution=0.5, cycles=1)
    (cycle,) = report.cycles
    for each in cycle.assignments:
        assert each.arrived_s - cycle.began_s == pytest.approx(each.predicted_s, rel=0.02)


def test_shards_that_a_learner_holds_are_not_fetched_again() -> None:
    # Each cycle deals all shards, and each learner gets as many as before.
    report = run(scheme="proportional", cycles=3, deadline_s=60.0)
    first, *later = (sum(each.shipped for each in c.assignments) for c in report.cycles)
    assert first > 0
    assert all(again <= first // 4 for again in later)


def test_shards_that_were_prefetched_while_learners_wait_are_not_fetched_in_the_cycle() -> None:
    """Late bounds delay the second cycle by 2 s, in which learners fetch."""
    learner = {"samples_per_s": 800.0, "latency_s": 0.01}
    fleet = make_fleet(
        [{"name": n, "bandwidth_bps": b, **learner} for n, b in (("a", 2e6), ("b", 3e6))]
    )
    delays = "; ".join(f"delay report 3 from {number} by 2" for number in range(2))
    settings: dict[str, Any] = {"overlap": True, "cycles": 2, "sizes": {"samples": 20000}}
    at_once, later = (run(faults, fleet, **settings).cycles[1] for faults in ("", delays))
    assert later.began_s == at_once.began_s + 2.0
    assert (later.assignments.shards == at_once.assignments.shards).all()
    # Shards that were fetched before the cycle are shipped, too.
    assert (later.assignments.shipped == at_once.assignments.shipped).all()
    fetch_s = [
        work.assignments.phases[:, PHASES.index("fetch shards")] for work in (at_once, later)
    ]
    assert (fetch_s[0] - fetch_s[1] > 1.9).all()
    assert later.cycle_s < at_once.cycle_s - 0.5


def test_operating_states_change_the_training_time() -> None:
    states = {"state": [{"probability": 0.5}, {"probability": 0.5, "compute": 0.2}]}
    changing = make_fleet([learner | states for learner in LEARNERS])
    report = run(fleet=changing, scheme="equal", passes=1, cycles=12, deadline_s=100.0)
    took = [each.phases[4] for c in report.cycles for each in c.assignments if each.learner == 0]
    assert max(took) / min(took) == pytest.approx(5.0, rel=0.2)


def test_a_learner_that_sleeps_is_late_by_its_sleep() -> None:
    awake = run(scheme="equal", passes=1, cycles=1, deadline_s=60.0)
    sleeping = make_fleet(
        [LEARNERS[0] | {"availability": {"awake_s": 1.0, "asleep_s": 1.0}}, *LEARNERS[1:]]
    )
    slept = run(fleet=sleeping, scheme="equal", passes=1, cycles=1, deadline_s=60.0)
    assert slept.cycles[0].cycle_s > 1.3 * awake.cycles[0].cycle_s
    # Its own clock stood still while it slept.
    assert slept.cycles[0].assignments[0].phases == awake.cycles[0].assignments[0].phases


@pytest.mark.parametrize("scheme", ["synchronous", "staleness", "proportional", "dab"])
def test_a_slow_device_takes_part_in_the_first_cycle(scheme: str) -> None:
    """Its benchmark takes all the time that it may take, those of the others much less."""
    fleet = make_fleet([LEARNERS[0] | {"samples_per_s": 40.0}, *LEARNERS[1:]])
    passes = None if scheme in ("synchronous", "staleness") else 1
    report = run(fleet=fleet, scheme=scheme, passes=passes, cycles=2, extension=True)
    assert {each.learner for each in report.cycles[0].assignments} == {0, 1, 2}


def test_learners_join_and_leave_at_the_times_in_the_fleet() -> None:
    availability = [{"availability": {"leaves_s": 12.0}}, {}, {"availability": {"joins_s": 15.0}}]
    fleet = make_fleet(
        [learner | extra for learner, extra in zip(LEARNERS, availability, strict=True)]
    )
    report = run(fleet=fleet, scheme="proportional", cycles=5)
    participants = [sorted(each.learner for each in c.assignments) for c in report.cycles]
    assert participants[0] == [0, 1]
    assert participants[-1] == [1, 2]
    assert report.departures == ("tortoise: left",)


def work_of(report: Report, learner: int) -> list[Any]:
    return [each for c in report.cycles for each in c.assignments if each.learner == learner]


def test_a_learner_that_restarts_soon_goes_on_with_its_assignment() -> None:
    alone, report = run(extension=True), run("crash 1 at 12 for 2", extension=True)
    (resumed,) = events_of(report, events.LearnersResumed)
    assert (resumed.at_s, resumed.learners.tolist()) == (14.0, [1])
    assert len(events_of(report, events.LearnersJoined)) == 1
    assert {each.status for each in work_of(report, 1)} == {"counted"}
    visits, undisturbed = work_of(report, 1)[1].visits, work_of(alone, 1)[1].visits
    assert 0.3 * undisturbed < visits < undisturbed


def test_a_restarted_learner_loses_what_it_trained_since_it_last_saved() -> None:
    settings: dict[str, Any] = {
        "extension": True,
        "deadline_s": 100.0,
        "sizes": {"samples": 50_000},
    }
    alone = work_of(run(**settings), 1)[0].visits
    for crash_s, lost_s in ((80.0, 4 + SAVE_S), (40.0, 4 + SAVE_S)):
        visits = work_of(run(f"crash 1 at {crash_s} for 4", **settings), 1)[0].visits
        assert alone * (1 - (lost_s + 1) / 100) < visits < alone * (1 - 3 / 100)


def test_a_restarted_learner_whose_update_is_in_trains_in_the_next_cycle() -> None:
    settings: dict[str, Any] = {"passes": 1, "extension": False, "deadline_s": 20.0}
    slow = LEARNERS[0] | {"samples_per_s": 40.0}
    fleet = make_fleet([slow, *LEARNERS[1:]])
    first = run(fleet=fleet, scheme="equal", **settings)
    report = run("crash 1 at 15 for 2", fleet, scheme="equal", **settings)
    assert not commands_of(report, commands.Resend)
    assert [w.visits for w in work_of(report, 1)] == [w.visits for w in work_of(first, 1)]


def test_a_crashed_learner_drops_its_work_and_participates_after_its_restart() -> None:
    report = run("crash 1 at 12 for 5", cycles=5)
    statuses = [each.status for c in report.cycles for each in c.assignments if each.learner == 1]
    assert "left" in statuses
    assert statuses[-1] == "counted"
    (joined,) = [event for event in events_of(report, events.LearnersJoined) if event.at_s > 0]
    assert joined.learners.tolist() == [1]


def test_the_orchestrator_waits_for_an_unreachable_learner_no_longer_than_the_tail() -> None:
    report = run("partition 1 at 12 for 100")
    late = [c for c in report.cycles if any(each.status == "late" for each in c.assignments)]
    assert late
    for cycle in late:
        assert cycle.cycle_s == pytest.approx(cycle.deadline_s + cycle.tail_s)
    assert report.outcome == "finished"


@pytest.mark.parametrize("deadline_s", [10.0, 60.0])
def test_the_silence_of_a_vanished_learner_at_work_is_noticed_within_seconds(
    deadline_s: float,
) -> None:
    report = run("vanish 1 at 12", deadline_s=deadline_s)
    (left,) = [step.event for step in report.trace if isinstance(step.event, events.LearnersLeft)]
    assert left.reason == "hare: sent no sign of life"
    assert left.at_s - 12.0 == pytest.approx(float(silence_limit_s(float("nan"), deadline_s)))
    assert report.outcome == "finished"


def test_shards_of_a_vanished_learner_are_handed_on_in_the_same_cycle() -> None:
    report = run("vanish 0 at 12", extension=True, scheme="equal", sizes={"samples": 3000})
    handed_on = {c.cycle for c in commands_of(report, commands.Extend) if c.handed_on.size}
    (gone,) = [c.number for c in report.cycles if c.assignments[0].status == "left"]
    assert gone in handed_on


def test_the_last_learner_is_awaited_even_if_it_is_silent() -> None:
    report = run("vanish 0 at 12; vanish 1 at 12; vanish 2 at 12 for 5")
    assert report.outcome == "finished"


def test_the_work_of_a_learner_that_restarted_unnoticed_is_dropped() -> None:
    report = run("vanish 1 at 12 for 0.5")
    reasons = [each.reason for c in report.cycles for each in c.assignments if each.reason]
    assert "the learner restarted" in reasons


def test_a_duplicate_update_counts_once() -> None:
    plain = run()
    duplicated = run("; ".join(f"duplicate report {n} from 1 by 0.01" for n in range(1, 8)))
    copies = [
        each for each in commands_of(duplicated, commands.Withdraw) if each.learners.tolist() == [1]
    ]
    assert copies
    for one, other in zip(plain.cycles, duplicated.cycles, strict=True):
        assert [a.weight for a in one.assignments] == [a.weight for a in other.assignments]


def test_a_lost_update_is_dropped_and_the_others_count() -> None:
    report = run("lose report 2 from 2", scheme="equal", passes=1, cycles=3)
    statuses = [[each.status for each in c.assignments] for c in report.cycles]
    assert statuses == [["counted"] * 3, ["counted", "counted", "late"], ["counted"] * 3]


def test_a_corrupt_update_is_refused_with_a_reason() -> None:
    report = run("corrupt update 1 from 0")
    first = report.cycles[0].assignments[0]
    assert (first.status, first.weight) == ("refused", 0.0)
    assert "not finite" in first.reason


def test_a_learner_with_a_slow_clock_is_late() -> None:
    report = run("clock 0 by 0.5", scheme="equal", passes=50, cycles=1)
    assert report.cycles[0].assignments[0].status == "late"
    # A fast clock makes it stop early.
    fast = run("clock 0 by 2", scheme="equal", passes=50, cycles=1)
    assert fast.cycles[0].assignments[0].arrived_s < 6.0


def test_a_learner_participates_again_after_a_partition() -> None:
    report = run("partition 0,1 at 2 for 30", cycles=6)
    statuses = [each.status for c in report.cycles for each in c.assignments if each.learner == 0]
    assert len(statuses) < len(report.cycles)
    assert statuses[-1] == "counted"


def test_a_run_without_answers_fails_instead_of_hanging() -> None:
    report = run("vanish 0 at 0.001; vanish 1 at 0.001; vanish 2 at 0.001")
    assert report.outcome == "failed"
    assert "no learner answered 3 requests in a row" in report.reason


def split_by_learner(event: Any) -> list[Any]:
    """Split an event of many learners into one event each, at its time of arrival."""
    if not isinstance(event, events.UpdatesReceived):
        return [event]
    rows = ("attempts", "visits", "shipped", "loss", "phases")
    return [
        events.UpdatesReceived(
            at_s=float(event.arrival_times_s[index]),
            learners=event.learners[[index]],
            cycle=event.cycle,
            **{name: getattr(event, name)[[index]] for name in rows},
        )
        for index in range(event.learners.size)
    ]


@pytest.mark.parametrize("scheme", ["dab", "proportional"])
def test_events_of_many_learners_give_the_same_commands_as_one_event_each(scheme: str) -> None:
    report, machine, issued = run(scheme=scheme), CycleMachine(), list[commands.AnyCommand]()
    for batch in (each.event for each in report.trace):
        for event in split_by_learner(batch):
            issued += machine.handle(event)
    for kind in (commands.Dispatch, commands.Aggregate):
        alone = [
            msgspec.json.encode(each, enc_hook=lambda array: array.tolist())
            for each in issued
            if type(each) is kind
        ]
        assert alone == [
            msgspec.json.encode(c, enc_hook=lambda array: array.tolist())
            for c in commands_of(report, kind)
        ]
    assert max(event.learners.size for event in events_of(report, events.UpdatesReceived)) == 3


def test_a_learner_that_cannot_train_a_shard_in_time_does_not_delay_the_others() -> None:
    # The second learner cannot train a shard in time: its bound is 0, and it benchmarks itself.
    slow = LEARNERS[1] | {"samples_per_s": 15.0}
    report = run(fleet=make_fleet([LEARNERS[0], slow]), cycles=3)
    ended = [cycle.closed_s for cycle in report.cycles]
    began = [cycle.began_s for cycle in report.cycles]
    assert began[1:] == ended[:-1]


def test_a_sleeping_learner_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("learner,at_s,event\nhare,5,sleep\n")
    asleep = make_fleet(trace=str(tmp_path / "trace.csv"))
    report = run(fleet=asleep, cycles=3)
    bounds = [event for event in events_of(report, events.BoundsReported) if event.at_s > 5]
    assert bounds
    assert all(1 not in event.learners for event in bounds)
    assert [len(cycle.assignments) for cycle in report.cycles] == [3, 2, 2]


def test_a_fault_may_hit_several_learners() -> None:
    report = run("corrupt update 1 from 0,2")
    assert [each.status for each in report.cycles[0].assignments] == [
        "refused",
        "counted",
        "refused",
    ]


def test_a_learner_that_left_sends_nothing_and_does_not_return() -> None:
    whole = run(cycles=2)
    in_s = whole.cycles[0].assignments[1].arrived_s
    leaving = LEARNERS[1] | {"availability": {"leaves_s": in_s - 0.01}}
    report = run(fleet=make_fleet([LEARNERS[0], leaving, LEARNERS[2]]), cycles=2)
    assert report.cycles[0].assignments[1].status == "left"
    again = run(
        f"crash 1 at {in_s - 3:.3f} for 60", fleet=make_fleet([LEARNERS[0], leaving]), cycles=8
    )
    assert all(event.at_s == 0 for event in events_of(again, events.LearnersJoined))


def test_a_learner_that_sleeps_for_ever_before_its_benchmark_does_not_delay_the_others(
    tmp_path: Path,
) -> None:
    (tmp_path / "trace.csv").write_text("learner,at_s,event\nhare,0.001,sleep\n")
    report = run(fleet=make_fleet(trace=str(tmp_path / "trace.csv")), cycles=2)
    assert report.outcome == "finished"
    assert all(1 not in cycle.assignments.learner for cycle in report.cycles)
