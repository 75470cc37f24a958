"""Memory and processor time of an orchestrator whose learners have joined and wait.

The learners are threads of this process that do what the agent of a waiting learner does: each has
an identity and a TLS connection of its own, has registered and joined, and polls.
"""

import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import processes, usage
from melisma import axon
from melisma.axon import create_identity
from melisma.errors import AxonError
from melisma.live import protocol
from melisma.live.join_string import JoinString
from melisma.live.learner.reach import reach

COUNTS, SECONDS = (0, 200), 60.0
RESIDENT, EACH, PROCESSOR = "resident MB", "KB per learner", "processor %"
COLUMNS = [RESIDENT, EACH, PROCESSOR]
TASK = """
[task]
name = "nothing"
model = "benchmarks.live.empty_task:NoTraining"
data = "benchmarks.live.empty_task:samples"
scheme = "equal"
passes = 1
deadline_s = 60.0
cycles = 1
shard_samples = 1
batch = 1

[task.model_args]
model_bytes = 4096
"""


def measure(quick: bool) -> dict[str, Any]:
    """Return a row for each number of learners."""
    rows: dict[str, dict[str, float]] = {}
    own_s, base_mb = 0.0, 0.0
    for count in COUNTS:
        with (
            TemporaryDirectory(prefix="benchmark-idle-") as name,
            start_orchestrator(name) as started,
        ):
            pid, invitation = started
            ended = threading.Event()
            threads = _join(Path(name), invitation, count, ended)
            before_s, began_at = usage.cpu_s(pid), time.monotonic()
            time.sleep(10.0 if quick else SECONDS)
            busy_s, passed_s = usage.cpu_s(pid) - before_s, time.monotonic() - began_at
            resident_mb = usage.resident_mb(pid)
            own_s += usage.cpu_s(pid)
            ended.set()
        for thread in threads:
            thread.join()
        base_mb = base_mb or resident_mb
        rows[f"{count} learners"] = {
            RESIDENT: round(resident_mb, 1),
            EACH: round(1000 * (resident_mb - base_mb) / count) if count else 0.0,
            PROCESSOR: round(100 * busy_s / passed_s, 2),
        }
    return {"rows": rows, "own_s": own_s}


@contextmanager
def start_orchestrator(folder: str) -> Iterator[tuple[int, JoinString]]:
    """Run `melisma orchestrate`, which waits for more learners than join; yield its process id."""
    task = Path(folder) / "task.toml"
    task.write_text(TASK)
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from melisma.cli import main; main()", "orchestrate"),
            *(str(task), "--learners", "1000", "--host", "127.0.0.1", "--port", "0"),
            *("--no-discovery", "--out", f"{folder}/run"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=processes.ROOT,
        env={
            **os.environ,
            "MELISMA_HOME": f"{folder}/home",
            "PYTHONPATH": f"{processes.ROOT}/src:{processes.ROOT}",
        },
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        text = next(found[1] for line in lines if (found := re.search(r"(mel1\S+)", line)))
        # Its output must not fill the pipe.
        threading.Thread(target=lambda: list(lines), daemon=True).start()
        yield process.pid, JoinString.parse(text)
    finally:
        process.kill()
        process.wait()


def _join(
    folder: Path, invitation: JoinString, count: int, ended: threading.Event
) -> list[threading.Thread]:
    """Start learners and wait until all have joined."""
    joined = threading.Semaphore(0)
    reached = reach(invitation.hosts, invitation.port, invitation.fingerprint_prefix)

    def take_part(number: int) -> None:
        identity, session = folder / f"{number}.pem", secrets.token_hex(16)
        create_identity(identity)
        with axon.connect(reached.address, token=invitation.token, certificate=identity) as remote:
            remote.enroll(f"learner-{number}")
        with axon.connect(reached.address, certificate=identity) as remote:
            remote.register(protocol.to_builtins(protocol.RegisterRequest(session)))
            remote.join(session, protocol.to_builtins(protocol.JoinRequest("costs")))
            joined.release()
            while not ended.is_set():
                try:
                    remote.poll(session, None)
                except AxonError:
                    return  # The orchestrator has ended.

    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
        joined.acquire()
    return threads
