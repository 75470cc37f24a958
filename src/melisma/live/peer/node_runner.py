"""Drives the state machine of one node on the wall clock, with messages over Axon.

One thread takes steps and handles events between two of them; messages are sent and received by
other threads. The node's report and its model are written to files.
"""

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty
from typing import NoReturn
from zlib import crc32

import msgspec
from safetensors.numpy import save

from melisma import axon
from melisma.atomic import write_atomic
from melisma.axon.address import Address
from melisma.errors import DataError
from melisma.fleet.rng import generator
from melisma.learning.data.datasets import DataSet
from melisma.learning.stepper import Stepper, stepper_for
from melisma.live.peer.admission import Admission, ControlToken, is_protected, load_node_key
from melisma.live.peer.messenger import Messenger
from melisma.live.peer.neighbour_lookup import look_up_addresses
from melisma.live.peer.network_events import (
    MessageAcknowledged,
    MessageReceived,
    NameRefused,
    NeighbourUnreachable,
    NetworkEvent,
)
from melisma.live.peer.node_config import NodeConfig
from melisma.live.peer.node_store import DriverState, NodeStore
from melisma.peer import commands
from melisma.peer.group import partition_samples, take_samples
from melisma.peer.node import Node
from melisma.peer.node_snapshot import needs_snapshot, resume
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
MESSAGE_BYTES = 65536
"""The size of a message without its update or model."""
SMALL_BODY_BYTES = 8192


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
        self._steps: Stepper = self._create_steps()
        self._node: Node = config.settings.create_node(
            config.name, time.time_ns() // 10**6, config.neighbours, self._steps, config.keys
        )
        self._recorder = NodeRecorder(self._node)
        self._store = NodeStore(config, self._node, self._steps)
        record = self._store.record
        self._steps_left = 0 if record is None else record.node.steps_left
        self._outcome = "" if record is None else record.outcome
        self._reason = "" if record is None else record.reason
        self._scored_steps = 0
        key = (
            NodeKey.from_text(config.private_key)
            if config.private_key
            else load_node_key(config.name)
        )
        keyring = self._node.membership.keyring
        incarnation = self._node.identity.incarnation
        self._admission = Admission(config.name, config.token, key, keyring, incarnation)
        self._messenger = Messenger(
            self._admission,
            config.settings.patience_s,
            dict(config.addresses),
            partial(look_up_addresses, config),
            status=self._progress,
            expected=frozenset(config.neighbours),
            keep=self._store.keep,
        )
        if record is not None:
            self._messenger.restore(record.addresses, self._node.neighbours.values())
            self._messenger.sent_messages = record.figures.messages
            self._messenger.sent_bytes = record.figures.sent_bytes
        self._wakes: list[float] = []
        self._progress_at_s = 0.0

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
        try:
            return self._run()
        finally:
            self._store.close()

    def _run(self) -> NodeReport:
        config = self.config
        update_bytes = MESSAGE_BYTES + 8 * self._node.model.vector.size
        worker = axon.Worker(
            host=config.host,
            port=config.port,
            # A notice board lists a former process for a while, so its name must differ. An
            # incarnation is in milliseconds: a later one is larger.
            name=f"{config.name}.{self._admission.incarnation + self._store.restarts}",
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
            # The clock of the device may have been set back since it stopped.
            late_s = max(time.time() - self._store.start_unix_s, self._node.now_s)
            self._start_s = time.monotonic() - late_s
            while config.await_begin and not self.stop.is_set():
                if self._messenger.begun.wait(BEGIN_CHECK_S):
                    break
            try:
                self._begin()
                while not self._outcome:
                    self._run_once()
            except OSError as error:
                if error is not self._store.error:
                    raise
                self._leave_without_disk(error)
            # Scoring takes seconds on a busy machine: the model is on disk before it begins.
            self._save_results(self._create_report(self._now_s()))
            self._messenger.flush(self.stop, GOODBYE_S)
            ended_s = self._now_s()
            self._score()
            report = self._create_report(ended_s)
            self._save_report(report)
            return report

    def _begin(self) -> None:
        """Start, or resume from the state on disk; messages leave when the state is saved."""
        node, store, now_s = self._node, self._store, self._now_s()
        if store.record is None:
            self._execute(node.start(now_s), save=True)
            return
        self._recorder.restore(now_s, store.record.figures)
        self._scored_steps = max((score.steps for score in self._recorder.scores), default=0)
        line = (
            f"resumes after {node.steps:,} of {node.identity.iterations:,} steps and "
            f"{node.update_number} updates (restart {store.restarts})"
        )
        self.log(f"{self.config.name} {line}")
        self._recorder.record_notice(now_s, line)
        unacknowledged = store.sent.pending()
        if not self._outcome:
            self._execute(resume(node, now_s, store.inbox), save=True)
        for number, send in unacknowledged.items():
            self._messenger.send(send.to, send.message, number)

    def _is_due(self) -> bool:
        """Return whether to save although no message depends on it."""
        return self._store.is_due(self._now_s(), self._steps_left)

    def _save(self) -> None:
        """Return when the state of this node is on disk."""
        self._recorder.messages = self._messenger.sent_messages
        self._recorder.sent_bytes = self._messenger.sent_bytes
        driver = DriverState(
            self._now_s(),
            self._steps_left,
            dict(self._messenger.addresses),
            self._outcome,
            self._reason,
        )
        self._store.save(driver, self._recorder.figures())

    def _leave_without_disk(self, error: OSError) -> NoReturn:
        """Say goodbye, and raise `DataError`: a node must not go on without its state on disk."""
        self._send_all(self._node.leave())
        interrupted = threading.Event()
        interrupted.set()
        self._messenger.flush(interrupted, GOODBYE_S)
        raise DataError(
            f"cannot write the state of {self.config.name} to {self.config.folder}: "
            f"{error.strerror}; the node left after {self._node.steps:,} steps: free some space, "
            "and start it again to resume"
        ) from error

    def _send_all(self, outputs: Outputs) -> None:
        """Send messages that do not depend on a state that is not saved."""
        for output in outputs:
            if isinstance(output, commands.Send):
                self._messenger.send(output.to, output.message)

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
        if self._store.error is not None:
            raise self._store.error
        if self.stop.is_set():
            # It may resume from the state before it left.
            self._save()
            self._send_all(self._node.leave())
            self._outcome, self._reason = "cancelled", "interrupted"
            return
        wait_s = 0.0 if computing else max(0.0, self._wakes[0] - self._now_s())
        outputs: Outputs = []
        while (event := self._next_event(min(wait_s, MAX_WAIT_S))) is not None:
            wait_s = 0.0
            self._messenger.record_handled(event)
            outputs += self._on_event(event)
            self._admission.incarnation = self._node.identity.incarnation
        while self._wakes and self._wakes[0] <= self._now_s():
            heapq.heappop(self._wakes)
            outputs += self._node.on_wake(self._now_s())
        self._execute(outputs, save=self._is_due() or needs_snapshot(outputs))
        self._show_progress()
        if self._outcome or computing is None:
            return
        self._steps.step(computing.learning_rate)
        self._steps_left -= 1
        if not self._steps_left:
            self._recorder.record_computed(self._now_s())
            outputs = self._node.on_computed(self._now_s())
            self._execute(outputs, save=needs_snapshot(outputs))
            self._score_if_due()

    def _next_event(self, wait_s: float) -> NetworkEvent | None:
        events = self._messenger.events
        try:
            return events.get(timeout=wait_s) if wait_s else events.get_nowait()
        except Empty:
            return None

    def _on_event(self, event: NetworkEvent) -> Outputs:
        match event:
            case MessageReceived(message, key, number):
                self._store.record_handled(number)
                return self._node.on_message(self._now_s(), message, key)
            case NameRefused(name, reason):
                return self._node.on_forgery(self._now_s(), name, reason)
            case NeighbourUnreachable(name, reason):
                self._store.sent.drop(name)
                outputs = self._node.on_unreachable(self._now_s(), name)
                if outputs:
                    self.log(f"{self.config.name}: no answer from {name}: {visible(reason)}")
                return outputs
            case MessageAcknowledged(number, round_trip_s):
                self._store.sent.acknowledge(number)
                if round_trip_s is not None:
                    self._node.on_acknowledged(round_trip_s)
        return []

    def _execute(self, outputs: Outputs, *, save: bool) -> None:
        """Carry out outputs; messages leave when the state on which they depend is saved."""
        self._recorder.record_outputs(self._now_s(), outputs)
        sends: list[tuple[int, commands.Send]] = []
        for output in outputs:
            match output:
                case commands.TakeSteps(steps=steps):
                    self._steps_left = steps
                case commands.Send():
                    sends.append((self._store.sent.add(output), output))
                case commands.Wake(at_s=at_s):
                    heapq.heappush(self._wakes, at_s)
                case commands.Finish(reason=reason):
                    self._outcome, self._reason = (
                        "failed" if reason else "finished",
                        visible(reason),
                    )
            if line := describe_notice(output):
                self.log(f"{self.config.name}: {line}")
        if save:
            self._save()
        for number, send in sends:
            self._messenger.send(send.to, send.message, number)

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

    def _save_results(self, report: NodeReport) -> None:
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
