"""The orchestrator carries out commands and ends the run on an error."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from melisma.cycle import commands
from melisma.live import protocol
from melisma.live.orchestrator import learner_service, orchestrator
from melisma.runs.trace import Step
from melisma.simulation import driver
from tests.live.orchestrator.served_run import (
    GOOD_UPDATE,
    TASK,
    ServedRun,
    header,
    join,
    poll_until,
    start_polls,
    take_assignments,
    wait_until,
)

ENDS: dict[str, Callable[[ServedRun], Any]] = {
    "finished": lambda run: run.orchestrator.finish(
        commands.Finish(reason="cycle 2 was the last", outcome="finished")
    ),
    "cancelled": lambda run: run.orchestrator.cancel("interrupted"),
    "failed": lambda run: run.orchestrator.finished.set_exception(ZeroDivisionError("broke")),
}


def test_orchestrator_and_simulation_driver_have_the_same_handlers() -> None:
    live = {command: handler.__name__ for command, handler in orchestrator.HANDLERS.items()}
    simulated = {command: handler.__name__ for command, handler in driver.HANDLERS.items()}
    assert live == simulated


def test_orchestrator_and_learner_service_do_not_import_each_other() -> None:
    assert "learner_service" not in Path(orchestrator.__file__).read_text(encoding="utf-8")
    assert "orchestrator.orchestrator" not in Path(learner_service.__file__).read_text("utf-8")


async def test_an_assignment_states_the_seconds_left_when_it_is_polled(served: Any) -> None:
    _, remote = served
    await join(remote, "a", "b")
    prompt = await poll_until(remote, 0, protocol.Train)
    asked = time.monotonic()
    await wait_until(lambda: time.monotonic() >= asked + 0.2)
    late = await poll_until(remote, 1, protocol.Train)
    assert late.seconds_left <= prompt.seconds_left - 0.2


async def test_the_model_is_on_disk_after_each_cycle(served: Any) -> None:
    from safetensors.numpy import load_file

    run, remote = served
    await join(remote, "a", "b")
    await poll_until(remote, 0, protocol.Train)
    for number in (0, 1):
        await remote.upload_update(number, header(), GOOD_UPDATE)
    await poll_until(remote, 0, protocol.Train)
    assert run.store.model is not None
    assert load_file(run.store.model)["weight"].tolist() == [2.0] * 4
    # Deleted in a thread, when the journal says that the average is on disk.
    await wait_until(lambda: not list((run.store.folder / "updates").rglob("*.update")))


async def test_a_watcher_that_fails_ends_the_run_with_its_error(served: Any) -> None:
    run, remote = served

    def broken(_: Step) -> None:
        raise ZeroDivisionError("the watcher broke")

    run.orchestrator._watch = broken
    with pytest.raises(ZeroDivisionError):
        await join(remote, "a")
    with pytest.raises(ZeroDivisionError):
        await run.orchestrator.finished


@pytest.mark.parametrize("end", ENDS)
async def test_the_end_of_a_run_answers_every_pending_poll_at_once_and_logs_nothing(
    tmp_path: Path, end: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    run = ServedRun(tmp_path, msgspec.structs.replace(TASK, deadline_s=1000.0))
    run.orchestrator.start()
    async with contextlib.AsyncExitStack() as stack:
        remote = await stack.enter_async_context(run.serving())
        await join(remote, "a", "b")
        await take_assignments(remote, 0, 1)
        # Two polls of one learner, as when a connection was cut.
        polls = await start_polls(run, remote, (0, None), (0, (1, 20)), (1, None))
        ENDS[end](run)
        answers = await asyncio.wait_for(asyncio.gather(*polls), 5)
    run.store.close()
    assert all(protocol.parse_instructions(answer)[-1] == protocol.Leave() for answer in answers)
    with contextlib.suppress(ZeroDivisionError):
        await run.orchestrator.finished
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


async def test_a_poll_after_the_end_is_answered_with_leave_again(served: Any) -> None:
    run, remote = served
    await join(remote, "a", "b")
    run.orchestrator.cancel("interrupted")
    for progress in (None, (1, 20), None):
        answer = await asyncio.wait_for(remote.poll(0, progress), 5)
        assert protocol.parse_instructions(answer)[-1] == protocol.Leave()
