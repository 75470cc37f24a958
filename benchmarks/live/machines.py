"""Capacity used on three machines, beside the same devices emulated on one.

The machines are network namespaces on a switch: an orchestrator, and two devices with links of 40
and 100 Mbit/s, which join by the join string over TLS and train as fast as a core allows. The same
task then runs on one machine with `melisma run` and two devices with those links that are limited
to one core each. Seconds to the first training count from the start of the last `melisma join`.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import processes
from benchmarks.live.capacity import MELISMA, PUNCTUAL, lateness, percent, punctuality
from melisma.runs.journal import read_steps
from melisma.runs.trace import encode_step
from tests.live.fleet_lab import FleetLab, Process
from tests.live.network_lab import NetworkLab, network_lab

PORT, LIMIT_S, FIRST_CYCLES = 8473, 240.0, 2
LINKS_MBIT = {"pi": 40, "laptop": 100}
CAPACITY, FIRST = "capacity from cycle 3 %", "first training after s"
COLUMNS = ["cycles", CAPACITY, PUNCTUAL, "largest lateness %", "visits", "accuracy %", FIRST]
TASK = """
[task]
name = "{name}"
model = "{model}"
data = "{name}"
scheme = "dab"
passes = 1
deadline_s = {deadline_s}
cycles = {cycles}
shard_samples = 100
optimizer = {{ name = "sgd", lr = 0.05, momentum = 0.9 }}
"""
DATA = {"mnist": ("twonn", 6.0), "cifar-10": ("cifar_net:build", 8.0)}
COUNTS = ("one machine", "three machines")
LEARNER = """
[[fleet.learner]]
name = "{}"
compute = 1.0
bandwidth_bps = {:.0f}e6
latency_s = 0.0
"""


def measure(quick: bool) -> dict[str, Any]:
    """Measure each task on several machines, then on one."""
    rows: dict[str, dict[str, float | None]] = {}
    for name, (model, deadline_s) in DATA.items():
        cycles = 3 if quick else 8
        task = TASK.format(name=name, model=model, deadline_s=deadline_s, cycles=cycles)
        rows[f"{name}, three machines"] = _run_on_machines(task)
        rows[f"{name}, one machine"] = _run_on_one(task)
    return {"rows": rows, "own_s": 0.0}


def difference(name: str, part: Mapping[str, Any]) -> float:
    """Return how many points of capacity several machines use less than one."""
    one, three = (part["rows"][f"{name}, {count}"][CAPACITY] for count in COUNTS)
    return float(one - three)


class Machines:
    """An orchestrator and its devices, each on a machine of its own."""

    def __init__(self, network: NetworkLab, fleet: FleetLab, task: str) -> None:
        self.folder, self.trace = fleet.folder, fleet.folder / "run" / "trace.jsonl"
        _write_task(fleet.folder, task)
        options = ["--learners", str(len(LINKS_MBIT)), "--port", str(PORT), "--out", "run"]
        self.orchestrator = fleet.melisma(
            network.host("desk"),
            "desk",
            *("orchestrate", "TASK.toml", "--no-discovery", "--json", *options),
        )
        string = self.orchestrator.wait_for(r"melisma join (mel1\S+)")[1]
        self.hosts = {name: network.host(name, mbit=mbit) for name, mbit in LINKS_MBIT.items()}
        self.devices: dict[str, Process] = {}
        for name, host in self.hosts.items():
            self.joined_at = time.monotonic()
            # Both devices share the two cores of this machine.
            options = ["--name", name, "--trust-code", "--cores", "0.5"]
            self.devices[name] = fleet.melisma(host, name, "join", string, *options)

    def wait_for_dispatch(self, cycle: int, limit_s: float = 120.0) -> float:
        """Wait until the learners of a cycle have their assignments; return the instant."""
        sign, give_up_at = f'"cycle":{cycle},', time.monotonic() + limit_s
        while time.monotonic() < give_up_at:
            lines = [encode_step(step).decode() for step in read_steps(self.trace.parent)]
            if any('"Dispatch"' in line and sign in line for line in lines):
                return time.monotonic()
            if self.orchestrator.ended:
                raise RuntimeError(self.orchestrator.text[-1000:])
            time.sleep(0.02)
        raise RuntimeError(
            f"cycle {cycle} did not begin in {limit_s:g} s: {self.orchestrator.text}"
        )

    def report(self) -> dict[str, Any]:
        """Wait for the end of the run; return its report."""
        if self.orchestrator.wait(LIMIT_S):
            raise RuntimeError(self.orchestrator.text[-1000:])
        report: dict[str, Any] = json.loads(self.orchestrator.output[-1])
        return report


@contextmanager
def start(task: str) -> Iterator[Machines]:
    """Start machines; delete them on exit."""
    with TemporaryDirectory(prefix="benchmark-machines-") as name, network_lab() as network:
        fleet = FleetLab(Path(name))
        try:
            yield Machines(network, fleet, task)
        finally:
            fleet.close()


def _run_on_machines(task: str) -> dict[str, float | None]:
    with start(task) as machines:
        first_s = machines.wait_for_dispatch(1) - machines.joined_at
        return _row(machines.report()) | {FIRST: round(first_s, 1)}


def _run_on_one(task: str) -> dict[str, float | None]:
    with TemporaryDirectory(prefix="benchmark-machines-") as name:
        folder = Path(name)
        _write_task(folder, task)
        fleet = "".join(LEARNER.format(*device) for device in LINKS_MBIT.items())
        (folder / "FLEET.toml").write_text(fleet)
        files = [f"{name}/TASK.toml", "--fleet", f"{name}/FLEET.toml"]
        command = ["-c", MELISMA, "run", *files, "--json", "--out", f"{name}/run"]
        return _row(json.loads(processes.run_python(command, LIMIT_S))) | {FIRST: None}


def _write_task(folder: Path, task: str) -> None:
    """Write the task file and the module of its model."""
    (folder / "TASK.toml").write_text(task)
    shutil.copy(Path(__file__).with_name("cifar_net.py"), folder)


def _row(report: dict[str, Any]) -> dict[str, float | None]:
    if report["outcome"] != "finished":
        raise RuntimeError(f"the run {report['outcome']}: {report['reason']}")
    cycles = report["cycles"]
    used = [each["capacity_used"] for each in cycles[FIRST_CYCLES:]]
    return {
        "cycles": len(cycles),
        CAPACITY: percent(sum(used) / len(used)),
        **punctuality([lateness(each) for each in cycles]),
        "visits": sum(each["visits_counted"] for each in cycles),
        "accuracy %": percent(report["accuracy"]),
    }
