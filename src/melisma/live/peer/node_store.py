"""The state of a live node: restored when the node is started again, kept and saved."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from melisma.errors import SettingError
from melisma.learning.stepper import Stepper
from melisma.live.peer.node_config import NodeConfig
from melisma.live.peer.node_journal import NodeJournal, NodeRecord
from melisma.peer import messages
from melisma.peer.node import Node
from melisma.peer.node_snapshot import ReceivedMessage, restore, take_snapshot
from melisma.peer.sent_messages import SentMessages
from melisma.runs.folder import REPORTS_FOLDER
from melisma.runs.peer_report import RecordedFigures

SNAPSHOT_S: Final = 10.0
"""The time after which a node that trains is saved although no message depends on it."""


@dataclass(frozen=True)
class DriverState:
    """The state of the driver of a node: its time, and the steps left in the round."""

    now_s: float
    steps_left: int
    addresses: dict[str, str]
    outcome: str
    reason: str


class NodeStore:
    """Restores `node` and `steps`, if they have a state on disk, and saves them.

    `record` is the restored state, `inbox` the messages that arrived after it, and `sent` those
    that were sent and are not acknowledged. `error` is the first error of the disk.
    """

    def __init__(self, config: NodeConfig, node: Node, steps: Stepper) -> None:
        self._config, self._node, self._steps = config, node, steps
        self.sent = SentMessages()
        self.start_unix_s = config.start_unix_s or time.time()
        self.record: NodeRecord | None = None
        self.inbox: list[ReceivedMessage] = []
        self.error: OSError | None = None
        self._journal: NodeJournal | None = None
        self._handled: list[int] = []
        self._saved_at_s, self._saved_steps = 0.0, (0, 0)
        if config.folder is not None and config.keep_state:
            self._journal = NodeJournal(Path(config.folder), config.name)
            try:
                self._load(self._journal)
            except BaseException:
                self._journal.close()
                raise

    @property
    def restarts(self) -> int:
        """How often the node has resumed, this process included."""
        return 0 if self.record is None else self.record.node.restarts + 1

    def _load(self, journal: NodeJournal) -> None:
        loaded = journal.load()
        if loaded is None:
            return
        record, self.inbox = loaded
        self._handled = journal.inbox
        self._check_options(record)
        self.sent = restore(self._node, self._steps, record.node)
        self.start_unix_s, self.record = record.start_unix_s, record
        # It is that of a process that ended in order, perhaps interrupted.
        report = Path(str(self._config.folder)) / REPORTS_FOLDER / f"{self._config.name}.json"
        report.unlink(missing_ok=True)

    def _check_options(self, record: NodeRecord) -> None:
        """Raise `SettingError` if the node was first started with other options."""
        for name, value in self._options().items():
            if record.options.get(name) != value:
                raise SettingError(
                    f"{name} is {value}, but the state of node {self._config.name} in "
                    f"{self._config.folder} was begun with {record.options.get(name)}; use the "
                    "options of the first start, or another folder"
                )

    def _options(self) -> dict[str, str]:
        """Return the options that have to be the same whenever the node is started."""
        config, settings, identity = self._config, self._config.settings, self._node.identity
        own = {
            "neighbours": ",".join(sorted(config.neighbours)) or "none",
            "part": f"{config.part + 1}/{config.parts}",
            "data": settings.task.data,
            "batch": str(settings.task.batch),
            "seed": str(settings.task.seed),
            "iterations": str(identity.iterations),
            "settings": str(settings.algorithm),
        }
        return dict(identity.compatibility) | own

    def keep(self, message: messages.Message, key: str) -> int:
        """Write a received message to disk, from any thread; return its number."""
        if self._journal is None:
            return 0
        try:
            return self._journal.keep(message, key)
        except OSError as error:
            self.error = error
            raise

    def record_handled(self, number: int) -> None:
        """Record that the next snapshot contains a received message."""
        if number:
            self._handled.append(number)

    def is_due(self, now_s: float, steps_left: int) -> bool:
        """Return whether to save after a while of training, or because many messages arrived."""
        if self._journal is None:
            return False
        trained = (self._node.steps, steps_left) != self._saved_steps
        late = now_s > self._saved_at_s + SNAPSHOT_S
        return (trained and late) or (self._journal.is_full and bool(self._handled))

    def save(self, driver: DriverState, figures: RecordedFigures) -> None:
        """Return when the state of the node is on disk."""
        if self._journal is None:
            return
        # A board or a search finds neighbours anew, and so at their present addresses.
        searched = self._config.board is not None or self._config.discover
        record = NodeRecord(
            options=self._options(),
            start_unix_s=self.start_unix_s,
            node=take_snapshot(self._node, self._steps, driver.steps_left, self.sent),
            figures=figures,
            addresses={} if searched else driver.addresses,
            outcome=driver.outcome,
            reason=driver.reason,
        )
        handled, self._handled = self._handled, []
        try:
            self._journal.save(record, handled)
        except OSError as error:
            self.error = error
            raise
        self._saved_at_s, self._saved_steps = driver.now_s, (self._node.steps, driver.steps_left)

    def close(self) -> None:
        """Let another process open the state."""
        if self._journal is not None:
            self._journal.close()
