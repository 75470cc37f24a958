"""Learner processes that are killed, stopped, cut off, or without a disk or the right time."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from melisma.cycle import events
from tests.live.attacks.attacked_fleet import (
    AttackedFleet,
    HonestLearner,
    attacked_fleet,
    reasons,
    total,
)
from tests.live.attacks.phases import PHASES
from tests.live.attacks.test_hostile_learner import check_honest_learners
from tests.live.network_lab import needs_namespaces

ABSENCE_S = 13.0


def start_paused(fleet: AttackedFleet, name: str, phase: str, seconds: float) -> HonestLearner:
    """Start a learner that waits in a phase."""
    code = f"from tests.live.attacks.phases import pause_in; pause_in({phase!r}, {seconds})"
    return fleet.start_learner(name, code)


def wait_for(learner: HonestLearner, text: str, timeout_s: float = 60.0) -> None:
    """Wait until the log of a learner has a text."""
    end_at = time.monotonic() + timeout_s
    while text not in learner.log:
        assert time.monotonic() < end_at, learner.log
        time.sleep(0.02)


def test_the_others_go_on_when_learners_are_killed_in_any_phase(tmp_path: Path) -> None:
    names = {phase: phase.replace(" ", "-") for phase in PHASES}
    count = len(PHASES) + 1
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
    for name in names.values():
        assert f"{name}: no sign of life for" in reasons(report)
        assert total(report, name).counted_visits == 0


@pytest.mark.parametrize(
    "phase",
    [
        "train",
        *(pytest.param(phase, marks=pytest.mark.slow) for phase in PHASES if phase != "train"),
    ],
)
def test_a_learner_that_was_stopped_joins_again_when_it_continues(
    tmp_path: Path, phase: str
) -> None:
    scheme = {"scheme": "dab", "passes": 2} if phase == "benchmark" else {}
    with attacked_fleet(tmp_path, learners=3, cycles=3, deadline_s=15.0, **scheme) as fleet:
        anchor = fleet.anchor()
        fleet.start_learner("a")
        victim = start_paused(fleet, "victim", phase, 0.5)
        wait_for(victim, f"begins to {phase}")
        victim.signal(signal.SIGSTOP)
        assert anchor.at_work.wait(60)
        if phase != "benchmark":
            left = fleet.wait_for_event(
                events.LearnersLeft, lambda event: "victim: no sign of life" in event.reason
            )
        victim.signal(signal.SIGCONT)
        if phase != "benchmark":
            fleet.wait_for_event(
                events.LearnersJoined,
                lambda event: event.names == ("victim",) and event.at_s > left.at_s,
            )
        anchor.release()
        report = fleet.finish()
    check_honest_learners(report, ("a",))
    assert phase == "benchmark" or total(report, "victim").counted_visits > 0


def test_a_run_goes_on_when_all_learners_were_killed_and_started_again(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=2, cycles=4, deadline_s=4.0) as fleet:
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
    assert report.outcome == "done"
    assert len(report.ended_cycles) == 4
    assert report.accuracy > 0.9
    assert "no sign of life" in reasons(report)


@needs_namespaces
def test_a_learner_whose_disk_is_full_leaves_with_that_reason(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], check=True)
    try:
        with attacked_fleet(tmp_path, learners=3, cycles=3) as fleet:
            fleet.start_learner("a")
            fleet.start_learner("b")
            full = fleet.start_learner("full", cache=disk / "cache")
            report = fleet.finish()
            log = full.log
    finally:
        subprocess.run(["umount", disk], check=True)
    check_honest_learners(report)
    assert "full: " in reasons(report)
    assert "No space left on device" in reasons(report), log
    assert total(report, "full").counted_visits == 0


@pytest.mark.parametrize("hours", [1, pytest.param(-24 * 365 * 5, marks=pytest.mark.slow)])
def test_a_learner_whose_clock_is_wrong_trains_like_the_others(tmp_path: Path, hours: int) -> None:
    code = f"import time; real = time.time; time.time = lambda: real() + {hours * 3600}"
    with attacked_fleet(tmp_path, learners=2, cycles=2) as fleet:
        fleet.start_learner("a")
        fleet.start_learner("b", code)
        report = fleet.finish()
    check_honest_learners(report)
