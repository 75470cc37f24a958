"""Whatever one learner reports, the machine goes on, and the shares of the others stay feasible."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.allocation import SCHEMES
from melisma.cycle import commands, events
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.testing import FakeDevice, VirtualRun, commands_in, make_task
from tests.lanes import cases

CYCLE_SCHEMES = ["dab", "equal", "proportional", "synchronous", "staleness"]
FLEET = [FakeDevice(0.1), FakeDevice(0.3), FakeDevice(0.2)]
FEDERATED_FLEET = [replace(device, local_shards=6) for device in FLEET]
HOSTILE = 2
MAX_HOSTILE_EVENTS = 100
SECONDS = st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 1.0, 1e7, 1e12, 1e300, 1.7e308])
PHASES = st.sampled_from([0.0, 1e-9, 1.0, 1e7])  # others are refused where messages enter
COUNTS = st.sampled_from([0, 1, 7, 10**6, 2**40, 2**53])
LOCAL_SHARDS = st.tuples(st.sampled_from([1, 2, 500]), st.sampled_from([0, 1, 10])).map(
    lambda pair: [pair[1]] * pair[0]
)
"""Samples of the shards on a device; larger ones are refused where messages enter."""
COSTS = st.lists(
    st.tuples(SECONDS, SECONDS, st.sampled_from([0.1, 1.0, 1e6, 1e300])), min_size=3, max_size=3
)


@st.composite
def hostile_events(draw: Any, *, federated: bool = False) -> Any:
    """Return a function from an instant and a cycle to an event of the hostile learner."""
    me = np.array([HOSTILE])
    kinds = ["costs", "bound", "progress", "request", "release", "update", "leave", "join"]
    kind = draw(st.sampled_from(kinds))
    count, other = draw(COUNTS), draw(COUNTS)
    # Where data is handed out, shards that a learner declares are ignored when it joins.
    local_shards = as_row(draw(LOCAL_SHARDS)) if federated else NO_ROWS
    discloses = draw(st.sampled_from(["costs", "bounds", "nothing"]))
    costs = np.array(draw(COSTS))[:, :, None]
    seconds, attempt = draw(PHASES), draw(st.integers(0, 3))

    def make(at_s: float, cycle: int) -> events.AnyEvent:
        match kind:
            case "costs":
                return events.CostsReported(at_s=at_s, learners=me, costs=costs)
            case "bound":
                return events.BoundsReported(
                    at_s=at_s, learners=me, cycle=cycle, deadline_s=10.0, shards=np.array([count])
                )
            case "progress":
                return events.ProgressReported(
                    at_s=at_s, learners=me, cycle=cycle, visits=np.array([count])
                )
            case "request":
                return events.ShardsRequested(
                    at_s=at_s, learners=me, cycle=cycle, shards=np.array([min(count, 2**40)])
                )
            case "release":
                shards = RaggedArray(np.array([2]), np.array([count, other]))
                return events.ShardsReleased(at_s=at_s, learners=me, cycle=cycle, shards=shards)
            case "leave":
                return events.LearnersLeft(at_s=at_s, learners=me, reason="device-2: gone")
            case "join":
                return events.LearnersJoined(
                    at_s=at_s,
                    learners=me,
                    names=("device-2",),
                    discloses=(discloses,),
                    local_shard_samples=local_shards,
                )
        return events.UpdatesReceived(
            at_s=at_s,
            learners=me,
            cycle=cycle,
            attempts=np.array([attempt]),
            visits=np.array([count]),
            planned_visits=np.array([min(count, other)]),
            shipped=np.array([other]),
            loss=np.array([seconds]),
            phases=np.full((1, len(events.PHASES)), seconds),
        )

    return make


def run_with(
    task: Any, hostile: list[Any], local_shards: Sequence[int] | None = None
) -> list[Step]:
    """Run the task; after each event of another learner the hostile one sends an event of its own.

    Its true events about costs and bounds do not arrive. In federated learning it joins with these
    `local_shards`.
    """
    left, sent = list(hostile), 0

    def intercept(event: events.AnyEvent) -> list[events.AnyEvent]:
        reports = isinstance(event, events.CostsReported | events.BoundsReported)
        if isinstance(event, events.LearnersJoined) and event.learners[0] == HOSTILE:
            declared = NO_ROWS if local_shards is None else as_row(local_shards)
            return [msgspec.structs.replace(event, local_shard_samples=declared)]
        if isinstance(event, events.TaskSubmitted | events.LearnersJoined | events.TimeReached):
            return [event]
        nonlocal sent
        cycle, sent = getattr(event, "cycle", 1), sent + 1
        mine = [left[sent % len(left)](event.at_s, cycle)] if sent < MAX_HOSTILE_EVENTS else []
        own = HOSTILE in getattr(event, "learners", np.empty(0)).tolist()
        return mine if own and reports else [event, *mine]

    fleet = FLEET if task.mode == "parallelized" else FEDERATED_FLEET
    run = VirtualRun(task, fleet, intercept)
    return run.run()


def as_row(values: Sequence[int]) -> RaggedArray:
    """Return an array with one row."""
    return RaggedArray.from_rows([np.array(values)])


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
@settings(max_examples=15, deadline=None)
@given(st.lists(hostile_events(), min_size=1, max_size=5))
def test_one_learner_cannot_break_the_machine(
    scheme: str, extension: bool, hostile: list[Any]
) -> None:
    passes = None if SCHEMES[scheme].passes == "chosen" else 2
    rules = {"extension": True, "overlap": True, "quorum": 0.8, "late": "carry"}
    task = make_task(scheme=scheme, passes=passes, cycles=3, **(rules if extension else {}))
    trace = run_with(task, hostile)
    check_run(trace)
    for command in commands_in(trace, commands.Dispatch):
        assert command.shards.values.max(initial=0) < task.shards
    for average in commands_in(trace, commands.Aggregate):
        assert (average.weights <= task.samples).all()


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
@settings(max_examples=cases(30), deadline=None)
@given(st.lists(hostile_events(federated=True), min_size=1, max_size=5), LOCAL_SHARDS)
def test_one_learner_cannot_break_the_machine_in_federated_learning(
    scheme: str, extension: bool, hostile: list[Any], local_shards: list[int]
) -> None:
    passes = None if SCHEMES[scheme].passes == "chosen" else 2
    rules = {"extension": True, "overlap": True, "quorum": 0.8, "late": "carry"}
    task = make_task(
        scheme=scheme,
        passes=passes,
        cycles=3,
        mode="federated",
        guard="clip",
        **(rules if extension else {}),
    )
    trace = run_with(task, hostile, local_shards)
    check_run(trace)
    for command in commands_in(trace, commands.Dispatch):
        honest = command.learners != HOSTILE
        numbers = command.shards.take(np.flatnonzero(honest)).values
        assert numbers.max(initial=0) < FEDERATED_FLEET[0].local_shards
    for average in commands_in(trace, commands.Aggregate):
        honest_weights = average.weights[average.learners != HOSTILE]
        assert (average.weights <= 10 * honest_weights.max()).all()


def check_run(trace: list[Step]) -> None:
    """Assert that the run came to its end, and that the honest learners took part in it."""
    (finish,) = commands_in(trace, commands.Finish)
    assert finish.outcome == "finished", finish.reason
    for command in commands_in(trace, commands.Dispatch):
        assert (command.shards.counts > 0).all()
        assert (command.passes > 0).all()
    averages, submitted = commands_in(trace, commands.Aggregate), trace[0].event
    assert isinstance(submitted, events.TaskSubmitted)
    for average in averages:
        assert np.isfinite(average.weights).all()
        # With what the hostile one claims to have, one honest update may be enough for the quorum.
        assert len({0, 1} & set(average.learners.tolist())) >= (
            2 if submitted.task.quorum == 1.0 else 1
        )
    assert {0, 1} <= {learner for average in averages for learner in average.learners.tolist()}
    Report.from_trace(trace).as_dict()


@pytest.mark.parametrize("scheme", ["proportional", "synchronous", "staleness"])
@pytest.mark.parametrize("cost", [1e-300, 1e300])
def test_costs_that_no_plan_can_hold_do_not_stop_the_others(scheme: str, cost: float) -> None:
    def hostile(at_s: float, cycle: int) -> events.AnyEvent:
        costs = np.array([[cost, cost, 1.0]] * 3)[:, :, None]
        return events.CostsReported(at_s=at_s, learners=np.array([HOSTILE]), costs=costs)

    passes = None if SCHEMES[scheme].passes == "chosen" else 2
    trace = run_with(make_task(scheme=scheme, passes=passes, cycles=2), [hostile])
    (finish,) = commands_in(trace, commands.Finish)
    assert finish.outcome == "finished"
    assert all(
        {0, 1} <= set(command.learners.tolist()) or cost < 1
        for command in commands_in(trace, commands.Dispatch)
    )
