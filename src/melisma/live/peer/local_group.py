"""`run_peers` and `resume_peers`: nodes as processes of this machine.

They find each other by a notice board. The folder of a run has the state of each node, from which
the whole group resumes after all of its processes were killed.

They begin together, when all of them are up: processes start at different times on a busy machine,
and a node would lose neighbours that are not there yet.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from melisma import axon
from melisma.errors import MelismaError
from melisma.learning.loaded_task import add_task_path, load_task
from melisma.learning.trainer import Trainer
from melisma.live.peer.group_record import GroupRecord, read_group, write_group
from melisma.live.peer.node_config import NodeConfig
from melisma.live.peer.node_journal import check_unused
from melisma.live.peer.node_runner import STOP_GRACE_S, Progress
from melisma.live.processes import run_processes
from melisma.live.training import remove_empty
from melisma.peer.group import Peers
from melisma.peer.proofs import NodeKey
from melisma.runs.folder import (
    LOGS_FOLDER,
    PICTURE_FILE,
    REPORTS_FOLDER,
    create_run_folder,
    naming_kept_files,
)
from melisma.runs.interruption import Cancellation, run_in_thread
from melisma.runs.peer_report import NodeReport, PeerReport
from melisma.runs.svg import save_picture

POLL_S = 0.5
"""The interval at which nodes are asked for their progress."""
START_POLL_S = 0.1
"""The interval at which nodes are looked for until all of them have begun."""
START_LIMIT_S = 60.0
"""The time after which nodes begin without those that are not up."""
NODE_MODULE = "melisma.live.peer.node_process"


@dataclass(frozen=True)
class PeerObserver:
    """Callbacks during a run: lines for users, and the progress of nodes."""

    log: Callable[[str], object] = lambda _: None
    progress: Callable[[Progress], object] = lambda _: None


def run_peers(  # noqa: PLR0913 - each is a setting of its own
    peers: Peers,
    *,
    file: str | Path | None = None,
    folder: str | Path | None = None,
    score_every: int = 0,
    tls: bool = False,
    keep_state: bool = True,
    observer: PeerObserver | None = None,
) -> PeerReport:
    """Run a process for each node until all have ended.

    Models, reports and a picture are written to `folder`, by default a new one in `runs`. Ctrl-C
    ends the run and keeps partial results. `resume_peers` continues a run that was killed or
    interrupted, unless `keep_state` is off.
    """
    # An error that concerns all nodes is raised once, before they start.
    module_folders = add_task_path(peers.settings.task, file)
    trainer = load_task(peers.settings.task, file).trainer
    default = Path("runs") / f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-peers"
    run_folder = create_run_folder(folder or default)
    record = GroupRecord(
        peers=peers,
        file=None if file is None else str(Path(file).resolve()),
        score_every=score_every,
        tls=tls,
        token=secrets.token_urlsafe(24),
        private_keys=[NodeKey.create().to_text() for _ in peers.topology.names],
        start_unix_s=time.time(),
    )
    with naming_kept_files(run_folder):
        if keep_state:
            write_group(run_folder, record)
        run = _Run(record, run_folder, module_folders, keep_state, observer or PeerObserver())
        return _run_all(run, trainer)


def resume_peers(folder: str | Path, *, observer: PeerObserver | None = None) -> PeerReport:
    """Continue a run whose processes have ended, each node from its own state.

    Nodes that had trained to the end only report again.
    """
    run_folder = Path(folder).resolve()
    record = read_group(run_folder)
    task = record.peers.settings.task
    module_folders = add_task_path(task, record.file)
    trainer = load_task(task, record.file).trainer
    names = record.peers.topology.names
    for name in names:
        check_unused(run_folder, name)
    observer = observer or PeerObserver()
    observer.log(f"resuming {len(names)} nodes of {run_folder}")
    with naming_kept_files(run_folder):
        run = _Run(record, run_folder, module_folders, True, observer)
        return _run_all(run, trainer)


def _run_all(run: "_Run", trainer: Trainer) -> PeerReport:
    peers, run_folder = run.peers, run.folder
    nodes = run_in_thread(lambda: asyncio.run(run.run(trainer)), run.cancellation, "melisma-peers")
    report = PeerReport.from_nodes(peers, nodes, simulated=False)
    # The folder was removed if no node started.
    if not run_folder.exists():
        return report
    save_picture(report.plot, run_folder / PICTURE_FILE)
    return replace(report, folder=run_folder)


class _Run:
    """The processes of one run."""

    def __init__(
        self,
        record: GroupRecord,
        folder: Path,
        module_folders: tuple[str, ...],
        keep_state: bool,
        observer: PeerObserver,
    ) -> None:
        self._record, self._keep_state = record, keep_state
        self.peers, self.folder, self._module_folders = record.peers, folder, module_folders
        self._observer, self._names = observer, record.peers.topology.names
        self._exits: dict[int, str] = {}
        self._begun: set[str] = set()
        self._started_at = time.monotonic()
        self.cancellation = Cancellation()

    async def run(self, trainer: Trainer) -> list[NodeReport]:
        """Run all nodes; return their reports."""
        token = secrets.token_urlsafe(24)
        keys = map(NodeKey.from_text, self._record.private_keys)
        self._keys = dict(zip(self._names, keys, strict=True))
        certificate = self._record.tls and self.folder / "board.pem"
        board = axon.board_worker(port=0, token=token, tls=certificate)
        async with board.listening() as address:
            indices = range(len(self._names))
            configs = [self._config(index, address, token) for index in indices]
            logs = self.folder / LOGS_FOLDER
            async with run_processes(
                configs,
                logs,
                self._on_exit,
                module=NODE_MODULE,
                trainer=trainer,
                grace_s=STOP_GRACE_S,
            ):
                while len(self._exits) < len(self._names) and not self.cancellation.requested:
                    all_begun = len(self._begun) == len(self._names)
                    await asyncio.sleep(POLL_S if all_begun else START_POLL_S)
                    progress = await asyncio.to_thread(self._poll, address, token)
                    self._observer.progress(progress)
                if self.cancellation.requested:
                    self._observer.log("interrupted: each node saves its model and its report")
        remove_empty(self.folder)
        return [self._report(index) for index in indices]

    def _config(self, index: int, board: str, token: str) -> NodeConfig:
        name = self._names[index]
        neighbours = self.peers.topology.neighbours(name)
        return NodeConfig(
            name=name,
            settings=self.peers.node_settings[index],
            score_every=self._record.score_every,
            part=index,
            parts=len(self._names),
            neighbours=neighbours,
            token=self._record.token,
            keys={neighbour: self._keys[neighbour].public for neighbour in neighbours},
            private_key=self._keys[name].to_text(),
            control_token=token,
            await_begin=True,
            tls=self._record.tls,
            board=str(replace(axon.Address.parse(board), token=token)),
            module_folders=self._module_folders,
            folder=str(self.folder),
            keep_state=self._keep_state,
            start_unix_s=self._record.start_unix_s,
        )

    def _on_exit(self, index: int, reason: str) -> None:
        self._exits[index] = reason
        if self._read_report(index) is not None:
            return
        self._observer.log(reason)
        lost = [self._names[each] for each in self._exits if self._read_report(each) is None]
        parts = self.peers.topology.without(lost).parts()
        if len(parts) > 1:
            listed = "; ".join(", ".join(part) for part in parts)
            self._observer.log(f"the topology falls into {len(parts)} parts: {listed}")

    def _poll(self, board: str, token: str) -> Progress:
        """Return the progress of the nodes that answer."""
        progress: dict[str, Mapping[str, float]] = {}
        try:
            workers = axon.workers(board, token=token)
        except MelismaError:
            return progress
        nodes = {worker.name.rpartition(".")[0]: worker.address for worker in workers}
        may_begin = self._all_up(nodes)
        for name, node_address in nodes.items():
            try:
                with axon.connect(node_address, token=token, deadline_s=POLL_S) as remote:
                    if may_begin and name not in self._begun:
                        remote.begin()
                        self._begun.add(name)
                    progress[name] = remote.progress()
            except MelismaError:
                continue
        return progress

    def _all_up(self, names: Iterable[str]) -> bool:
        """Return whether each node is up or has ended, or enough time has passed."""
        ended = (self._names[index] for index in list(self._exits))
        late = time.monotonic() > self._started_at + START_LIMIT_S
        return late or {*names, *ended} >= {*self._names}

    def _read_report(self, index: int) -> NodeReport | None:
        path = self.folder / REPORTS_FOLDER / f"{self._names[index]}.json"
        if not path.exists():
            return None
        return msgspec.json.decode(path.read_bytes(), type=NodeReport)

    def _report(self, index: int) -> NodeReport:
        report = self._read_report(index)
        if report is not None:
            return report
        reason = self._exits.get(index, f"no report within {STOP_GRACE_S:g} s")
        return NodeReport(name=self._names[index], outcome="left", reason=reason)
