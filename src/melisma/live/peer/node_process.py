"""A node on a device: the machine of `peer/` by wall time, over Axon, in a process of its own.

One thread computes and asks the machine what to do; it looks for news between two steps. Messages
come and go on other threads meanwhile. What became of it is one file, its model another.
"""

import heapq
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from zlib import crc32

import msgspec
from safetensors.numpy import save

from melisma import axon
from melisma.atomic import write_atomic
from melisma.axon.address import Address
from melisma.errors import MelismaError, SettingError
from melisma.fleet.rng import generator
from melisma.learning.data.datasets import DataSet
from melisma.learning.loaded_task import gathered
from melisma.learning.steps import Steps, steps_for
from melisma.learning.trainers import train_on_one_thread
from melisma.live.peer.messenger import (
    MessageAcknowledged,
    MessageReceived,
    Messenger,
    NeighbourUnreachable,
    NetworkEvent,
)
from melisma.peer import commands
from melisma.peer.group import PeerSettings, check_name, partition_samples, take_samples
from melisma.peer.node import Node, Outputs
from melisma.runs.peer_report import NodeRecorder, NodeReport, ScorePoint, describe_notice

FAREWELL_S = 2.0
"""How long a node that is interrupted tries to say goodbye."""
SHOWN_S = 0.5
DISCOVER_S = 1.0
"""How long answers on the local network are waited for."""


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a node is told by whoever starts it.

    It trains on part number `part` of `parts` of the data. Neighbours are `addresses` by name, or
    names alone that a notice `board` or, with `discover`, the local network tells the places of.
    `path` are folders where modules of one's own are looked for; `out` is where the report and the
    model go. Times are told since `since`, in seconds since 1970, or since it was started.
    """

    name: str
    settings: PeerSettings
    score_every: int = 0
    part: int = 0
    parts: int = 1
    neighbours: tuple[str, ...] = ()
    addresses: dict[str, str] = msgspec.field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    tls: bool = False
    board: str | None = None
    discover: bool = False
    advertise: str | None = None
    module_folders: tuple[str, ...] = ()
    folder: str | None = None
    start_unix_s: float | None = None


@dataclass
class NodeRunner:
    """One node at work; `tell` gets lines for whoever watches."""

    setting: NodeConfig
    data: DataSet
    tell: Callable[[str], object]
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[Mapping[str, Mapping[str, float]]], object] = lambda _: None

    def __post_init__(self) -> None:
        said, task = self.setting, self.setting.settings.task
        # A later life sorts after an earlier one.
        life = f"{time.time_ns():020}-{os.getpid()}"
        # Nodes that have all of the data take it in unlike orders.
        alike = said.parts == 1 and said.neighbours
        number = crc32(said.name.encode()) if alike else said.part
        rng = generator(task.seed, "peer", 1, number)
        samples = partition_samples(task, self.data.train.labels, said.parts)[said.part]
        self._samples = len(samples)
        self._steps: Steps = steps_for(task, take_samples(self.data.train, samples), rng)
        self._node: Node = said.settings.create_node(said.name, life, said.neighbours, self._steps)
        self._tally = NodeRecorder(self._node)
        self._post = Messenger(
            said.name,
            life,
            said.token,
            said.settings.patience_s,
            dict(said.addresses),
            self._find,
            status=self._progress,
            expected=frozenset(said.neighbours),
        )
        self._wakes: list[float] = []
        self._shown = 0.0
        self._left, self._outcome, self._why, self._scored = 0, "", "", 0

    def run(self) -> NodeReport:
        """Train with the neighbours until all is done, or `stop` is set."""
        said = self.setting
        worker = axon.Worker(
            host=said.host,
            port=said.port,
            # With its life: on a board a former one is there for a while.
            name=f"{said.name}.{self._post.incarnation}",
            token=said.token,
            tls=said.tls,
            board=_shown_to(said.board, said.token),
            announce=said.discover,
            advertise=said.advertise,
        )
        worker.expose(self._post, ["deliver", "identify", "progress"], name="")
        with worker.start() as address:
            self._post.address = address
            self.tell(f"{said.name} at {address}, on {self._samples:,} samples")
            looks = said.board is not None or said.discover
            for name in said.neighbours:
                if name not in said.addresses and not looks:
                    self.tell(f"{said.name}: {name} has no address here; it is waited for")
            late_s = 0.0 if said.start_unix_s is None else time.time() - said.start_unix_s
            self._began = time.monotonic() - late_s
            self._do(self._node.start(self._now()))
            while not self._outcome:
                self._turn()
            self._post.flush(self.stop, FAREWELL_S)
            return self._reported()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _turn(self) -> None:
        """Hear what there is to hear, and take one step."""
        computing = self._node.computing
        if self.stop.is_set():
            self._do(self._node.leave())
            self._outcome, self._why = "cancelled", "interrupted"
            return
        wait_s = 0.0 if computing else max(0.0, self._wakes[0] - self._now())
        while (news := self._news(min(wait_s, 0.2))) is not None:
            wait_s = 0.0
            self._do(self._heard(news))
        while self._wakes and self._wakes[0] <= self._now():
            heapq.heappop(self._wakes)
            self._do(self._node.on_wake(self._now()))
        self._show()
        if self._outcome or computing is None:
            return
        self._steps.step(computing.learning_rate)
        self._left -= 1
        if not self._left:
            self._tally.record_computed(self._now())
            self._do(self._node.on_computed(self._now()))
            self._score_on_the_way()

    def _show(self) -> None:
        if self._now() - self._shown >= SHOWN_S:
            self._shown = self._now()
            self.progress({self.setting.name: self._progress()})

    def _news(self, wait_s: float) -> NetworkEvent | None:
        try:
            return (
                self._post.events.get(timeout=wait_s) if wait_s else self._post.events.get_nowait()
            )
        except Empty:
            return None

    def _heard(self, news: NetworkEvent) -> Outputs:
        match news:
            case MessageReceived(message):
                return self._node.on_message(self._now(), message)
            case NeighbourUnreachable(name, why):
                found = self._node.on_unreachable(self._now(), name)
                if found:
                    self.tell(f"{self.setting.name}: no answer from {name}: {why}")
                return found
            case MessageAcknowledged(took_s):
                self._node.on_acknowledged(took_s)
        return []

    def _do(self, emitted: Outputs) -> None:
        self._tally.record_outputs(self._now(), emitted)
        for command in emitted:
            match command:
                case commands.Compute(steps=steps):
                    self._left = steps
                case commands.Send(to=to, message=message):
                    self._post.send(to, message)
                case commands.Wake(at_s=at_s):
                    heapq.heappush(self._wakes, at_s)
                case commands.Finish(why=why):
                    self._outcome, self._why = "failed" if why else "done", why
            if line := describe_notice(command):
                self.tell(f"{self.setting.name}: {line}")

    def _score_on_the_way(self) -> None:
        every = self.setting.score_every
        if every and self._node.steps >= self._scored + every:
            self._score()

    def _score(self) -> None:
        self._scored = self._node.steps
        score = self._steps.score(self.data.test)
        self._tally.scores.append(
            ScorePoint(
                self._now(),
                self._node.steps,
                self._steps.visits,
                self._post.sent_bytes,
                score.accuracy,
                score.loss,
            )
        )

    def _reported(self) -> NodeReport:
        ended_s = self._now()
        known = self._node.neighbours.values()
        if self._outcome == "done" and known and not any(each.incarnation for each in known):
            self._outcome, self._why = "alone", "none of its neighbours ever answered"
        self._score()
        self._tally.messages, self._tally.sent_bytes = (
            self._post.sent_messages,
            self._post.sent_bytes,
        )
        report = self._tally.report(ended_s, self._outcome, self._why, self._steps.visits)
        if self.setting.folder is not None:
            folder = Path(self.setting.folder)
            write_atomic(
                folder / "models" / f"{report.name}.safetensors", save(self._steps.arrays())
            )
            write_atomic(folder / "reports" / f"{report.name}.json", msgspec.json.encode(report))
        return report

    def _progress(self) -> dict[str, float]:
        # It is asked on another thread than the one that computes.
        node, computing = self._node, self._node.computing
        return {
            "steps": node.steps + (computing.steps - self._left if computing else 0),
            "of": node.identity.iterations,
            "updates": node.update_number,
            "waiting": computing is None and node.steps < node.identity.iterations,
            "sent_bytes": self._post.sent_bytes,
        }

    def _find(self, name: str) -> str | None:
        """Where a notice board or the network has it; nowhere, if they do not answer."""
        said = self.setting
        try:
            if said.board is not None:
                signed = axon.workers(said.board, token=said.token)
                return _last_of(name, {each.name: each.address for each in signed})
            if said.discover:
                found = axon.discover(DISCOVER_S)
                return _last_of(name, {each.name: each.address for each in found})
        except MelismaError:
            return None
        return None


def _last_of(name: str, places: Mapping[str, str]) -> str | None:
    """Where the last life of a node is."""
    lives = [each for each in places if each.rpartition(".")[0] == name]
    return places[max(lives)] if lives else None


def run_node(
    setting: NodeConfig,
    tell: Callable[[str], object] = lambda _: None,
    stop: threading.Event | None = None,
    file: str | Path | None = None,
    progress: Callable[[Mapping[str, Mapping[str, float]]], object] = lambda _: None,
) -> NodeReport:
    """Run one node to its end, or until `stop` is set."""
    _check(setting)
    for place in setting.module_folders:
        if place not in sys.path:
            sys.path.append(place)
    if not 0 <= setting.part < setting.parts:
        raise SettingError(
            f"part {setting.part} of {setting.parts}; expected 0 to {setting.parts - 1}"
        )
    material = gathered(setting.settings.task, file)
    train_on_one_thread()
    group = replace(setting.settings, task=material.task)
    setting = msgspec.structs.replace(setting, settings=group)
    return NodeRunner(setting, material.data, tell, stop or threading.Event(), progress).run()


def _check(setting: NodeConfig) -> None:
    """What can be known to be wrong before anything is loaded."""
    for name in (setting.name, *setting.neighbours):
        check_name(name)
    if setting.name in setting.neighbours:
        raise SettingError(f"{setting.name} is among its own neighbours")
    for name, address in setting.addresses.items():
        try:
            Address.parse(address)
        except SettingError as error:
            raise SettingError(f"neighbour {name}: {error}") from None


def _shown_to(board: str | None, token: str | None) -> str | None:
    """The address of a notice board with the token to show there."""
    if board is None or token is None:
        return board
    place = Address.parse(board)
    return str(replace(place, token=place.token or token))


def main() -> None:
    """A node that another process starts: its setting is the first line of standard input."""
    setting = msgspec.json.decode(sys.stdin.buffer.readline(), type=NodeConfig)
    stop = threading.Event()

    def watch() -> None:
        """Whoever started it holds standard input open; when it closes, it is over."""
        # Not through `sys.stdin`, whose lock a thread must not hold when the interpreter ends.
        while os.read(0, 1024):
            pass
        stop.set()
        time.sleep(setting.settings.patience_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
    try:
        report = run_node(setting, stop=stop)
    except MelismaError as error:
        sys.exit(f"{setting.name}: {error}")
    if report.reason:
        sys.exit(f"{setting.name}: {report.reason}")


if __name__ == "__main__":
    main()
