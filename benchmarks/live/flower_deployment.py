"""Flower deployed on this machine: a SuperLink, SuperNodes, and an app that is run on them.

All of it are processes on loopback, in an environment of their own; nothing is encrypted, nothing
is installed at run time, telemetry is off. Every process is ended when the `with` block is left.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from benchmarks.harness import environments, processes, usage
from benchmarks.harness.processes import Process

REQUIREMENTS = "flower.txt"
APP = Path(__file__).parents[1] / "competitors"
FILES = ("flower_app.py", "flower_mnist.py")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
CALLS_S = 60.0
"""How long a command of Flower's may take."""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "beside-melisma"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "melisma"

[tool.flwr.app.components]
serverapp = "flower_app:server"
clientapp = "flower_app:client"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Deployed:
    """A SuperLink and SuperNodes that know it, and where an app can be run."""

    folder: Path
    began_at: float
    up_at: float
    superlink: Process
    supernodes: tuple[Process, ...]

    def processes(self) -> int:
        """How many the first SuperNode is, with all that it started and that have not ended."""
        pid = self.supernodes[0].pid
        return sum(usage.resident_mb(each) > 0 for each in (pid, *usage.descendants(pid)))

    def memory_mb(self) -> float:
        """What the first SuperNode and all that it started hold now."""
        return usage.resident_mb(self.supernodes[0].pid)

    def unseen_cpu_s(self) -> float:
        """Processor time of what its processes started, which nobody is told of at their end."""
        roots = [self.superlink.pid, *(node.pid for node in self.supernodes)]
        return sum(_cpu_s(each) for root in roots for each in usage.descendants(root))

    def run(self, config: Mapping[str, Any]) -> Path:
        """Start the app; the file to which it tells its rounds."""
        told, app = self.folder / "told.jsonl", self.folder / "app"
        app.mkdir()
        for name in FILES:
            shutil.copy(APP / name, app / name)
        said = {**config, "learners": len(self.supernodes), "told": str(told)}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in said.items()]
        (app / "pyproject.toml").write_text(PROJECT + "".join(lines))
        _called(self.folder, "run", str(app), "here", "--format", "json")
        return told

    def rounds(
        self, told: Path, enough: Callable[[dict[str, Any]], bool], limit_s: float
    ) -> list[dict[str, Any]]:
        """What the app tells, until `enough` says so of the last round."""
        give_up_at = time.monotonic() + limit_s
        while time.monotonic() < give_up_at:
            lines = told.read_text().splitlines() if told.exists() else []
            found = [json.loads(line) for line in lines]
            if found and enough(found[-1]):
                return found
            for process in (self.superlink, *self.supernodes):
                if process.popen.poll() is not None:
                    raise process.failure()
            time.sleep(0.05)
        raise RuntimeError(f"Flower did not get there in {limit_s:g} s; it told {found}")


@contextmanager
def deployed(learners: int, limit_s: float = 60.0) -> Iterator[Deployed]:
    """SuperNodes that are known to their SuperLink; ended on leaving."""
    with TemporaryDirectory(prefix="beside-flower-") as name, ExitStack() as stack:
        folder, port = Path(name), processes.free_port()
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n'
            f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        environments.python(REQUIREMENTS)
        began_at = time.time()
        link = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
        superlink = stack.enter_context(_started(folder, [*link, "--port", str(port)]))
        processes.wait_for_port(port, superlink, limit_s)
        nodes = [
            stack.enter_context(_started(folder, _node(number, learners, port)))
            for number in range(learners)
        ]
        _until_known(folder, learners, limit_s)
        yield Deployed(folder, began_at, time.time(), superlink, tuple(nodes))


def _node(number: int, learners: int, port: int) -> list[str]:
    config = f"partition-id={number} num-partitions={learners}"
    own = ["--port", str(processes.free_port()), "--node-config", config]
    return ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *own]


def _until_known(folder: Path, learners: int, limit_s: float) -> None:
    """Asks Flower itself, which takes it about a second a time."""
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        said = _called(folder, "supernode", "list", "here", "--format", "json")
        if said.count('"online"') >= learners:
            return
    raise RuntimeError(f"SuperNodes did not come online in {limit_s:g} s: {said}")


@contextmanager
def _started(folder: Path, command: Sequence[str]) -> Iterator[Process]:
    program, *arguments = command
    with TemporaryFile("w+") as complaints:
        popen = subprocess.Popen(
            [_python(), str(_bin() / program), *arguments],
            cwd=folder,
            env={**os.environ, **_variables(folder)},
            stdout=complaints,
            stderr=complaints,
            text=True,
            start_new_session=True,
        )
        try:
            yield Process(program, popen, complaints)
        finally:
            processes.end(popen)


def _called(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [_python(), str(_bin() / "flwr"), *arguments],
        cwd=folder,
        env={**os.environ, **_variables(folder)},
        capture_output=True,
        text=True,
        timeout=CALLS_S,
        check=False,
    )
    # A refused app is told in words only: the exit code is 0.
    if done.returncode or '"success": false' in done.stdout:
        raise RuntimeError(f"flwr {arguments[0]}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def _variables(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(_bin()), os.environ["PATH"]])
    own = {"FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    return {**own, **ONE_THREAD}


def _python() -> str:
    return environments.python(REQUIREMENTS)


def _bin() -> Path:
    return Path(_python()).parent


def _cpu_s(pid: int) -> float:
    """Processor time of a process and of those that it started and that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
