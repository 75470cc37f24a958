"""Flower deployed on this machine: a SuperLink, SuperNodes, and an app that runs on them.

All are processes on loopback, in their own environment, without encryption, installation at run
time and telemetry. Every process ends when the `with` block is left.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from benchmarks.harness import environments, processes, usage
from benchmarks.harness.processes import Process

REQUIREMENTS = "flower.txt"
APP = Path(__file__).parents[1] / "competitors"
FILES = ("flower_app.py", "flower_training.py")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
COMMAND_LIMIT_S = 60.0
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "melisma-benchmark"
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


@dataclass
class Deployment:
    """A SuperLink with its SuperNodes, on which an app can run."""

    folder: Path
    port: int
    stack: ExitStack
    began_at: float
    nodes_began_at: float = 0.0
    up_at: float = 0.0
    supernodes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.superlink = self.start_superlink()

    def start_superlink(self) -> Process:
        """Start a SuperLink, in place of an earlier one."""
        link = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
        command = [*link, "--port", str(self.port)]
        self.superlink = self.stack.enter_context(_start(self.folder, command))
        return self.superlink

    def start_supernodes(self, count: int) -> None:
        """Start SuperNodes."""
        commands = [_node(number, count, self.port) for number in range(count)]
        for command in commands:
            self.supernodes.append(self.stack.enter_context(_start(self.folder, command)))

    def start_supernode(self, number: int) -> None:
        """Start a SuperNode in place of an earlier one."""
        command = _node(number, len(self.supernodes), self.port)
        self.supernodes[number] = self.stack.enter_context(_start(self.folder, command))

    def processes(self) -> int:
        """Return the number of live processes of the first SuperNode."""
        pid = self.supernodes[0].pid
        return sum(usage.resident_mb(each) > 0 for each in (pid, *usage.descendants(pid)))

    def memory_mb(self) -> float:
        """Return the resident memory of the first SuperNode and its descendants."""
        return usage.resident_mb(self.supernodes[0].pid)

    def unseen_cpu_s(self) -> float:
        """Return the processor time of descendants, which `quiet.own_s` does not include."""
        roots = [self.superlink.pid, *(node.pid for node in self.supernodes)]
        return sum(_cpu_s(each) for root in roots for each in usage.descendants(root))

    def run(self, config: Mapping[str, Any]) -> Path:
        """Start the app; return the file to which it writes its rounds."""
        results, app = self.folder / "results.jsonl", self.folder / "app"
        app.mkdir()
        for name in FILES:
            shutil.copy(APP / name, app / name)
        settings = {**config, "learners": len(self.supernodes), "results": str(results)}
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
        (app / "pyproject.toml").write_text(PROJECT + "".join(lines))
        _run_flwr(self.folder, "run", str(app), "here", "--format", "json")
        return results

    def rounds(
        self, results: Path, enough: Callable[[dict[str, Any]], bool], limit_s: float
    ) -> list[dict[str, Any]]:
        """Wait until `enough(last_round)` is true; return all rounds."""
        give_up_at = time.monotonic() + limit_s
        while time.monotonic() < give_up_at:
            lines = results.read_text().splitlines() if results.exists() else []
            rounds = [json.loads(line) for line in lines]
            if rounds and enough(rounds[-1]):
                return rounds
            for process in (self.superlink, *self.supernodes):
                if process.popen.poll() is not None:
                    raise process.failure()
            time.sleep(0.05)
        raise RuntimeError(f"Flower did not finish in {limit_s:g} s; its rounds: {rounds}")


@contextmanager
def deploy(learners: int, limit_s: float = 60.0) -> Iterator[Deployment]:
    """Start a SuperLink and SuperNodes; end them on exit."""
    with TemporaryDirectory(prefix="benchmark-flower-") as name, ExitStack() as stack:
        folder, port = Path(name), processes.free_port()
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n'
            f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        environments.python(REQUIREMENTS)
        deployment = Deployment(folder, port, stack, time.time())
        processes.wait_for_port(port, deployment.superlink, limit_s)
        deployment.nodes_began_at = time.time()
        deployment.start_supernodes(learners)
        _wait_until_online(folder, learners, limit_s)
        deployment.up_at = time.time()
        yield deployment


def _node(number: int, learners: int, port: int) -> list[str]:
    config = f"partition-id={number} num-partitions={learners}"
    own = ["--port", str(processes.free_port()), "--node-config", config]
    return ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", *own]


def _wait_until_online(folder: Path, learners: int, limit_s: float) -> None:
    """Poll with the `flwr` command, which takes about a second each time."""
    give_up_at = time.monotonic() + limit_s
    while time.monotonic() < give_up_at:
        output = _run_flwr(folder, "supernode", "list", "here", "--format", "json")
        if output.count('"online"') >= learners:
            return
    raise RuntimeError(f"SuperNodes did not come online in {limit_s:g} s: {output}")


@contextmanager
def _start(folder: Path, command: Sequence[str]) -> Iterator[Process]:
    program, *arguments = command
    with TemporaryFile("w+") as output:
        popen = subprocess.Popen(
            [_python(), str(_bin() / program), *arguments],
            cwd=folder,
            env={**os.environ, **_variables(folder)},
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
        try:
            yield Process(program, popen, output)
        finally:
            processes.end(popen)


def _run_flwr(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [_python(), str(_bin() / "flwr"), *arguments],
        cwd=folder,
        env={**os.environ, **_variables(folder)},
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    # The exit code is 0 even if an app is refused.
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
    """Return the processor time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
