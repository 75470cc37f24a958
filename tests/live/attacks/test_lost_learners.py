"""Learner processes that are killed, stopped, cut off, or without a disk or the right time."""

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from melisma.cycle import commands, events
from melisma.runs.report import Report
from tests.live.attacks.attacked_fleet import (
    FEDERATED,
    AttackedFleet,
    HonestLearner,
    attacked_fleet,
    reasons,
    total,
)
from tests.live.attacks.phases import PHASES
from tests.live.attacks.test_hostile_learner import check_honest_learners
from tests.live.fleet_lab import wait_until
from tests.live.network_lab import Host, cabled_host, needs_namespaces

ABSENCE_S, SHORT_ABSENCE_S, CUT_S = 13.0, 3.0, 1.0
MAX_SILENCE_S = 5.0
"""Time in which a learner that has died is noticed, at any deadline."""


def start_paused(
    fleet: AttackedFleet, name: str, phase: str, seconds: float, host: Host | None = None
) -> HonestLearner:
    """Start a learner that waits in a phase."""
    code = f"from tests.live.attacks.phases import pause_in; pause_in({phase!r}, {seconds})"
    return fleet.start_learner(name, code, host=host)


def wait_for(learner: HonestLearner, text: str, timeout_s: float = 60.0) -> None:
    """Wait until the log of a learner has a text."""
    end_at = time.monotonic() + timeout_s
    while text not in learner.log:
        assert time.monotonic() < end_at, learner.log
        time.sleep(0.02)


def test_the_others_go_on_when_learners_are_killed_in_any_phase(tmp_path: Path) -> None:
    names = {phase: phase.replace(" ", "-") for phase in PHASES if phase != "evaluate"}
    count = len(names) + 1
    with attacked_fleet(tmp_path, learners=count, scheme="dab", passes=2, cycles=3) as fleet:
        fleet.start_learner("a")
        victims = {phase: start_paused(fleet, name, phase, 1000.0) for phase, name in names.items()}
        for phase, victim in victims.items():
            wait_for(victim, f"begins to {phase}")
            victim.signal(signal.SIGKILL)
        report = fleet.finish(120.0)
    check_honest_learners(report, ("a",))
    # One that has not reported costs gets no work, and is awaited as long as an idle one.
    assert total(report, names.pop("benchmark")).cycles == 0
    # One that has trained is asked for a bound, and gets no work without an answer.
    waiting = total(report, names.pop("wait"))
    assert (waiting.cycles, waiting.left) == (1, 0)
    assert waiting.counted_visits > 0
    for name in names.values():
        assert f"{name}: no sign of life for" in reasons(report)
        assert total(report, name).counted_visits == 0


def longest_silence_s(report: Report) -> float:
    """Return the longest silence after which a learner has left."""
    return max(map(float, re.findall(r"no sign of life for ([\d.]+) s", reasons(report))))


def test_a_killed_learner_is_noticed_within_seconds_at_a_long_deadline(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=2, cycles=3, deadline_s=120.0) as fleet:
        fleet.start_learner("a")
        victim = start_paused(fleet, "victim", "train", 1000.0)
        wait_for(victim, "begins to train")
        victim.signal(signal.SIGKILL)
        report = fleet.finish()
    check_honest_learners(report, ("a",))
    assert longest_silence_s(report) < MAX_SILENCE_S


def test_half_of_the_learners_take_over_when_the_others_are_killed_at_once(tmp_path: Path) -> None:
    with attacked_fleet(
        tmp_path, learners=4, cycles=2, deadline_s=10.0, scheme="proportional", extension=True
    ) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        victims = [start_paused(fleet, name, "train", 1000.0) for name in ("c", "d")]
        for victim in victims:
            wait_for(victim, "begins to train")
        for victim in victims:
            victim.signal(signal.SIGKILL)
        report = fleet.finish()
    check_honest_learners(report)
    for name in ("c", "d"):
        assert f"{name}: no sign of life for" in reasons(report)
        assert (total(report, name).left, total(report, name).counted_visits) == (1, 0)
    assert longest_silence_s(report) < MAX_SILENCE_S
    assert handed_on(report) == given_to(report, ("c", "d")) != set()


def test_half_of_the_learners_return_by_themselves_when_they_were_stopped_at_once(
    tmp_path: Path,
) -> None:
    with attacked_fleet(
        tmp_path, learners=5, cycles=3, deadline_s=60.0, scheme="proportional"
    ) as fleet:
        anchor = fleet.anchor()
        fleet.start_learner("a")
        fleet.start_learner("b")
        victims = {name: start_paused(fleet, name, "train", 0.5) for name in ("c", "d")}
        for victim in victims.values():
            wait_for(victim, "begins to train")
        for victim in victims.values():
            victim.signal(signal.SIGSTOP)
        left_s = {name: wait_for_absence(fleet, "train", name) for name in victims}
        for victim in victims.values():
            victim.signal(signal.SIGCONT)
        for name, at_s in left_s.items():
            wait_for_return(fleet, at_s, name)
        anchor.release()
        report = fleet.finish()
    check_honest_learners(report)
    for name in victims:
        assert f"{name}: no sign of life for" in reasons(report)
        assert total(report, name).left == 1
        assert total(report, name).counted_visits > 0


def given_to(report: Report, names: tuple[str, ...], cycle: int = 1) -> set[int]:
    """Return the shards that learners were given when a cycle began."""
    numbers = {number for number, item in enumerate(report.learners) if item.name in names}
    return {
        shard
        for step in report.trace
        for command in step.commands
        if isinstance(command, commands.Dispatch) and command.cycle == cycle
        for row, learner in enumerate(command.learners.tolist())
        if learner in numbers
        for shard in command.shards[row].tolist()
    }


def handed_on(report: Report, cycle: int = 1) -> set[int]:
    """Return the shards that were handed on in a cycle."""
    return {
        shard
        for step in report.trace
        for command in step.commands
        if isinstance(command, commands.Extend) and command.cycle == cycle
        for shard in command.handed_on.tolist()
    }


def test_the_others_go_on_when_a_learner_is_killed_while_it_evaluates(tmp_path: Path) -> None:
    # Its silence is noticed in the next cycle, well before the deadline.
    with attacked_fleet(tmp_path, learners=2, cycles=3, deadline_s=5.0, **FEDERATED) as fleet:
        fleet.start_learner("a")
        victim = start_paused(fleet, "victim", "evaluate", 1000.0)
        wait_for(victim, "begins to evaluate")
        victim.signal(signal.SIGKILL)
        report = fleet.finish(60.0)
    check_honest_learners(report, ("a",))
    assert all(cycle.accuracy is not None for cycle in report.ended_cycles)
    # Its update of the first cycle counts, and its next work is not done.
    assert "victim: no sign of life for" in reasons(report)
    lost = total(report, "victim")
    assert (lost.cycles, lost.left) == (2, 1)
    assert lost.counted_visits == lost.planned_visits / 2


@contextmanager
def machine_of(disturbance: str) -> Iterator[tuple[Host | None, str]]:
    """Yield the machine of a learner that will be disturbed, and the orchestrator's address."""
    if disturbance == "stopped":
        yield None, "127.0.0.1"
        return
    with cabled_host("victim") as pair:
        yield pair


def long_lane(disturbance: str, phase: str) -> Any:
    """Return a case that runs in the long lane only."""
    return pytest.param(disturbance, phase, marks=_marks(disturbance, slow=True))


def short_lane(disturbance: str, phase: str) -> Any:
    """Return a case that runs in both lanes."""
    return pytest.param(disturbance, phase, marks=_marks(disturbance, slow=False))


def _marks(disturbance: str, *, slow: bool) -> list[Any]:
    marks = [needs_namespaces] if disturbance == "cut off" else []
    return [*marks, pytest.mark.slow] if slow else marks


@pytest.mark.parametrize(
    ("disturbance", "phase"),
    [
        short_lane("stopped", "train"),
        short_lane("cut off", "upload"),
        *(long_lane("stopped", phase) for phase in PHASES if phase != "train"),
        *(long_lane("cut off", phase) for phase in PHASES if phase != "upload"),
    ],
)
def test_a_learner_that_was_stopped_or_cut_off_returns_by_itself(
    tmp_path: Path, disturbance: str, phase: str
) -> None:
    task: dict[str, Any] = {"scheme": "proportional", "deadline_s": 60.0, "cycles": 3}
    if phase == "evaluate":
        # The others wait for an evaluation until the deadline.
        task |= {"deadline_s": 12.0, **FEDERATED}
    with (
        machine_of(disturbance) as (host, address),
        attacked_fleet(tmp_path, learners=3, host=address, **task) as fleet,
    ):
        anchor = fleet.anchor()
        fleet.start_learner("a")
        victim = start_paused(fleet, "victim", phase, 0.5, host)
        if phase == "evaluate":
            anchor.let_pass(1)
        wait_for(victim, f"begins to {phase}")
        if host is None:
            victim.signal(signal.SIGSTOP)
        else:
            host.cut()
        if phase == "wait":
            # It gets work of the next cycle while it is away.
            anchor.let_pass(1)
        at_s = wait_for_absence(fleet, phase)
        if host is None:
            victim.signal(signal.SIGCONT)
        else:
            host.restore()
        if phase != "benchmark":
            wait_for_return(fleet, at_s)
        anchor.release()
        report = fleet.finish()
    check_honest_learners(report, ("a",))
    absent = total(report, "victim")
    assert absent.counted_visits > 0
    assert absent.left == int(phase != "benchmark")
    assert ("victim: no sign of life for" in reasons(report)) == (phase != "benchmark")


@needs_namespaces
@pytest.mark.parametrize("phase", ["train", "upload"])
def test_a_line_that_is_cut_for_a_second_disturbs_nothing(tmp_path: Path, phase: str) -> None:
    with (
        cabled_host("victim") as (host, address),
        attacked_fleet(tmp_path, learners=2, host=address, cycles=2, deadline_s=60.0) as fleet,
    ):
        fleet.start_learner("a")
        victim = start_paused(fleet, "victim", phase, CUT_S / 2, host)
        wait_for(victim, f"begins to {phase}")
        host.cut()
        time.sleep(CUT_S)
        host.restore()
        report = fleet.finish()
    check_honest_learners(report, ("a", "victim"))
    assert total(report, "victim").counted_visits == total(report, "a").counted_visits > 0
    assert reasons(report) == ""


def wait_for_return(fleet: AttackedFleet, at_s: float, name: str = "victim") -> None:
    """Wait until a learner that had left has joined again."""
    fleet.wait_for_event(
        events.LearnersJoined, lambda event: name in event.names and event.at_s > at_s
    )


def wait_for_absence(fleet: AttackedFleet, phase: str, name: str = "victim") -> float:
    """Wait until the orchestrator has noticed that a learner is gone; return the instant.

    It does not notice this of one that has no work.
    """
    if phase == "benchmark":
        time.sleep(SHORT_ABSENCE_S)
        return 0.0
    left = fleet.wait_for_event(
        events.LearnersLeft, lambda event: f"{name}: no sign of life" in event.reason
    )
    at_s: float = left.at_s
    return at_s


def test_a_run_goes_on_when_all_learners_were_killed_and_started_again(tmp_path: Path) -> None:
    # A cycle takes a second, so that the run has not ended when they are killed.
    slow = {"model_args": {"pause_s": 0.1}}
    with attacked_fleet(tmp_path, learners=2, cycles=4, deadline_s=4.0, **slow) as fleet:
        devices = [fleet.enrol(name) for name in ("a", "b")]

        def start() -> None:
            for device in devices:
                log = tmp_path / f"{device.name}-{len(fleet.learners)}.log"
                fleet.learners.append(HonestLearner(device.settings(), log))

        start()
        fleet.wait_for_cycle(1)
        for learner in fleet.learners:
            learner.signal(signal.SIGKILL)
        fleet.wait_for_event(events.LearnersLeft)
        # Longer than the cycles without an update after which a run with learners fails.
        time.sleep(ABSENCE_S)
        start()
        report = fleet.finish()
    assert report.outcome == "finished"
    assert len(report.ended_cycles) == 4
    assert report.accuracy > 0.9
    assert "no sign of life" in reasons(report)


def test_a_learner_that_is_slowed_down_is_late_and_never_removed(tmp_path: Path) -> None:
    """It trains for four deadlines, and longer than a silent learner is awaited."""
    with attacked_fleet(tmp_path, learners=3, cycles=6) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        start_paused(fleet, "slow", "train", 8.0)
        report = fleet.finish()
    check_honest_learners(report)
    assert total(report, "slow").left == 0
    assert reasons(report) == ""


def test_the_owner_of_the_run_sees_why_a_device_is_slower(tmp_path: Path) -> None:
    code = """
from melisma.live.joining import throttling
throttling.find_throttling = lambda: ("the clock is limited by heat: cool the device",)
"""
    with attacked_fleet(tmp_path, learners=2) as fleet:
        device = fleet.join("hot", code)
        device.wait_for("slower: the clock is limited by heat: cool the device")
        device.wait_for("waiting for the run to begin")
        wait_until(lambda: "slower: the clock is limited by heat" in status_of(fleet))
        fleet.start_learner("a")
        report = fleet.finish()
        assert device.wait() == 0
    check_honest_learners(report, ("a", "hot"))


def status_of(fleet: AttackedFleet) -> str:
    """Return what `melisma status` prints."""
    process = fleet.melisma("status", "--json")
    assert process.wait() == 0, process.text
    return process.text


@needs_namespaces
def test_a_learner_whose_disk_is_full_leaves_with_that_reason(tmp_path: Path) -> None:
    with disk_of(tmp_path, "4k") as disk, attacked_fleet(tmp_path, learners=3, cycles=3) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        full = fleet.start_learner("full", cache=disk / "cache")
        report = fleet.finish()
        log = full.log
    check_honest_learners(report)
    assert "full: " in reasons(report)
    assert "No space left on device" in reasons(report), log
    assert total(report, "full").counted_visits == 0


@needs_namespaces
def test_a_learner_whose_disk_fills_up_in_the_run_leaves_with_that_reason(tmp_path: Path) -> None:
    """A cycle trains a part of the shards, so that the next one needs others."""
    task: dict[str, Any] = {"scheme": "dab", "cycles": 4, "data_args": {"samples": 20_000}}
    task |= {"model_args": {"pause_s": 0.05}}
    with disk_of(tmp_path, "1m") as disk, attacked_fleet(tmp_path, learners=3, **task) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b")
        full = fleet.start_learner("full", cache=disk / "cache")
        fleet.wait_for_cycle(1)
        with pytest.raises(OSError, match="No space left"):
            (disk / "other").write_bytes(bytes(1 << 20))
        report = fleet.finish()
        log = full.log
    check_honest_learners(report)
    assert "No space left on device" in reasons(report), log
    # It may notice while it trains, or while it fetches shards of the next cycle.
    assert total(report, "full").left + total(report, "full").absent > 0
    assert total(report, "full").counted_visits > 0


@contextmanager
def disk_of(folder: Path, size: str) -> Iterator[Path]:
    """Yield a disk of that size."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("hours", [1, pytest.param(-24 * 365 * 5, marks=pytest.mark.slow)])
def test_a_learner_whose_clock_is_wrong_trains_like_the_others(tmp_path: Path, hours: int) -> None:
    code = f"from tests.live.attacks.wrong_clock import shift_clock; shift_clock({hours})"
    with attacked_fleet(tmp_path, learners=2, cycles=2) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b", code)
        report = fleet.finish()
    check_honest_learners(report)
