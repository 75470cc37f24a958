"""Memory of `melisma join` on a device that waits: for a run, and in the lobby of one."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import processes, usage
from benchmarks.live.idle_learners import start_orchestrator

RESIDENT = "resident MB"
COLUMNS = ["processes", RESIDENT]
WAITING = "melisma join --stay, waiting for a run"
LOBBY = "melisma join in the lobby, without its learner process"
LEARNER = "melisma join in the lobby, with its learner process, without PyTorch"
ALLOWED = ("--allow-module", "benchmarks.live.empty_task")


def measure(quick: bool) -> dict[str, Any]:
    """Return resident MB of the processes of one device, including shared pages."""
    del quick
    with TemporaryDirectory(prefix="benchmark-waiting-") as name:
        home = Path(name) / "device"
        with (
            start_orchestrator(name) as (_, invitation),
            _device(home, "the run to begin", str(invitation), *ALLOWED) as pid,
        ):
            both_mb = usage.resident_mb(pid)
            learner_mb = sum(map(usage.resident_mb, usage.descendants(pid)))
            own_s = usage.cpu_s(pid)
        # The device knows an orchestrator that is not running.
        with _device(home, "waiting for the next run", "--stay", *ALLOWED) as pid:
            waiting_mb = usage.resident_mb(pid)
            own_s += usage.cpu_s(pid)
    rows = {
        WAITING: {"processes": 1, RESIDENT: round(waiting_mb, 1)},
        LOBBY: {"processes": 1, RESIDENT: round(both_mb - learner_mb, 1)},
        LEARNER: {"processes": 2, RESIDENT: round(both_mb, 1)},
    }
    return {"rows": rows, "own_s": own_s}


@contextmanager
def _device(home: Path, waiting: str, *arguments: str) -> Iterator[int]:
    """Run `melisma join` inside a ``with``; yield its process id when it prints that it waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from melisma.cli import main; main()", "join", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=processes.ROOT,
        env={
            **os.environ,
            "MELISMA_HOME": str(home),
            "PYTHONPATH": f"{processes.ROOT}/src:{processes.ROOT}",
        },
    )
    try:
        assert process.stdout is not None
        next(line for line in process.stdout if waiting in line)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
