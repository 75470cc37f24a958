"""Several tasks that share a fleet, simulated: laws of their runs, and refused settings."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import melisma
from melisma.allocation.schemes import SCHEMES
from melisma.cycle import commands, events
from melisma.errors import RunFailedError, SettingError
from melisma.fleet.task import Task
from melisma.runs.service_report import ServiceReport
from melisma.runs.trace import Step, encode_step
from melisma.service.commands import GrantShares, HoldTask
from melisma.simulation import SimulationOptions
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from melisma.simulation.simulation import NO_OVERRIDES
from tests.simulation.scenarios import make_fleet, make_task

SHARED = [row.name for row in SCHEMES.values() if row.problem == "shared"]
STATES = {"heat": 0.5, "compute": [1.0, 0.4, 0.9], "bandwidth": [1.0, 0.9, 0.3]}
GROUP = [
    {"name": "pi", "count": 8, "samples_per_s": 600.0, "bandwidth_bps": 20e6, "states": STATES}
]
SECONDS_OF_A_SHARD = 100 / 600


def tasks(**settings: Any) -> list[Task]:
    first = make_task(**({"name": "first", "scheme": "med"} | settings))
    second = {"name": "second", "sizes": {"samples": 2000}, "deadline_s": 8.0, "passes": 1}
    third = {"name": "third", "sizes": {"samples": 1000}}
    return [
        first,
        make_task(**({"scheme": "med"} | settings | second)),
        make_task(**({"scheme": "med"} | settings | third)),
    ]


def fleet(**settings: Any) -> melisma.Fleet:
    return melisma.Fleet.from_tables(group=GROUP, **settings)


class Recorded:
    """A run with the steps of each task and of the service."""

    def __init__(
        self,
        options: SimulationOptions = NO_OVERRIDES,
        submits_s: tuple[float, ...] = (),
        given: list[Task] | None = None,
        **settings: Any,
    ) -> None:
        self.steps: dict[int, list[Step]] = defaultdict(list)
        self.service: list[Any] = []
        prepared = prepare_tasks(given or tasks(), fleet(**settings), options, submits_s)
        self.report: ServiceReport = run_tasks(
            prepared,
            watch=lambda number, _, step: self.steps[number].append(step),
            watch_service=self.service.append,
        )

    def issued(self, kind: type[Any]) -> list[tuple[int, float, Any]]:
        return [
            (number, step.event.at_s, command)
            for number, steps in self.steps.items()
            for step in steps
            for command in step.commands
            if isinstance(command, kind)
        ]

    def of_service(self, kind: type[Any]) -> list[tuple[float, Any]]:
        return [
            (step.event.at_s, command)
            for step in self.service
            for command in step.commands
            if isinstance(command, kind)
        ]


@pytest.mark.parametrize("scheme", SHARED)
def test_all_tasks_finish_and_each_shard_is_given_once_in_each_cycle(scheme: str) -> None:
    run = Recorded(SimulationOptions(scheme=scheme, work="timing", seed=3))
    assert run.report.outcome == "finished"
    assert [len(report.ended_cycles) for report in run.report.tasks] == [3, 3, 3]
    for number, _, dispatch in run.issued(commands.Dispatch):
        shards = tasks()[number].shards
        assert sorted(dispatch.shards.values.tolist()) == list(range(shards))


def test_the_same_seed_gives_the_same_traces_byte_for_byte() -> None:
    faults = "crash 1 at 12 for 1; vanish 2 at 20 for 5; slow 3 at 0 for 50 by 2"
    options = SimulationOptions(work="timing", seed=5, faults=faults)
    first, second = (Recorded(options) for _ in range(2))
    for number in range(3):
        assert list(map(encode_step, first.steps[number])) == list(
            map(encode_step, second.steps[number])
        )
    other = Recorded(SimulationOptions(work="timing", seed=6, faults=faults))
    assert list(map(encode_step, first.steps[0])) != list(map(encode_step, other.steps[0]))


@pytest.mark.parametrize("scheme", SHARED)
def test_a_learner_does_one_thing_at_a_time(scheme: str) -> None:
    """Benchmarks come one after another; the work of a round follows them and each other."""
    run = Recorded(SimulationOptions(scheme=scheme, work="timing", seed=4))
    reported = [
        (learner, step.event.at_s)
        for steps in run.steps.values()
        for step in steps
        if isinstance(step.event, events.CostsReported)
        and step.event.at_s < run.report.tasks[0].cycles[0].began_s
        for learner in step.event.learners.tolist()
    ]
    for learner in range(8):
        times = sorted(at_s for each, at_s in reported if each == learner)
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert len(times) >= 2
        assert min(gaps) >= SECONDS_OF_A_SHARD * 0.9
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for report in run.report.tasks:
        for cycle in report.cycles:
            for work in cycle.assignments:
                number = report.names.index(work.name)
                spans[number].append((work.dispatched_s, work.arrived_s))
    for each in spans.values():
        ordered = sorted(each)
        assert all(first[1] <= second[0] + 1e-9 for first, second in pairwise(ordered))


def test_the_tasks_of_a_round_begin_together_and_the_next_round_after_all_of_them() -> None:
    run = Recorded(SimulationOptions(work="timing", seed=3))
    began: dict[int, set[float]] = defaultdict(set)
    closed: dict[int, float] = defaultdict(float)
    for report in run.report.tasks:
        for cycle in report.cycles:
            began[cycle.number].add(cycle.began_s)
            closed[cycle.number] = max(closed[cycle.number], cycle.closed_s)
    for number in (1, 2, 3):
        assert len(began[number]) == 1
        assert min(began[number]) >= closed[number - 1]


def test_a_task_submitted_in_the_middle_of_cycles_begins_with_the_next_round() -> None:
    run = Recorded(SimulationOptions(work="timing", seed=3), submits_s=(0.0, 0.0, 9.0))
    grants = run.of_service(GrantShares)
    first = min(at_s for at_s, grant in grants if grant.number == 2)
    rounds = sorted({at_s for at_s, _ in grants})
    assert first == next(at_s for at_s in rounds if at_s > 9.0)
    assert run.report.outcome == "finished"


def test_learners_of_a_finished_task_move_on() -> None:
    short, *others = tasks()
    short = make_task(name="short", scheme="med", cycles=1)
    run = Recorded(SimulationOptions(work="timing", seed=3), given=[short, *others])
    by_round = [set[int](), set[int]()]
    for _, grant in run.of_service(GrantShares):
        if grant.round <= 2 and grant.number > 0:
            by_round[grant.round - 1] |= set(grant.learners.tolist())
    assert len(by_round[0]) < 8
    assert len(by_round[1]) == 8


def test_a_learner_reports_three_costs_and_nothing_else_and_mmtt_only_once() -> None:
    for scheme, most in (("mmtt", 3), ("mmtt-ideal", 9), ("med", 100)):
        run = Recorded(SimulationOptions(scheme=scheme, work="timing", seed=3))
        reports = [
            step.event
            for steps in run.steps.values()
            for step in steps
            if isinstance(step.event, events.CostsReported)
        ]
        assert all(event.costs.shape[:2] == (3, 3) for event in reports)
        counts = np.bincount(np.concatenate([event.learners for event in reports]), minlength=8)
        assert counts.max() <= most


def requests_of_first(scheme: str) -> list[commands.RequestShares]:
    """Return the requests of the first task, on a fleet with seed 3."""
    run = Recorded(SimulationOptions(scheme=scheme, work="timing"), seed=3)
    return [command for number, _, command in run.issued(commands.RequestShares) if number == 0]


def test_med_plans_with_expected_costs_mmtt_with_measured_and_ideal_with_present_ones() -> None:
    devices, task = fleet(seed=3), tasks()[0]
    costs = devices.state_costs(task)
    expected = {
        "med": costs.mean()["train_s"],
        "mmtt": costs.in_states(devices.states_in_cycle(0))["train_s"],
        "mmtt-ideal": costs.in_states(devices.states_in_cycle(1))["train_s"],
        "fifo": costs.mean()["train_s"],
    }
    for scheme, train_s in expected.items():
        first = requests_of_first(scheme)[0]
        assert first.costs[0, 0] == pytest.approx(train_s[first.learners], rel=1e-6)


def test_expected_costs_stay_those_of_the_fleet_when_cycles_refresh_them() -> None:
    expected = fleet(seed=3).state_costs(tasks()[0]).mean()
    last = requests_of_first("med")[-1]
    assert last.cycle == 3
    assert last.costs[0, 0] == pytest.approx(expected["train_s"][last.learners], rel=0.02)


def test_learners_that_estimate_probabilities_learn_from_the_states_that_they_were_in() -> None:
    devices, task = fleet(seed=3), tasks()[0]
    run = Recorded(
        SimulationOptions(scheme="med", work="timing"), seed=3, state_probabilities="estimated"
    )
    requests = [each for number, _, each in run.issued(commands.RequestShares) if number == 0]
    by_state = devices.state_costs(task).train_s
    first, last = requests[0], requests[-1]
    assert first.costs[0, 0] == pytest.approx(by_state.mean(axis=1)[first.learners], rel=1e-6)
    weight = np.ones(by_state.shape)
    for before in range(1, last.cycle):
        weight[np.arange(8), devices.states_in_cycle(before)] += 1
    learned = (weight * by_state).sum(axis=1) / weight.sum(axis=1)
    # Those that trained for this task have reported since.
    (trained,) = [
        each.learners
        for number, _, each in run.issued(commands.Dispatch)
        if number == 0 and each.cycle == last.cycle - 1
    ]
    assert trained.size
    reported = dict(zip(last.learners.tolist(), last.costs[0, 0].tolist(), strict=True))
    assert [reported[n] for n in trained.tolist()] == pytest.approx(learned[trained], rel=0.02)


def test_crashes_and_silence_end_no_run() -> None:
    for seed in range(6):
        faults = f"crash 1 at {8 + seed} for 1; crash 2 at {10 + seed}; vanish 3 at {12 + seed}"
        run = Recorded(SimulationOptions(work="timing", seed=seed, faults=faults))
        assert run.report.outcome == "finished"
        planned = [cycle for report in run.report.tasks for cycle in report.ended_cycles]
        assert len(planned) == 9


@pytest.mark.parametrize("fault", ["crash 1 at 9 for 1", "crash 1 at 9", "vanish 1 at 9 for 5"])
def test_learners_that_leave_and_return_before_a_task_is_submitted_join_it(fault: str) -> None:
    options = SimulationOptions(work="timing", seed=3, faults=fault)
    run = Recorded(options, submits_s=(0.0, 0.0, 30.0))
    assert run.report.outcome == "finished"
    joined = [
        set(step.event.learners.tolist())
        for step in run.steps[2]
        if isinstance(step.event, events.LearnersJoined)
    ]
    assert joined[0] >= set(range(8)) - {1}
    assert (1 in joined[0]) == ("for" in fault)


def test_a_learner_that_joins_late_takes_part_from_a_later_round_on() -> None:
    late = [
        *GROUP,
        {
            "name": "late",
            "count": 1,
            "samples_per_s": 600.0,
            "bandwidth_bps": 20e6,
            "availability": {"joins_s": 9.0},
        },
    ]
    report = melisma.simulate(
        tasks(), melisma.Fleet.from_tables(group=late), SimulationOptions(work="timing")
    )
    given = [
        cycle.number
        for each in report.tasks
        for cycle in each.cycles
        for work in cycle.assignments
        if work.name.startswith("late")
    ]
    assert given
    assert min(given) > 1


def test_a_task_that_cannot_fit_waits_until_the_others_have_ended() -> None:
    slow = make_task(name="third", scheme="med", sizes={"samples": 22000}, passes=1)
    given = [*tasks()[:2], slow]
    run = Recorded(SimulationOptions(work="timing", seed=3), given=given)
    held = run.of_service(HoldTask)
    assert held
    assert {command.number for _, command in held} == {2}
    assert run.report.rounds[0].held["third"].startswith("deadline_s cannot be met")
    last = max(cycle.closed_s for report in run.report.tasks[:2] for cycle in report.cycles)
    assert run.report.tasks[2].cycles[0].began_s >= last
    assert run.report.outcome == "finished"


def test_a_task_without_any_plan_fails_with_what_would_be_enough() -> None:
    impossible = make_task(name="third", scheme="med", sizes={"samples": 60000}, deadline_s=2.0)
    with pytest.raises(
        RunFailedError, match=r"third failed: deadline_s cannot be met.*use"
    ) as info:
        melisma.simulate([*tasks()[:2], impossible], fleet(), SimulationOptions(work="timing"))
    assert info.value.report.outcome == "failed"


def test_forty_tasks_without_any_plan_all_fail_with_the_reason() -> None:
    given = [
        make_task(name=f"t{number}", scheme="fifo", sizes={"samples": 60000}, deadline_s=1.0)
        for number in range(40)
    ]
    run = Recorded(SimulationOptions(work="timing"), given=given)
    assert {each.outcome for each in run.report.tasks} == {"failed"}
    assert all("cannot be met" in each.reason for each in run.report.tasks)


def test_an_unknown_scheme_of_one_task_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "second.toml"
    file.write_text('[task]\nname = "second"\nscheme = "meed"\ndeadline_s = 5.0\n')
    with pytest.raises(SettingError, match=r"second\.toml: task: no scheme is called 'meed'"):
        melisma.simulate((tasks()[0], file), fleet())


def test_no_round_costs_more_than_the_budget() -> None:
    price = {"mean": 1.0, "sd": 0.5, "low": 0.1, "high": 1.5}
    group = [{**GROUP[0], "price": price}]
    priced = melisma.Fleet.from_tables(group=group, budget=75.0, seed=3)
    report = melisma.simulate(tasks(), priced, SimulationOptions(work="timing"))
    assert 0 < report.largest_cost <= 75.0
    spent = [
        sum(cycle.cost for cycle in each)
        for each in zip(*(r.cycles for r in report.tasks), strict=True)
    ]
    assert max(spent) == pytest.approx(report.largest_cost)


def test_a_folder_has_a_run_folder_for_each_task_and_the_steps_of_the_service(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    report = melisma.simulate(tasks(), fleet(), SimulationOptions(work="timing"), folder=out)
    assert sorted(path.name for path in out.iterdir()) == [
        "1-first",
        "2-second",
        "3-third",
        "service.jsonl",
    ]
    again = melisma.runs.Report.from_trace(
        melisma.runs.trace.read_trace(out / "1-first" / "trace.jsonl")
    )
    assert again.satisfaction == report.tasks[0].satisfaction
    assert report.tasks[0].picture_path == out / "1-first" / "picture.svg"


def test_the_metrics_of_all_tasks_are_means_over_their_cycles() -> None:
    report = melisma.simulate(tasks(), fleet(seed=9), SimulationOptions(work="timing"))
    cycles = [cycle for each in report.tasks for cycle in each.cycles]
    assert report.mean_cycle_s == pytest.approx(np.mean([c.cycle_s for c in cycles]))
    assert report.satisfaction == np.mean([c.met_deadline for c in cycles])
    assert report.fulfilment == pytest.approx(np.mean([c.fulfilment for c in cycles]))
    assert report.drop_rate == pytest.approx(1 - report.fulfilment)
    assert report.occupancy == pytest.approx(np.mean([c.occupancy for c in cycles]))
    used, allowed = np.sum([c.used_and_allowed_visits for c in cycles], axis=0)
    assert report.capacity_used == pytest.approx(used / allowed)
    lost = sum(c.lost_visits for c in cycles) / allowed
    assert list(report.capacity_lost.values()) == pytest.approx(lost)
    assert report.capacity_used + sum(report.capacity_lost.values()) == pytest.approx(1)
    values = report.as_dict()
    assert values["capacity_lost"] == report.capacity_lost
    assert values["satisfaction"] == report.satisfaction
    assert [each["task"]["name"] for each in values["tasks"]] == ["first", "second", "third"]
    assert values["rounds"][0]["planned_s"].keys() == {"first", "second", "third"}


@pytest.mark.parametrize(
    ("settings", "fleet_settings", "options", "message"),
    [
        ({"mode": "federated"}, {}, {}, "mode = federated"),
        ({"sample": 2}, {}, {}, "sample"),
        ({}, {}, {"deadline_s": 4.0}, "deadline_s = 4.0 is for one task"),
        ({}, {}, {"total_s": 60.0}, "total_s = 60.0 is for one task"),
        ({}, {}, {"scheme": "dab"}, "scheme dab plans one task at a time"),
        ({}, {}, {"faults": "fill disk at 4 for 2"}, "a failing disk of the orchestrator"),
        ({}, {"orchestrator": {"bandwidth_bps": 1e6}}, {}, "a link of the orchestrator"),
        ({"extension": True}, {"budget": 90}, {}, "use extension = false"),
        ({"extension": True, "budget": 9.0}, {}, {}, "it has budget = 9"),
    ],
)
def test_settings_that_runs_of_several_tasks_ignore_are_refused(
    settings: dict[str, Any], fleet_settings: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        melisma.simulate(
            tasks(**settings), fleet(**fleet_settings), SimulationOptions(work="timing", **options)
        )


def test_equal_names_and_objects_of_one_task_are_refused() -> None:
    first, *_ = tasks()
    with pytest.raises(SettingError, match="two tasks have the same name, first; "):
        melisma.simulate([first, first], fleet())
    with pytest.raises(SettingError, match="on_cycle is for one task"):
        melisma.simulate([first], fleet(), on_cycle=print)  # type: ignore[call-overload]
    with pytest.raises(SettingError, match="expected a list of tasks, at least one"):
        melisma.simulate([], fleet())


def test_tasks_with_extension_use_the_time_until_their_deadlines() -> None:
    rules = {"extension": True, "overlap": True, "late": "carry", "quorum": 0.8}
    report = melisma.simulate(
        tasks(**rules), fleet(seed=2), SimulationOptions(work="timing", faults="crash 1 at 14")
    )
    assert report.outcome == "finished"
    assert report.capacity_used > 0.6
    assert make_fleet().learners == 3


TINY = {
    "model": "tests.live.tiny_task:Linear",
    "data": "tests.live.tiny_task:blobs",
    "sizes": {},
    "scheme": "med",
    "shard_samples": 30,
    "optimizer": {"lr": 0.1},
}


def test_each_task_trains_a_model_of_its_own(tmp_path: Path) -> None:
    given = [make_task(name=name, cycles=2, **TINY) for name in ("first", "second")]
    options = SimulationOptions(work="train")
    report = melisma.simulate(given, fleet(), options, folder=tmp_path / "out")
    assert [each.outcome for each in report.tasks] == ["finished", "finished"]
    assert all(each.accuracy > 0.8 for each in report.tasks)
    assert all(each.model is not None and each.model.is_file() for each in report.tasks)
    again = melisma.simulate(given, fleet(), options)
    assert [each.loss for each in again.tasks] == [each.loss for each in report.tasks]
