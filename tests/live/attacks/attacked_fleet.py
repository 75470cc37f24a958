"""A run of `melisma orchestrate` with honest learner processes, and callers that attack it.

The orchestrator and the honest learners are processes; the test attacks from its own, with the
credentials of devices that enrolled as any other does.
"""

import contextlib
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import psutil

from melisma import axon
from melisma.axon.transport.tls import client_context
from melisma.cycle import events
from melisma.disclosure import Disclosure
from melisma.errors import BusyError
from melisma.live import protocol
from melisma.live.join_string import JoinString
from melisma.live.learner.device_identity import DeviceState
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.learner.reach import reach
from melisma.live.orchestrator.running_orchestrator import find_running
from melisma.runs.journal import read_steps
from melisma.runs.report import Report
from melisma.runs.totals import LearnerTotal
from melisma.runs.trace import read_trace
from tests.live import tiny_task
from tests.live.fleet_lab import FleetLab, Process
from tests.live.network_lab import Host

TASK = {
    "name": "blobs",
    "model": "tiny_task:Linear",
    "data": "tiny_task:blobs",
    "scheme": "equal",
    "passes": 1,
    "deadline_s": 2.0,
    "cycles": 4,
    "shard_samples": 50,
    "extension": False,
    "optimizer": {"lr": 0.3},
}
GOOD_UPDATE = {"weight": np.full(4, 0.5, np.float32), "bias": np.full(1, -3.0, np.float32)}
AnyKind = TypeVar("AnyKind")
FEDERATED: dict[str, Any] = {"mode": "federated", "data_args": {"test": 0}}
PLAUSIBLE_COSTS = ((0.01, 0.0, 1.0), (0.0, 0.0, 1.0), (0.01, 0.0, 1.0))


class Device:
    """A device that has enrolled; a test calls as it, or starts its learner process."""

    def __init__(self, folder: Path, invitation: JoinString, name: str) -> None:
        folder.mkdir(mode=0o700)
        self.folder, self._state = folder, DeviceState(folder)
        self._state.create_identity()
        self.identity = self._state.identity
        reached = reach(invitation.hosts, invitation.port, invitation.fingerprint_prefix)
        self.address = reached.address
        with axon.connect(
            self.address, token=invitation.token, certificate=self.identity
        ) as orchestrator:
            self.name = str(orchestrator.enroll(name))

    def settings(
        self, cache: Path | None = None, local_data: Path | None = None
    ) -> LearnerSettings:
        """Return the settings of its learner process."""
        return LearnerSettings(
            name=self.name,
            orchestrator=(self.address,),
            certificate=str(self.identity),
            cache=str(cache or self.folder / "cache"),
            module_path=(str(self.folder.parent),),
            allowed_modules=("tiny_task", "queueing_task"),
            local_data=None if local_data is None else str(local_data),
        )

    def connect(self) -> axon.Remote:
        """Return a connection with the credential of this device."""
        return axon.connect(self.address, certificate=self.identity)


class HonestLearner:
    """The learner process of a device, on this or on another machine."""

    def __init__(
        self, settings: LearnerSettings, log: Path, code: str = "", host: Host | None = None
    ) -> None:
        run = "from melisma.live.learner.learner_process import main; raise SystemExit(main())"
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*(host.prefix if host else []), sys.executable, "-c", f"{code}\n{run}"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(settings) + b"\n")
        self.process.stdin.flush()

    @property
    def log(self) -> str:
        """The output of the process."""
        return self._log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()


class HostileLearner:
    """A learner that has registered, and whose calls a test makes."""

    def __init__(self, device: Device) -> None:
        self.device, self.name = device, device.name
        self.session = secrets.token_hex(16)
        self.remote = device.connect()

    def call(self, method: str, *args: Any, deadline_s: float = 10.0) -> Any:
        """Call a method with the session of this learner."""
        return self.remote(deadline_s=deadline_s)[method](self.session, *args)

    def register(self) -> protocol.RegisterResponse:
        """Register with the session of this learner."""
        request = protocol.to_builtins(protocol.RegisterRequest(self.session))
        reply = self.remote(deadline_s=10.0).register(request)
        return protocol.parse(reply, protocol.RegisterResponse)

    def join(self, local_shards: tuple[int, ...] = (), discloses: Disclosure = "costs") -> None:
        """Register and join; in federated learning with shards of its own."""
        self.register()
        self.call("join", protocol.to_builtins(protocol.JoinRequest(discloses, local_shards)))

    def await_free_call(self) -> None:
        """Wait until the orchestrator has noticed that connections with open calls are closed."""
        while True:
            with contextlib.suppress(BusyError):
                self.register()
                return
            time.sleep(0.05)

    def await_work(self, *, answer_evaluations: bool = True) -> protocol.Train:
        """Poll until there is an assignment; answer benchmarks and evaluations plausibly."""
        return self.await_instruction(protocol.Train, answer_evaluations=answer_evaluations)

    def await_instruction(
        self, kind: type[AnyKind], *, answer_evaluations: bool = False
    ) -> AnyKind:
        """Poll until there is an instruction of that kind; answer benchmarks meanwhile."""
        while True:
            for instruction in protocol.parse_instructions(
                self.call("poll", None, deadline_s=30.0)
            ):
                if isinstance(instruction, kind):
                    return instruction
                if isinstance(instruction, protocol.RunBenchmark):
                    self.call("report_costs", PLAUSIBLE_COSTS)
                if isinstance(instruction, protocol.EvaluateModel) and answer_evaluations:
                    self.evaluate(instruction.cycle)
                assert not isinstance(instruction, protocol.Leave), "the run has ended"

    def evaluate(self, cycle: int, **sums: Any) -> None:
        """Report the evaluation of a cycle, whose sums are changed by keywords."""
        plausible = protocol.EvaluationSums(cycle, samples=5, loss_sum=1.0, correct=5, labels=5)
        self.call("report_evaluation", protocol.to_builtins(plausible) | sums)

    def upload(
        self,
        work: protocol.Train,
        update: Any = None,
        *,
        deadline_s: float = 10.0,
        **header: Any,
    ) -> str:
        """Upload an update for an assignment, whose header is changed by keywords."""
        visits = 50 * (len(work.shards) + len(work.local_shards))
        fields = {
            "cycle": work.cycle,
            "attempt": work.attempt,
            "visits": visits,
            "planned_visits": visits,
            "shipped": len(work.shards),
            "loss": 0.5,
            "phases": (0.0,) * 6,
            "costs": None,
        }
        arguments = fields | header, update or GOOD_UPDATE
        return str(self.call("upload_update", *arguments, deadline_s=deadline_s))


class MemoryWatch:
    """The private memory of a process: without pages of files, which the system can write back."""

    def __init__(self, pid: int) -> None:
        self._status, self._ended = Path(f"/proc/{pid}/status"), threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def anonymous_bytes(self) -> int:
        """The private memory at this time."""
        line = next(s for s in self._status.read_text().splitlines() if s.startswith("RssAnon"))
        return int(line.split()[1]) << 10

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.peak_bytes = max(self.peak_bytes, self.anonymous_bytes)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


class Anchor:
    """A learner that takes part in each cycle, and delays its end until the test lets it pass.

    It polls meanwhile, as a slow device does.
    """

    def __init__(self, learner: HostileLearner, local_shards: tuple[int, ...] = ()) -> None:
        self._learner, self._release = learner, threading.Event()
        self._passed = 0
        self._thread = threading.Thread(target=self._take_part, daemon=True)
        learner.join(local_shards)
        self.at_work = threading.Event()
        self._thread.start()

    def _take_part(self) -> None:
        while not self._release.is_set():
            work = self._learner.await_work()
            self.at_work.set()
            while not self._release.is_set() and self._passed < work.cycle:
                self._learner.call("poll", None, deadline_s=30.0)
            self._learner.upload(work)

    def let_pass(self, cycle: int) -> None:
        """Upload the updates of cycles up to this one at once."""
        self._passed = cycle

    def release(self) -> None:
        """Upload the update, and leave."""
        self._release.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._learner.call("report_failure", "done")


class AttackedFleet:
    """One orchestrator, its honest learners and the devices of attackers."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        learners: int = 2,
        host: str = "127.0.0.1",
        code: str = "",
        **task: Any,
    ) -> None:
        shutil.copy(tiny_task.__file__, folder / "tiny_task.py")
        write_task(folder / "task.toml", TASK | task)
        self._federated = task.get("mode") == "federated"
        self.folder, self.run_folder = folder, folder / "run"
        self._lab, self.learners = FleetLab(folder), list[HonestLearner]()
        self._hostile: list[HostileLearner] = []
        self.home = folder / "home-orchestrator"
        self.orchestrator: Process = self._lab.melisma(
            None,
            "orchestrator",
            *("orchestrate", "task.toml", "--learners", str(learners), "--out", "run", "--json"),
            *("--host", host, "--port", "0"),
            *(options or ("--no-discovery",)),
            code=code,
        )
        self.text = self.orchestrator.wait_for(r"melisma join (mel1\S+)")[1]
        self.invitation = JoinString.parse(self.text)
        self.process = psutil.Process(self.orchestrator.pid)

    @property
    def address(self) -> str:
        """The address of the orchestrator with its fingerprint."""
        running = find_running(self.home / "orchestrator")
        assert running is not None
        return running.address

    def melisma(self, *arguments: str) -> Process:
        """Start `melisma` as the owner of the orchestrator."""
        return self._lab.melisma(None, "orchestrator", *arguments)

    def send(self, data: bytes, device: Device | None = None, timeout_s: float = 2.0) -> bytes:
        """Send bytes over TLS, with the certificate of a device; return what is answered."""
        with self.open_socket(device, timeout_s) as sock:
            answer = b""
            # The orchestrator may close the connection before it has read everything.
            with contextlib.suppress(OSError):
                sock.sendall(data)
                while (part := sock.recv(1 << 16)) and len(answer) < 1 << 20:
                    answer += part
        return answer

    def open_socket(self, device: Device | None = None, timeout_s: float = 2.0) -> ssl.SSLSocket:
        """Return a TLS connection, with the certificate of a device."""
        address = axon.Address.parse(self.address)
        context = client_context(address.fingerprint, device.identity if device else None)
        sock = socket.create_connection((address.host, address.port), timeout_s)
        return context.wrap_socket(sock)

    def enrol(self, name: str) -> Device:
        """Enrol a device."""
        return Device(
            self.folder / f"device-{len(list(self.folder.iterdir()))}", self.invitation, name
        )

    def start_learner(
        self, name: str, code: str = "", cache: Path | None = None, host: Host | None = None
    ) -> HonestLearner:
        """Enrol a device and start its learner process, which runs `code` first.

        In federated learning it has 300 samples of its own.
        """
        log, local_data = self.folder / f"{name}.log", None
        if self._federated:
            local_data = write_local_data(self.folder / f"data-{name}")
        settings = self.enrol(name).settings(cache, local_data)
        self.learners.append(HonestLearner(settings, log, code, host))
        return self.learners[-1]

    def join(self, name: str, code: str = "", *options: str, text: str = "") -> Process:
        """Start `melisma join` on a device, which runs `code` first, by the join string `text`."""
        arguments = ["join", text or self.text, "--name", name, "--allow-module", "tiny_task"]
        return self._lab.melisma(None, f"join-{name}", *arguments, *options, code=code)

    def start(self, name: str, command: list[str]) -> Process:
        """Start a command on a device."""
        return self._lab.start(None, f"join-{name}", command)

    def home_of(self, name: str) -> Path:
        """Return the folder of the state of a device that was started by `join`."""
        return self.folder / f"home-join-{name}" / "device"

    def hostile(self, name: str = "mallory") -> HostileLearner:
        """Enrol a device as which the test calls."""
        self._hostile.append(HostileLearner(self.enrol(name)))
        return self._hostile[-1]

    def anchor(self) -> Anchor:
        """Add a learner that delays the end of each cycle."""
        return Anchor(self.hostile("anchor"), (50,) if self._federated else ())

    def wait_for_cycle(self, cycle: int) -> None:
        """Wait until a cycle has been evaluated."""
        self.wait_for_event(events.Evaluated, lambda event: event.cycle >= cycle)

    def wait_for_event(
        self, kind: type, matches: Any = lambda _: True, timeout_s: float = 60
    ) -> Any:
        """Wait until the journal has an event that matches, and return it."""
        end_at = time.monotonic() + timeout_s
        while True:
            for step in read_steps(self.run_folder):
                if isinstance(step.event, kind) and matches(step.event):
                    return step.event
            assert self.process.is_running(), self.orchestrator.text
            assert time.monotonic() < end_at, self.orchestrator.text
            time.sleep(0.05)

    def watching_memory(self) -> MemoryWatch:
        """Watch the memory of the orchestrator inside a ``with``."""
        return MemoryWatch(self.orchestrator.pid)

    def finish(self, timeout_s: float = 60.0) -> Report:
        """Wait for the end of the run, and return its report."""
        self.orchestrator.wait(timeout_s)
        assert "Traceback" not in self.orchestrator.text, self.orchestrator.text
        return Report.from_trace(read_trace(self.run_folder / "trace.jsonl"))

    def close(self) -> None:
        """End all processes."""
        for learner in self.learners:
            learner.end()
        for hostile in self._hostile:
            hostile.remote.__exit__()
        self._lab.close()


@contextlib.contextmanager
def attacked_fleet(folder: Path, *options: str, **task: Any) -> Iterator[AttackedFleet]:
    """Yield a fleet whose processes are ended afterwards."""
    fleet = AttackedFleet(folder, *options, **task)
    try:
        yield fleet
    finally:
        fleet.close()


def reasons(report: Report) -> str:
    """Return the reasons for which learners left, one in each line."""
    steps = [step.event for step in report.trace]
    return "\n".join(event.reason for event in steps if isinstance(event, events.LearnersLeft))


def total(report: Report, name: str) -> LearnerTotal:
    """Return what a learner did in the whole run."""
    return next(item for item in report.learners if item.name == name)


def write_local_data(folder: Path, samples: int = 300) -> Path:
    """Write samples and labels of a device to a folder."""
    (points, labels), _ = tiny_task.blobs(samples)
    folder.mkdir()
    np.save(folder / "samples.npy", points)
    np.save(folder / "labels.npy", labels)
    return folder


def write_task(path: Path, task: dict[str, Any]) -> None:
    """Write a task file; keys with a mapping become tables."""
    tables = {key: value for key, value in task.items() if isinstance(value, dict)}
    lines = ["[task]", *_lines({key: task[key] for key in task if key not in tables})]
    for key, table in tables.items():
        lines += [f"[task.{key}]", *_lines(table)]
    path.write_text("\n".join([*lines, ""]))


def _lines(table: dict[str, Any]) -> list[str]:
    return [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in table.items()]
