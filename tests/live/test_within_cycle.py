"""Within a cycle: extensions, handing on, silence, late updates, and fetching while training."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from melisma.cycle import commands, events
from melisma.learning.trainer import Score
from melisma.live.orchestrator import orchestrator
from melisma.live.orchestrator.combined_score import CombinedScore
from melisma.live.orchestrator.orchestrator import Orchestrator
from melisma.live.orchestrator.run_store import RunStore
from melisma.runs.trace import Step
from tests.live.child_process import launched_processes
from tests.live.short_run import DEFAULT_RULES, issued, received, run_task

# A shard of 50 samples takes 0.625 s, whatever the speed of this machine.
STEADY: dict[str, Any] = {
    "learner": [
        {"name": name, "samples_per_s": 80, "bandwidth_bps": 80e6, "latency_s": 0.001}
        for name in ("steady", "constant")
    ]
}
TASK: dict[str, Any] = DEFAULT_RULES | {"passes": 1, "deadline_s": 2.5, "cycles": 1}


def first_learner() -> psutil.Process:
    """Return the process of learner 0, which was started first."""
    return launched_processes()[0]


def test_an_extension_reaches_the_learner_and_one_update_covers_all(work_folder: Path) -> None:
    # Batches of 0.125 s: that of an extension begins in time even if the cycle began before
    # the benchmark of this learner had ended.
    report = run_task(work_folder, STEADY, **TASK | {"deadline_s": 3.0, "batch": 10})
    assert report.outcome == "finished", report.reason
    assert received(report, events.ShardsRequested)
    extended = issued(report, commands.Extend)
    assert extended
    updates = received(report, events.UpdatesReceived)
    assert sorted(int(item.learners[0]) for item in updates) == [0, 1]
    (aggregate,) = issued(report, commands.Aggregate)
    dispatched = {
        learner: 50 * item.shards[row].size
        for item in issued(report, commands.Dispatch)
        for row, learner in enumerate(item.learners.tolist())
    }
    for update in updates:
        learner = int(update.learners[0])
        assert update.visits[0] > dispatched[learner]
        assert update.attempts[0] >= 2
        assert aggregate.weights[learner] > dispatched[learner]


def test_shards_of_a_killed_learner_are_handed_on_in_the_same_cycle(work_folder: Path) -> None:
    killed: list[int] = []

    def watch(step: Step) -> None:
        sent = [item.learners for item in step.commands if isinstance(item, commands.Dispatch)]
        if not killed and any(0 in learners for learners in sent):
            victim = first_learner()
            killed.append(victim.pid)
            victim.kill()

    report = run_task(work_folder, STEADY, **TASK | {"deadline_s": 4.0}, watch=watch)
    assert report.outcome == "finished", report.reason
    (left,) = received(report, events.LearnersLeft)
    lost = {
        int(shard)
        for item in issued(report, commands.Dispatch)
        for row, learner in enumerate(item.learners.tolist())
        if learner == left.learners[0]
        for shard in item.shards[row]
    }
    handed_on = [item for item in issued(report, commands.Extend) if item.handed_on.size]
    assert handed_on
    assert {int(shard) for item in handed_on for shard in item.handed_on} <= lost
    assert {item.cycle for item in handed_on} == {1}


def test_a_learner_that_is_stopped_for_a_while_leaves_and_joins_again(work_folder: Path) -> None:
    stopped: list[psutil.Process] = []

    def watch(step: Step) -> None:
        if not stopped and any(isinstance(item, commands.Dispatch) for item in step.commands):
            stopped.append(first_learner())
            stopped[0].send_signal(signal.SIGSTOP)
        elif isinstance(step.event, events.LearnersLeft):
            stopped[0].send_signal(signal.SIGCONT)

    report = run_task(work_folder, STEADY, **TASK | {"deadline_s": 4.0, "cycles": 3}, watch=watch)
    assert report.outcome == "finished", report.reason
    (left,) = received(report, events.LearnersLeft)
    assert "no sign of life for 2." in left.reason
    assert [item.learners.tolist() for item in received(report, events.LearnersJoined)][2:] == [[0]]
    rejoined_s = received(report, events.LearnersJoined)[2].at_s
    late = [e for e in received(report, events.UpdatesReceived) if e.at_s > rejoined_s]
    assert 0 in [int(event.learners[0]) for event in late]
    bounds = {
        event.cycle: int(event.shards[0])
        for event in received(report, events.BoundsReported)
        if event.learners[0] == 0
    }
    # One bad measurement is forgotten within two cycles.
    assert bounds[3] >= 0.75 * bounds[1] > 0


@pytest.mark.parametrize("overlap", [True, False])
def test_with_overlap_training_begins_before_all_shards_have_arrived(
    work_folder: Path, overlap: bool
) -> None:
    """Six shards of about 1.3 kB take 5 s over this link."""
    slow = {"learner": [item | {"bandwidth_bps": 12_000} for item in STEADY["learner"]]}
    settings = TASK | {"scheme": "equal", "deadline_s": 4.0, "overlap": overlap}
    report = run_task(work_folder, slow, **settings)
    updates = received(report, events.UpdatesReceived)
    assert len(updates) == 2
    for update in updates:
        assert 0 < update.shipped[0] < 6
        assert (update.visits[0] > 0) == overlap


def test_learners_train_until_the_deadline_and_their_updates_are_in_time(work_folder: Path) -> None:
    report = run_task(work_folder, STEADY, **TASK | {"cycles": 2})
    for update in received(report, events.UpdatesReceived):
        train_s = update.phases[0, 4]
        assert train_s == pytest.approx(update.visits[0] / 80, rel=0.1)
    for item in issued(report, commands.Dispatch):
        began_s = next(s.event.at_s for s in report.trace if item in s.commands)
        ends = [e.at_s for e in received(report, events.UpdatesReceived) if e.cycle == item.cycle]
        assert max(ends) > began_s + 0.7 * item.seconds_left


def test_a_late_update_counts_once_in_the_next_average_with_a_discount(work_folder: Path) -> None:
    """Learner 0 is stopped after its first progress, and goes on when its cycle is closed."""
    stopped: list[psutil.Process] = []

    def watch(step: Step) -> None:
        event = step.event
        if isinstance(event, events.ProgressReported) and not stopped:
            if event.learners[0] == 0 and event.visits[0] > 0:
                stopped.append(first_learner())
                stopped[0].send_signal(signal.SIGSTOP)
        elif any(isinstance(item, commands.Aggregate) for item in step.commands):
            stopped[0].send_signal(signal.SIGCONT)

    settings = TASK | {"scheme": "equal", "deadline_s": 1.2, "cycles": 2}
    report = run_task(work_folder, STEADY, **settings, watch=watch)
    assert report.outcome == "finished", report.reason
    first, second = issued(report, commands.Aggregate)
    assert first.learners.tolist() == [1]
    late = second.late
    assert (late.learners.tolist(), late.cycles.tolist()) == ([0], [1])
    (update,) = [
        each
        for each in received(report, events.UpdatesReceived)
        if each.cycle == 1 and each.learners[0] == 0
    ]
    assert update.planned_visits[0] > 0
    # One pass is planned, so that the weight in time would be the number of planned visits.
    assert late.weights.tolist() == [pytest.approx(update.planned_visits[0] / 2)]
    (carried,) = [each for each in report.cycles[0].assignments if each.learner == 0]
    assert carried.status == "carried"
    assert carried.weight == pytest.approx(late.weights[0])


def test_a_shard_that_was_prefetched_is_not_fetched_again(
    work_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluation waits until the learner has begun to fetch the last shard ahead.

    That last one may be interrupted by the next cycle, and resumed in it.
    """
    fetched: list[str] = []
    ahead: list[str] = []
    begun = asyncio.Event()
    serve, prefetch, score = RunStore.path, Orchestrator.prefetch, Orchestrator._score

    def record(store: RunStore, name: str) -> Path | None:
        fetched.append(name)
        if ahead and set(ahead) <= set(fetched):
            begun.set()
        return serve(store, name)

    def follow(self: Orchestrator, command: commands.Prefetch) -> None:
        shards = self._store.shard_refs(command.shards.values.tolist())
        ahead.extend(shard.sha256 for shard in shards)
        prefetch(self, command)

    async def score_after_fetching(self: Orchestrator, cycle: int) -> Score | CombinedScore:
        if cycle == 1:
            await begun.wait()
        return await score(self, cycle)

    monkeypatch.setattr(RunStore, "path", record)
    handlers: dict[Any, Any] = orchestrator.HANDLERS
    monkeypatch.setitem(handlers, commands.Prefetch, follow)
    monkeypatch.setattr(Orchestrator, "_score", score_after_fetching)
    fast = {"learner": [STEADY["learner"][0] | {"samples_per_s": 150}]}
    report = run_task(work_folder, fast, **TASK | {"deadline_s": 2.0, "cycles": 2})
    assert report.outcome == "finished", report.reason
    (command,) = issued(report, commands.Prefetch)
    assert command.shards.values.size >= 2
    dispatch = issued(report, commands.Dispatch)[1]
    assert set(command.shards.values.tolist()) & set(dispatch.shards.values.tolist())
    assert [fetched.count(name) for name in ahead[:-1]] == [1] * (len(ahead) - 1)
    (update,) = [each for each in received(report, events.UpdatesReceived) if each.cycle == 2]
    assert update.shipped[0] > 0
