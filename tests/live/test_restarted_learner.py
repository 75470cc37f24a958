"""A learner process that is killed, and started again on the same device."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import psutil
from msgspec.structs import replace

from melisma.backports import timeout
from melisma.live import protocol
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.learner.training_spool import TRAINING_FILE
from tests.live.learner import counting_task
from tests.live.learner.played_orchestrator import TASK, PlayedOrchestrator
from tests.live.learner.test_resuming_agent import uninterrupted

ROOT = Path(__file__).parents[2]
# A learner process that saves its training more often.
CODE = """
from melisma.live.learner import learner_process, training_spool
training_spool.SAVE_S = 0.1
training_spool.MAX_FRACTION = 1.0
raise SystemExit(learner_process.main())
"""
WAIT_S = 60.0
SLOW = replace(TASK, model_args={"pause_s": 0.1})


@contextmanager
def process(settings: LearnerSettings, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a learner process inside a ``with``, with its messages in a file."""
    with log.open("wb") as output:
        learner = subprocess.Popen(
            [sys.executable, "-c", CODE],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    assert learner.stdin is not None
    try:
        learner.stdin.write(msgspec.json.encode(settings) + b"\n")
        learner.stdin.flush()
        yield learner
    finally:
        learner.kill()
        learner.wait()
        learner.stdin.close()


async def wait_for_saves(file: Path, learner: "subprocess.Popen[bytes]", count: int) -> None:
    """Wait until a file has been replaced this number of times."""
    seen: set[int] = set()
    async with timeout(WAIT_S):
        # There is no event to wait for in another process.
        while len(seen | {0}) <= count:
            assert learner.poll() is None
            seen.add(written_at(file))
            await asyncio.sleep(0.005)


def written_at(file: Path) -> int:
    """Return when a file was written; 0 if it is missing."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


async def test_a_killed_learner_finishes_its_assignment_with_all_visits_counted_once(
    tmp_path: Path,
) -> None:
    orchestrator = PlayedOrchestrator(SLOW)
    numbers = range(12)
    train = orchestrator.train(*numbers)
    async with orchestrator.serving(tmp_path / "files") as address:
        settings = LearnerSettings(
            name="a",
            orchestrator=(address,),
            token=orchestrator.token,
            cache=str(tmp_path / "cache"),
            spool=str(tmp_path / "spool"),
            allowed_modules=(counting_task.__name__,),
        )
        logs = [tmp_path / f"{number}.log" for number in range(3)]
        for log in logs[:2]:
            with process(settings, log) as learner:
                orchestrator.put(train)
                await wait_for_saves(tmp_path / "spool" / TRAINING_FILE, learner, 4)
                psutil.Process(learner.pid).send_signal(signal.SIGKILL)
                assert learner.wait() == -signal.SIGKILL
            # A poll of the killed process gets no instructions.
            orchestrator.start_session("")
        with process(settings, logs[2]) as learner:
            orchestrator.put(replace(train, seconds_left=500.0), protocol.Leave())
            assert await asyncio.to_thread(learner.wait, WAIT_S) == 0, logs[2].read_text()
    ((header, arrays),) = orchestrator.updates
    expected = uninterrupted(orchestrator, *numbers)
    assert header.visits == header.planned_visits == 2 * 240
    assert np.array_equal(arrays["visits"], np.full(240, 2.0))
    assert np.array_equal(arrays["order"], expected.parameters["order"])
    batches = [log.read_text().count("batch") for log in logs]
    whole = 2 * -(-240 // SLOW.batch)
    # None of them trained all; what was trained since the last save is trained again.
    assert max(batches) < whole <= sum(batches) < 2 * whole
    assert [*(tmp_path / "spool").iterdir()] == []
