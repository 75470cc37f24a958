"""Drives the state machine of one node on the wall clock, with messages over Axon.

One thread takes steps and handles events between two of them; messages are sent and received by
other threads. The node's report and its model are written to files.
"""

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from zlib import crc32

import msgspec
from safetensors.numpy import save

from melisma import axon
from melisma.atomic import write_atomic
from melisma.axon.address import Address
from melisma.errors import MelismaError
from melisma.fleet.rng import generator
from melisma.learning.data.datasets import DataSet
from melisma.learning.stepper import Stepper, stepper_for
from melisma.live.peer.admission import Admission, ControlToken, is_protected, load_node_key
from melisma.live.peer.messenger import (
    MessageAcknowledged,
    MessageReceived,
    Messenger,
    NameRefused,
    NeighbourUnreachable,
    NetworkEvent,
)
from melisma.peer import commands
from melisma.peer.group import PeerSettings, partition_samples, take_samples
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs
from melisma.peer.proofs import NodeKey
from melisma.runs.folder import MODELS_FOLDER, REPORTS_FOLDER
from melisma.runs.peer_report import NodeRecorder, NodeReport, ScorePoint, describe_notice
from melisma.text import visible

Progress = Mapping[str, Mapping[str, float]]
"""Figures of nodes by name: steps, iterations, updates, waiting, sent_bytes."""
GOODBYE_S = 2.0
"""The time that an interrupted node has to say goodbye."""
STOP_GRACE_S = 30.0
"""The time that an interrupted node has to save its model, to say goodbye and to score."""
PROGRESS_S = 0.5
MAX_WAIT_S = 0.2
BEGIN_CHECK_S = 0.1
DISCOVER_S = 1.0
"""The time to wait for answers on the local network."""
MESSAGE_BYTES = 65536
"""The size of a message without its update or model."""
SMALL_BODY_BYTES = 8192


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one node.

    It trains on part number `part` of `parts` of the data. `neighbours` without an entry in
    `addresses` are looked up on the notice `board` or, with `discover`, on the local network.
    Without a `token` any host that reaches a node of the group can join it, which beyond this
    machine has to be allowed by `open_group`. `keys` are known keys of nodes; a name without one
    belongs to the first key that uses it. The node's own key is kept in a file unless `private_key`
    is given. With `control_token` only its owner may ask for progress. With `await_begin` the node
    listens, and begins when its owner calls `begin`. `module_folders` are added to the import path.
    Report and model are written to `folder`. Times are measured from `start_unix_s`, or from the
    start of the process.
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
    open_group: bool = False
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    private_key: str | None = None
    control_token: str | None = None
    await_begin: bool = False
    tls: bool = False
    board: str | None = None
    discover: bool = False
    advertise: str | None = None
    module_folders: tuple[str, ...] = ()
    folder: str | None = None
    start_unix_s: float | None = None


@dataclass
class NodeRunner:
    """Runs one node; `log` receives lines for users."""

    config: NodeConfig
    data: DataSet
    log: Callable[[str], object]
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[Progress], object] = lambda _: None

    def __post_init__(self) -> None:
        config = self.config
        incarnation = time.time_ns() // 10**6
        self._steps: Stepper = self._create_steps()
        self._node: Node = config.settings.create_node(
            config.name, incarnation, config.neighbours, self._steps, config.keys
        )
        self._recorder = NodeRecorder(self._node)
        key = (
            NodeKey.from_text(config.private_key)
            if config.private_key
            else load_node_key(config.name)
        )
        keyring = self._node.membership.keyring
        self._admission = Admission(config.name, config.token, key, keyring, incarnation)
        self._messenger = Messenger(
            self._admission,
            config.settings.patience_s,
            dict(config.addresses),
            self._look_up,
            status=self._progress,
            expected=frozenset(config.neighbours),
        )
        self._wakes: list[float] = []
        self._progress_at_s = 0.0
        self._steps_left = self._scored_steps = 0
        self._outcome = self._reason = ""

    def _create_steps(self) -> Stepper:
        config, task, train = self.config, self.config.settings.task, self.data.train
        # Nodes that all have the whole data set take it in different orders.
        same_data = config.parts == 1 and config.neighbours
        number = crc32(config.name.encode()) if same_data else config.part
        rng = generator(task.seed, "peer", 1, number)
        samples = partition_samples(task, train.labels, config.parts)[config.part]
        self._samples = len(samples)
        return stepper_for(task, take_samples(train, samples), rng)

    def run(self) -> NodeReport:
        """Train with the neighbours until all are done, or `stop` is set."""
        config = self.config
        update_bytes = MESSAGE_BYTES + 8 * self._node.model.vector.size
        worker = axon.Worker(
            host=config.host,
            port=config.port,
            # A notice board lists a former incarnation for a while, so its name must differ.
            name=f"{config.name}.{self._admission.incarnation}",
            authenticator=ControlToken(
                config.control_token,
                open_to_all=config.control_token is None and config.token is None,
            ),
            # The group's token is proved, never sent; beyond this machine all calls use TLS.
            tls=config.tls or not is_protected(str(Address(config.host, 1))),
            limits=axon.Limits(
                max_body_bytes=update_bytes,
                # A slower body would not arrive before its sender gives up.
                min_bytes_per_s=max(1024.0, update_bytes / (2 * config.settings.patience_s)),
            ),
            board=config.board,
            announce=config.discover,
            advertise=config.advertise,
        )
        worker.expose(self._messenger, ["deliver"], name="", max_body_bytes=update_bytes)
        small = ["introduce", "admit", "progress", "begin"]
        worker.expose(self._messenger, small, name="", max_body_bytes=SMALL_BODY_BYTES)
        with worker.start() as address:
            self._messenger.address = address
            self._admission.fingerprint = Address.parse(address).fingerprint or ""
            self.log(f"{config.name} at {address}, on {self._samples:,} samples")
            self.log(f"{config.name} has the key {self._admission.key.public}")
            self._log_unknown_addresses()
            late_s = 0.0 if config.start_unix_s is None else time.time() - config.start_unix_s
            self._start_s = time.monotonic() - late_s
            while config.await_begin and not self.stop.is_set():
                if self._messenger.begun.wait(BEGIN_CHECK_S):
                    break
            self._execute(self._node.start(self._now_s()))
            while not self._outcome:
                self._run_once()
            # Scoring takes seconds on a busy machine: the model is on disk before it begins.
            self._save(self._create_report(self._now_s()))
            self._messenger.flush(self.stop, GOODBYE_S)
            ended_s = self._now_s()
            self._score()
            report = self._create_report(ended_s)
            self._save_report(report)
            return report

    def _log_unknown_addresses(self) -> None:
        config = self.config
        if config.board is not None or config.discover:
            return
        for name in config.neighbours:
            if name not in config.addresses:
                self.log(f"{config.name}: the address of {name} is unknown; waiting for its call")

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s

    def _run_once(self) -> None:
        """Handle all events that are due, and take one step."""
        computing = self._node.computing
        if self.stop.is_set():
            self._execute(self._node.leave())
            self._outcome, self._reason = "cancelled", "interrupted"
            return
        wait_s = 0.0 if computing else max(0.0, self._wakes[0] - self._now_s())
        while (event := self._next_event(min(wait_s, MAX_WAIT_S))) is not None:
            wait_s = 0.0
            self._messenger.record_handled(event)
            self._execute(self._on_event(event))
            self._admission.incarnation = self._node.identity.incarnation
        while self._wakes and self._wakes[0] <= self._now_s():
            heapq.heappop(self._wakes)
            self._execute(self._node.on_wake(self._now_s()))
        self._show_progress()
        if self._outcome or computing is None:
            return
        self._steps.step(computing.learning_rate)
        self._steps_left -= 1
        if not self._steps_left:
            self._recorder.record_computed(self._now_s())
            self._execute(self._node.on_computed(self._now_s()))
            self._score_if_due()

    def _next_event(self, wait_s: float) -> NetworkEvent | None:
        events = self._messenger.events
        try:
            return events.get(timeout=wait_s) if wait_s else events.get_nowait()
        except Empty:
            return None

    def _on_event(self, event: NetworkEvent) -> Outputs:
        match event:
            case MessageReceived(message, key):
                return self._node.on_message(self._now_s(), message, key)
            case NameRefused(name, reason):
                return self._node.on_forgery(self._now_s(), name, reason)
            case NeighbourUnreachable(name, reason):
                outputs = self._node.on_unreachable(self._now_s(), name)
                if outputs:
                    self.log(f"{self.config.name}: no answer from {name}: {visible(reason)}")
                return outputs
            case MessageAcknowledged(round_trip_s):
                self._node.on_acknowledged(round_trip_s)
        return []

    def _execute(self, outputs: Outputs) -> None:
        self._recorder.record_outputs(self._now_s(), outputs)
        for output in outputs:
            match output:
                case commands.TakeSteps(steps=steps):
                    self._steps_left = steps
                case commands.Send(to=to, message=message):
                    self._messenger.send(to, message)
                case commands.Wake(at_s=at_s):
                    heapq.heappush(self._wakes, at_s)
                case commands.Finish(reason=reason):
                    self._outcome, self._reason = (
                        "failed" if reason else "finished",
                        visible(reason),
                    )
            if line := describe_notice(output):
                self.log(f"{self.config.name}: {line}")

    def _show_progress(self) -> None:
        if self._now_s() - self._progress_at_s >= PROGRESS_S:
            self._progress_at_s = self._now_s()
            self.progress({self.config.name: self._progress()})

    def _progress(self) -> dict[str, float]:
        # Called by other threads too, while `computing` may change.
        node, computing = self._node, self._node.computing
        return {
            "steps": node.steps + (computing.steps - self._steps_left if computing else 0),
            "iterations": node.identity.iterations,
            "updates": node.update_number,
            "waiting": computing is None and node.steps < node.identity.iterations,
            "sent_bytes": self._messenger.sent_bytes,
        }

    def _score_if_due(self) -> None:
        every = self.config.score_every
        if every and self._node.steps >= self._scored_steps + every:
            self._score()

    def _score(self) -> None:
        self._scored_steps = self._node.steps
        score = self._steps.score(self.data.test)
        samples, sent_bytes = self._steps.visits, self._messenger.sent_bytes
        figures = (self._now_s(), self._node.steps, samples, sent_bytes)
        self._recorder.scores.append(ScorePoint(*figures, score.accuracy, score.loss))

    def _create_report(self, ended_s: float) -> NodeReport:
        neighbours = self._node.neighbours.values()
        if (
            self._outcome == "finished"
            and neighbours
            and not any(n.incarnation for n in neighbours)
        ):
            self._outcome, self._reason = "alone", "no neighbour ever answered"
        self._recorder.messages = self._messenger.sent_messages
        self._recorder.sent_bytes = self._messenger.sent_bytes
        return self._recorder.report(ended_s, self._outcome, self._reason, self._steps.visits)

    def _save(self, report: NodeReport) -> None:
        """Write the model and the report to the folder, if there is one."""
        if self.config.folder is None:
            return
        folder = Path(self.config.folder)
        model = folder / MODELS_FOLDER / f"{report.name}.safetensors"
        write_atomic(model, save(self._steps.arrays()), mode=0o600)
        self._save_report(report)

    def _save_report(self, report: NodeReport) -> None:
        if self.config.folder is not None:
            path = Path(self.config.folder) / REPORTS_FOLDER / f"{report.name}.json"
            write_atomic(path, msgspec.json.encode(report), mode=0o600)

    def _look_up(self, name: str) -> list[str]:
        """Return addresses of a neighbour on the notice board or the local network."""
        config = self.config
        try:
            if config.board is not None:
                listed = axon.workers(config.board)
                return _latest_addresses(name, {each.name: each.address for each in listed})
            if config.discover:
                discovered = axon.discover(DISCOVER_S)
                return _latest_addresses(name, {each.name: each.address for each in discovered})
        except MelismaError:
            return []
        return []


def _latest_addresses(name: str, addresses: Mapping[str, str]) -> list[str]:
    """Return the addresses that are announced for a node, of its last incarnations first."""
    found = [
        (int(incarnation), worker)
        for worker in addresses
        for node, _, incarnation in [worker.rpartition(".")]
        if node == name and incarnation.isdecimal()
    ]
    return [addresses[worker] for _, worker in sorted(found, reverse=True)]
