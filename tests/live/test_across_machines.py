"""Fleets across machines, as their users start them: each machine is a network namespace."""

import contextlib
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from melisma.cycle import events
from melisma.cycle.events import Evaluated
from melisma.runs.journal import read_steps
from melisma.runs.report import Report
from melisma.runs.totals import LearnerTotal
from melisma.runs.trace import Step, read_trace
from tests.live import tiny_task
from tests.live.fleet_lab import FleetLab, Process, wait_until
from tests.live.network_lab import Host, NetworkLab, needs_namespaces, network_lab

pytestmark = needs_namespaces
PORT = 8471
RULES = """
scheme = "dab"
passes = 1
deadline_s = {deadline_s}
cycles = {cycles}
shard_samples = 100
"""
DIGITS = f"""
[task]
name = "digits"
model = "twonn"
data = "mnist"
sizes = {{{{ samples = 6000 }}}}
optimizer = {{{{ name = "sgd", lr = 0.1 }}}}
extension = false
{RULES}
"""
# PyTorch takes seconds to import on each machine, and this model waits more than it computes.
BLOBS = f"""
[task]
name = "blobs"
model = "tiny_task:Linear"
data = "tiny_task:blobs"
model_args = {{{{ pause_s = 0.01 }}}}
optimizer = {{{{ name = "sgd", lr = 0.3 }}}}
{RULES}
"""


@pytest.fixture
def network() -> Iterator[NetworkLab]:
    with network_lab() as lab:
        yield lab


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetLab]:
    lab = FleetLab(tmp_path)
    yield lab
    lab.close()


class FleetRun:
    """An orchestrator on one machine, and the devices that have joined it."""

    def __init__(
        self,
        fleet: FleetLab,
        host: Host,
        learners: int,
        task: str = BLOBS,
        deadline_s: float = 3.0,
        cycles: int = 3,
    ) -> None:
        self._fleet, self.devices = fleet, dict[str, Process]()
        shutil.copy(tiny_task.__file__, fleet.folder / "tiny_task.py")
        task = task.format(deadline_s=deadline_s, cycles=cycles)
        (fleet.folder / "TASK.toml").write_text(task)
        options = ["--learners", str(learners), "--port", str(PORT), "--out", "run"]
        self.orchestrator = fleet.melisma(
            host, "orchestrator", "orchestrate", "TASK.toml", "--no-discovery", "--json", *options
        )
        self.string = self.orchestrator.wait_for(r"melisma join (mel1\S+)")[1]

    def join(self, host: Host, string: str | None = None) -> Process:
        """Let a device join."""
        arguments = ["join", string or self.string, "--name", host.name, "--trust-code"]
        self.devices[host.name] = self._fleet.melisma(host, host.name, *arguments)
        return self.devices[host.name]

    @property
    def trace(self) -> Path:
        """The trace of the run."""
        return self._fleet.folder / "run" / "trace.jsonl"

    def steps(self) -> list[Step]:
        """Return the steps so far."""
        return read_steps(self.trace.parent)

    def wait_for_cycle(self, number: int) -> None:
        """Wait until a cycle was evaluated."""
        wait_until(
            lambda: sum(isinstance(step.event, Evaluated) for step in self.steps()) >= number,
            90,
        )

    def wait_for_return(self, name: str, times: int) -> None:
        """Wait until a device has trained after it has joined for the nth time."""
        wait_until(lambda: self._has_returned(name, times), 90)

    def _has_returned(self, name: str, times: int) -> bool:
        joins, learner = 0, -1
        # The last line may be incomplete.
        with contextlib.suppress(Exception):
            for step in self.steps():
                event = step.event
                if isinstance(event, events.LearnersJoined) and name in event.names:
                    learner = int(event.learners[event.names.index(name)])
                    joins += 1
                if isinstance(event, events.UpdatesReceived) and joins == times:
                    counted = (event.learners == learner) & (event.visits > 0)
                    if counted.any():
                        return True
        return False

    def total(self, name: str) -> LearnerTotal:
        """Return what a device did in the whole run."""
        report = Report.from_trace(read_trace(self.trace))
        return next(item for item in report.learners if item.name == name)

    def report(self) -> dict[str, Any]:
        """Wait for the end of the run and of all devices; return the report."""
        code = self.orchestrator.wait(150)
        assert code == 0, self.orchestrator.text
        for name, device in self.devices.items():
            assert device.wait(30) == 0, f"{name}: {device.text}"
        report: dict[str, Any] = json.loads(self.orchestrator.output[-1])
        return report


def visits(report: dict[str, Any]) -> dict[str, int]:
    """Return the visits of each learner."""
    return {learner["name"]: learner["counted_visits"] for learner in report["learners"]}


def test_devices_with_slow_links_join_by_a_string_and_train(
    network: NetworkLab, fleet: FleetLab
) -> None:
    run = FleetRun(fleet, network.host("desk"), learners=2, task=DIGITS)
    run.join(network.host("pi", mbit=20))
    run.join(network.host("laptop", mbit=100))
    report = run.report()
    assert report["outcome"] == "finished"
    assert report["accuracy"] > 0.25
    assert visits(report).keys() == {"pi", "laptop"}
    assert min(visits(report).values()) > 0


def test_a_device_behind_nat_and_one_with_ipv6_only_train_together(
    network: NetworkLab, fleet: FleetLab
) -> None:
    run = FleetRun(fleet, network.host("desk", ipv6=True), learners=2)
    run.join(network.host_behind_nat("phone"))
    run.join(network.host("jetson", ipv4=False, ipv6=True))
    assert min(visits(run.report()).values()) > 0


def test_a_device_that_changes_its_address_goes_on(network: NetworkLab, fleet: FleetLab) -> None:
    laptop = network.host("laptop")
    run = FleetRun(fleet, network.host("desk"), learners=1, cycles=6)
    device = run.join(laptop)
    run.wait_for_cycle(1)
    network.move(laptop)
    report = run.report()
    assert report["outcome"] == "finished"
    assert len(report["cycles"]) == 6
    assert report["cycles"][-1]["visits_counted"] > 0, device.text


def test_a_proxy_that_cuts_connections_every_two_seconds_is_no_obstacle(
    network: NetworkLab, fleet: FleetLab
) -> None:
    """The device reaches the orchestrator through the address of another machine only."""
    from melisma.live.join_string import JoinString

    desk, middle, pi = network.host("desk"), network.host("middle"), network.host("pi")
    run = FleetRun(fleet, desk, learners=2, cycles=4)
    fleet.proxy(middle, desk.addresses[0], PORT, every_s=2.0)
    invitation = JoinString.parse(run.string)
    through, _ = JoinString.create(
        PORT, invitation.fingerprint_prefix, invitation.token, middle.addresses
    )
    run.join(pi, string=str(through))
    run.join(network.host("laptop"))
    report = run.report()
    assert report["outcome"] == "finished"
    assert report["accuracy"] > 0.9
    assert run.total("pi").left == 0
    assert run.total("pi").counted_visits > 0


def test_a_device_that_is_cut_off_or_killed_is_replaced_and_can_come_back(
    network: NetworkLab, fleet: FleetLab
) -> None:
    pi, laptop = network.host("pi"), network.host("laptop")
    run = FleetRun(fleet, network.host("desk"), learners=2, deadline_s=4.0, cycles=9)
    first = run.join(pi)
    run.join(laptop)
    run.wait_for_cycle(1)
    pi.cut()
    run.wait_for_cycle(2)
    pi.restore()
    run.wait_for_return("pi", times=2)
    first.signal(signal.SIGKILL)
    first.wait(20)
    run.join(pi)
    run.wait_for_return("pi", times=3)
    report = run.report()
    assert report["outcome"] == "finished"
    assert visits(report).keys() == {"pi", "laptop"}
    assert run.total("pi").left >= 1
    assert run.total("laptop").left == 0
