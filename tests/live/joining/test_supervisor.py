"""The supervisor with real learner processes, and its decisions with processes that are played."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from melisma.cli.views.join_view import report_line
from melisma.cycle import events
from melisma.errors import MelismaError
from melisma.live.joining.learner_child import LearnerChild
from melisma.live.joining.supervisor import MAX_FAILURES, SupervisedLearner, Supervisor
from melisma.live.joining.use_limits import UseLimits
from melisma.live.learner import device_reports as reports
from melisma.live.learner.device_reports import DeviceReport, LearnerReport
from melisma.live.learner.learner_settings import LearnerSettings
from tests.live.joining.fleet import ROOT, OpenRun
from tests.live.joining.test_enrolling import JoiningDevice
from tests.live.orchestrator.served_run import TASK, wait_until

LONG_TASK = msgspec.structs.replace(TASK, deadline_s=2.0, cycles=3)


async def settings_of(device: JoiningDevice, run: OpenRun, folder: Path) -> LearnerSettings:
    known = await device.join(run.string)
    return LearnerSettings(
        name=known.name,
        orchestrator=known.addresses,
        certificate=str(device.state.identity),
        cache=str(folder / "cache"),
        module_path=(ROOT,),
        allowed_modules=("tests.live.tiny_task",),
        supervised=True,
    )


class Supervised:
    """A supervisor in a thread, whose reports the test reads."""

    def __init__(self, settings: LearnerSettings, log: Path, **options: Any) -> None:
        self.reports: list[DeviceReport] = []
        self.children: list[LearnerChild] = []
        self._cancelled = False

        def start(*args: Any) -> LearnerChild:
            if self._cancelled:
                raise MelismaError("the test has ended")
            self.children.append(LearnerChild(*args))
            return self.children[-1]

        learner = SupervisedLearner(settings, log, start)
        limits = options.pop("limits", UseLimits())
        self.supervisor = Supervisor(
            learner, limits, self.reports.append, find_throttling=tuple, check_s=0.05, **options
        )

    def of(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Run the supervisor inside an ``async with``; end it if the test fails."""
        task = asyncio.create_task(asyncio.to_thread(self.supervisor.run))
        try:
            yield task
        finally:
            self._cancelled = True
            for child in self.children:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)


async def test_a_device_trains_to_the_end_of_the_run_and_reports_each_cycle(
    tmp_path: Path,
) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path).listening() as run:
        settings = await settings_of(device, run, tmp_path)
        device_a = Supervised(settings, tmp_path / "learner.log")
        other = JoiningDevice(tmp_path / "b", "b")
        # A cache belongs to one device.
        device_b = Supervised(await settings_of(other, run, tmp_path / "b"), tmp_path / "b.log")
        async with device_a.running() as running_a, device_b.running() as running_b:
            await asyncio.gather(running_a, running_b)
    kinds = [type(report) for report in device_a.reports]
    assert kinds[:2] == [reports.LearnerStarted, reports.Registered]
    assert reports.Joined in kinds
    assert [report.cycle for report in device_a.of(reports.CycleTrained)] == [1, 2]
    assert device_a.reports[-1] == reports.Ended("run ended")
    assert (tmp_path / "learner.log").stat().st_mode & 0o777 == 0o600


async def test_a_killed_learner_process_is_started_again_and_joins_again(tmp_path: Path) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path, LONG_TASK).listening() as run:
        settings = await settings_of(device, run, tmp_path)
        supervised = Supervised(settings, tmp_path / "learner.log")
        async with supervised.running() as running:
            await wait_until(lambda: bool(supervised.of(reports.Joined)))
            os.kill(supervised.children[0].pid, signal.SIGKILL)
            await wait_until(lambda: len(supervised.of(reports.Joined)) == 2)
            assert supervised.of(reports.Restarting) == [
                reports.Restarting(
                    "the learner process was ended by signal 9 (perhaps because memory ran out)",
                    0.0,
                )
            ]
            run.run.service.remove_learner(0, "a: end of the test")
            await running


async def test_limits_of_the_owner_let_the_learner_leave_and_join_again(tmp_path: Path) -> None:
    device, power = JoiningDevice(tmp_path / "a"), tmp_path / "power" / "BAT0"
    power.mkdir(parents=True)
    (power / "type").write_text("Battery\n")
    (power / "capacity").write_text("50\n")
    limits = UseLimits(min_battery_percent=30, power_supply=power.parent, core_share=0.5)
    async with OpenRun(tmp_path, LONG_TASK).listening() as run:
        settings = await settings_of(device, run, tmp_path)
        supervised = Supervised(settings, tmp_path / "learner.log", limits=limits)
        async with supervised.running() as running:
            await wait_until(lambda: bool(supervised.of(reports.Joined)))
            process = psutil.Process(supervised.children[0].pid)
            assert process.nice() == 10
            assert len(process.cpu_affinity() or []) == max(1, round((os.cpu_count() or 1) / 2))
            (power / "capacity").write_text("20\n")
            await wait_until(lambda: bool(supervised.of(reports.Paused)))
            assert [left.reason for left in run.run.of(events.LearnersLeft)] == [
                "a: its owner stopped it"
            ]
            assert not process.is_running()
            (power / "capacity").write_text("31\n")
            await wait_until(lambda: len(supervised.of(reports.Joined)) == 2)
            assert len(supervised.of(reports.Resumed)) == 1
            run.run.service.remove_learner(0, "a: end of the test")
            await running


async def test_an_identity_in_use_elsewhere_ends_the_supervisor_with_the_fix(
    tmp_path: Path,
) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path, LONG_TASK).listening() as run:
        settings = await settings_of(device, run, tmp_path)
        supervised = Supervised(settings, tmp_path / "learner.log", stay=True)
        async with supervised.running() as running:
            await wait_until(lambda: bool(supervised.of(reports.Joined)))
            copy = Supervised(settings, tmp_path / "copy.log")
            async with copy.running() as copied:
                with pytest.raises(MelismaError, match=r"in use elsewhere.*--new-identity"):
                    await running
                run.run.service.remove_learner(0, "a: end of the test")
                await copied


class PlayedChild:
    """A learner process that only reports."""

    pid = 1

    def __init__(self, *played: LearnerReport) -> None:
        self._played, self.stopped = list(played), False
        self.slowness: list[tuple[str, ...]] = []

    def next_report(self, timeout_s: float) -> LearnerReport | None:
        if not self._played:
            raise KeyboardInterrupt
        return self._played.pop(0)

    def note_slowness(self, reasons: tuple[str, ...]) -> None:
        self.slowness.append(reasons)

    def stop(self) -> None:
        self.stopped = True


def play(
    *children: PlayedChild, **options: Any
) -> tuple[Callable[[], None], list[DeviceReport], list[float]]:
    """Return the supervisor of played processes, its reports, and its pauses."""
    shown, pauses, remaining = list[DeviceReport](), list[float](), list(children)
    addresses = (f"https://127.0.0.1:1#sha256:{'0' * 64}",)
    settings = LearnerSettings(name="a", orchestrator=addresses, cache="cache")

    def start(*_: Any) -> Any:
        return remaining.pop(0)

    learner = SupervisedLearner(settings, Path("learner.log"), start)
    supervisor = Supervisor(
        learner, UseLimits(), shown.append, find_throttling=tuple, sleep=pauses.append, **options
    )
    return supervisor.run, shown, pauses


def test_pauses_after_failures_grow_until_an_update_and_then_the_supervisor_gives_up() -> None:
    failed = reports.Ended("failed", "broken")
    update = reports.CycleTrained(1, 10, 1.0, 0.5)
    children = [PlayedChild(failed), PlayedChild(failed), PlayedChild(update, failed)]
    children += [PlayedChild(failed) for _ in range(MAX_FAILURES - 1)]
    run, _, pauses = play(*children)
    with pytest.raises(MelismaError, match=r"failed 6 times in a row \(broken\): see learner.log"):
        run()
    assert pauses == [0, 1, 0, 1, 2, 4, 8]
    assert all(child.stopped for child in children)


@pytest.mark.parametrize("kind", ["refused", "settings", "unreachable"])
def test_what_a_restart_does_not_mend_ends_the_supervisor(kind: Any) -> None:
    run, _, pauses = play(PlayedChild(reports.Ended(kind, "the reason")))
    with pytest.raises(MelismaError, match="the reason"):
        run()
    assert pauses == []


def test_a_learner_that_meets_another_run_is_started_again_to_join_it() -> None:
    another = reports.Ended("another run", "a is not a learner of this run")
    run, shown, pauses = play(PlayedChild(another), PlayedChild(reports.Ended("run ended")))
    run()
    assert pauses == [1.0]
    lines = [report_line(report) for report in shown if isinstance(report, reports.Ended)]
    assert lines == ["the orchestrator has begun another run: joining it", "the run has ended"]


def test_an_interrupted_supervisor_lets_the_learner_leave() -> None:
    child = PlayedChild(reports.Joined())
    run, shown, _ = play(child)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert child.stopped
    assert shown[-1] == reports.LeftRun()


async def test_with_stay_a_device_waits_for_the_next_run(tmp_path: Path) -> None:
    ended, shown = PlayedChild(reports.Ended("run ended")), list[DeviceReport]()
    remaining = [ended, PlayedChild(reports.Ended("settings", "revoked"))]
    async with OpenRun(tmp_path).listening() as run:
        gone = run.address.replace("127.0.0.1", "127.9.9.9")
        learner = SupervisedLearner(
            LearnerSettings(name="a", orchestrator=(gone, run.address), cache="cache"),
            tmp_path / "learner.log",
            lambda *_: remaining.pop(0),  # type: ignore[arg-type]
        )
        pauses: list[float] = []
        supervisor = Supervisor(learner, UseLimits(), shown.append, stay=True, sleep=pauses.append)
        with pytest.raises(MelismaError, match="revoked"):
            await asyncio.to_thread(supervisor.run)
    assert reports.AwaitingRun("the run has ended") in shown
    assert pauses == [15.0]


def test_throttling_is_reported_when_it_begins_and_when_it_ends() -> None:
    signs = [(), ("hot at 80",), ("hot at 81",), ()]
    child = PlayedChild(*(reports.Joined() for _ in signs), reports.Ended("run ended"))
    run, shown, _ = play(child, check_s=0.0)
    supervisor: Supervisor = run.__self__  # type: ignore[attr-defined]
    supervisor.find_throttling = lambda: signs.pop(0)
    run()
    slowed = [report for report in shown if isinstance(report, reports.Slowed)]
    assert slowed == [reports.Slowed(("hot at 80",)), reports.Slowed(())]
    assert child.slowness == [(), ("hot at 80",), ()]
