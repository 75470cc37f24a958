"""Attacks by a process of its own on node processes: the group finishes, within stated bounds."""

import dataclasses
import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from melisma import axon
from melisma.learning.loaded_task import load_task
from melisma.learning.stepper import stepper_for
from melisma.live.peer.node_config import NodeConfig
from melisma.peer.algorithms import LocalSgd
from melisma.peer.group import PeerSettings
from melisma.peer.keyring import MAX_UNEXPECTED_NAMES
from melisma.peer.proofs import NodeKey
from melisma.peer.stalls import STALL_ROUNDS
from melisma.runs.peer_report import NodeReport
from tests.live.child_process import start_process
from tests.live.peer import attacker
from tests.live.peer.attacker import GREETINGS, TOKEN, Attack
from tests.live.peer.tiny_net import TASK

ITERATIONS = 300
# Longer than a process takes to start on a busy machine.
PATIENCE_S = 60.0
ATTACK_FILE = "attack"
SLOW_DURING_ATTACK = msgspec.structs.replace(TASK, model_args={"slow_file": ATTACK_FILE})
SETTINGS = PeerSettings(
    SLOW_DURING_ATTACK,
    LocalSgd(learning_rate=0.1, steps=10),
    ITERATIONS,
    patience_s=PATIENCE_S,
)
END_S = 240.0


class Group:
    """Node processes with known keys, and attackers; nodes are slow while an attack lasts."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.keys: dict[str, NodeKey] = {}
        self.ports: dict[str, int] = {}
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / ATTACK_FILE).touch()

    def add(self, *names: str) -> None:
        """Choose the ports and keys of nodes."""
        for name in names:
            self.keys[name] = NodeKey.create()
            with socket.create_server(("127.0.0.1", 0)) as server:
                self.ports[name] = server.getsockname()[1]

    def address(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    def start(self, name: str, *neighbours: str, **options: Any) -> None:
        """Start the process of a node."""
        given: dict[str, Any] = {
            "name": name,
            "settings": SETTINGS,
            "neighbours": neighbours,
            "addresses": {each: self.address(each) for each in neighbours},
            "port": self.ports[name],
            "token": TOKEN,
            "keys": {each: self.keys[each].public for each in neighbours},
            "private_key": self.keys[name].to_text(),
            "module_folders": (str(self.folder),),
            "folder": str(self.folder),
        }
        config = NodeConfig(**(given | options))
        log = self.folder / f"{name}.log"
        process = start_process("melisma.live.peer.node_process", config, log)
        self._stack.callback(_end, process)
        self.nodes[name] = process

    def attack(self, attack: Attack) -> "subprocess.Popen[bytes]":
        """Start the process of an attacker."""
        process = subprocess.Popen(
            [sys.executable, "-P", attacker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(_end, process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(attack) + b"\n")
        process.stdin.flush()
        return process

    def result(self, process: "subprocess.Popen[bytes]") -> Any:
        """Return the last line of an attacker; from then on nodes are fast."""
        output, _ = process.communicate(timeout=END_S)
        assert process.returncode == 0
        (self.folder / ATTACK_FILE).unlink(missing_ok=True)
        return msgspec.json.decode(output.splitlines()[-1])

    def reports(self) -> list[NodeReport]:
        """Wait for all nodes; return their reports."""
        limit = time.monotonic() + END_S
        for name, process in self.nodes.items():
            code = process.wait(max(0.0, limit - time.monotonic()))
            assert code == 0, (self.folder / f"{name}.log").read_text()
        paths = [self.folder / "reports" / f"{name}.json" for name in self.nodes]
        return [msgspec.json.decode(path.read_bytes(), type=NodeReport) for path in paths]


def _end(process: "subprocess.Popen[bytes]") -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.kill()
    process.wait()


@pytest.fixture
def group(folder: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group(folder, stack)


def compatibility() -> dict[str, str]:
    """Return the properties that a member of the group has to name."""
    loaded = load_task(SETTINGS.task)
    steps = stepper_for(loaded.task, loaded.data.train, np.random.default_rng(1))
    settings = dataclasses.replace(SETTINGS, task=loaded.task)
    return dict(settings.create_node("x", 1, (), steps).identity.compatibility)


def check_complete(reports: list[NodeReport]) -> None:
    """Check that all nodes trained to the end, with each other."""
    for report in reports:
        assert (report.outcome, report.steps) == ("finished", ITERATIONS)
        assert report.accuracy is not None
        assert report.accuracy > 0.9
        assert report.started_s is not None
        lost = [f"{each.name} is lost" for each in reports]
        for line in report.notices:
            at_s, _, text = line.partition(" s: ")
            # A process that starts late may be lost before training begins.
            assert float(at_s) <= round(report.started_s, 3) or not text.startswith(tuple(lost))


@pytest.mark.slow
def test_forged_messages_of_a_far_later_incarnation_change_nothing(group: Group) -> None:
    group.add("a", "b", "c")
    for name in "abc":
        group.start(name, *({"a", "b", "c"} - {name}))
    forger = Attack(
        kind="forge",
        to="a",
        address=group.address("a"),
        victim="b",
        compatibility=compatibility(),
    )
    answers = group.result(group.attack(forger))
    assert answers == {
        "this key belongs to x, not to b": 60,
        "the name b belongs to another key": 1,
        "": 1,
    }
    a, b, c = reports = group.reports()
    check_complete(reports)
    assert a.forgeries == 61
    assert (b.forgeries, c.forgeries) == (0, 0)
    assert sum("forged message in the name of b" in line for line in a.notices) == 1
    assert any("x: incarnation 9007199254740992 is too far ahead" in line for line in a.notices)
    assert a.updates == a.last_update == ITERATIONS / 10


@pytest.mark.slow
def test_a_silent_neighbour_delays_its_neighbours_by_the_stated_time(
    group: Group, folder: Path
) -> None:
    (folder / ATTACK_FILE).unlink()
    group.add("a", "b", "c", "x")
    silent = Attack(
        kind="stay_silent",
        to="a",
        address=group.address("a"),
        private_key=group.keys["x"].to_text(),
        port=group.ports["x"],
    )
    process = group.attack(silent)
    patience_s = 4.0
    # The prediction is a median, so that a slow first round does not count.
    algorithm = LocalSgd(learning_rate=0.1, steps=10, max_lag=8)
    settings = dataclasses.replace(SETTINGS, patience_s=patience_s, algorithm=algorithm)
    group.start("a", "b", "c", "x", settings=settings)
    group.start("b", "a", "c", settings=settings)
    group.start("c", "a", "b", settings=settings)
    a, b, c = reports = group.reports()
    check_complete(reports)
    assert group.result(process) > 0
    assert sum("x answers, but sent no update for" in line for line in a.notices) == 1
    # It claims to wait, so its time is doubled; a node looks at the time once in `patience_s`.
    longest_s = max(end - begin for begin, end in a.compute_spans_s)
    limit_s = 2 * (patience_s + STALL_ROUNDS * longest_s) + 2 * patience_s
    for report in (a, b, c):
        assert max(waits_s(report)) < limit_s


def waits_s(report: NodeReport) -> list[float]:
    """Return the times between two rounds of a node."""
    spans = report.compute_spans_s
    return [later[0] - earlier[1] for earlier, later in pairwise(spans)]


@pytest.mark.slow
def test_made_up_greetings_start_few_threads_and_delay_no_node_for_ever(group: Group) -> None:
    group.add("a", "b", "c")
    # Names that were admitted without a node behind them are lost after this time.
    settings = dataclasses.replace(SETTINGS, patience_s=5.0)
    for name in "abc":
        group.start(name, *({"a", "b", "c"} - {name}), settings=settings)
    greeter = Attack(
        kind="greet", to="a", address=group.address("a"), compatibility=compatibility()
    )
    process, threads = group.attack(greeter), [0]
    node = psutil.Process(group.nodes["a"].pid)
    while process.poll() is None:
        threads.append(node.num_threads())
        time.sleep(0.05)
    answers = group.result(process)
    # One of the names is that of the attacker itself.
    accepted = MAX_UNEXPECTED_NAMES - 1
    assert answers.pop("") == accepted
    assert sum(answers.values()) == GREETINGS - accepted
    assert all("not named as neighbours" in refusal for refusal in answers)
    assert max(threads) < 64
    check_complete(group.reports())


@pytest.mark.parametrize("announcement", ["board", pytest.param("mdns", marks=pytest.mark.slow)])
def test_an_impostor_process_is_sent_nothing_but_a_nonce(group: Group, announcement: str) -> None:
    options: dict[str, Any] = {"addresses": {}, "tls": True, "port": 0}
    board: str | None = None
    with ExitStack() as stack:
        if announcement == "board":
            listening = axon.board_worker(port=0, token="pin").start()
            board = stack.enter_context(listening).replace("//", "//pin@")
            options["board"] = board
        else:
            skip_without_multicast()
            options["discover"] = True
        a, b = (f"melisma-{name}-{time.time_ns()}" for name in "ab")
        group.add(a, b)
        process = group.attack(Attack(kind="pretend", victim=b, board=board))
        assert process.stdout is not None
        assert process.stdout.readline() == b'"announced"\n'
        group.start(a, b, **options)
        # Had the other node called first, its address would be known.
        assert process.stdout.readline() == b'"called"\n'
        group.start(b, a, **options)
        (group.folder / ATTACK_FILE).unlink()
        reports = group.reports()
        check_complete(reports)
        assert group.result(process) == {
            "calls": ["introduce"],
            "nonce_bytes": [32],
            "authorizations": ["None"],
        }


def skip_without_multicast() -> None:
    """Skip the test where workers cannot be discovered."""
    if importlib.util.find_spec("zeroconf") is None:
        pytest.skip("the package zeroconf is not installed")
    probe = f"melisma-probe-{time.time_ns()}"
    with axon.Worker(port=0, name=probe, announce=True).start():
        if probe not in [worker.name for worker in axon.discover(1.0)]:
            pytest.skip("multicast DNS does not get through on this machine")
