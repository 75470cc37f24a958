"""`run_peers`: nodes as processes of this machine, found by a notice board of their own."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from melisma import axon
from melisma.errors import MelismaError
from melisma.learning.loaded_task import gathered, module_path
from melisma.live.peer.node_process import NodeConfig
from melisma.live.processes import run_processes
from melisma.live.training import remove_empty
from melisma.peer.group import Peers
from melisma.runs.folder import create_run_folder
from melisma.runs.interruption import Cancellation, run_in_thread
from melisma.runs.peer_report import NodeReport, PeerReport
from melisma.runs.svg import save_picture

PICTURE = "picture.svg"
POLL_S = 0.5
"""How often nodes are asked how far they are."""
Progress = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class PeerObserver:
    """Who is told what happens: lines that matter, and how far nodes are."""

    log: Callable[[str], object] = lambda _: None
    progress: Callable[[Progress], object] = lambda _: None


def run_peers(
    peers: Peers,
    *,
    file: str | Path | None = None,
    folder: str | Path | None = None,
    score_every: int = 0,
    tls: bool = False,
    observer: PeerObserver | None = None,
) -> PeerReport:
    """Run a process for each node until all have come to their ends.

    Models, reports and picture go to `folder`; without it, a new one below `runs`. Ctrl-C ends it
    and keeps what there is.
    """
    path = module_path(peers.settings.task, file)
    # What is wrong for all nodes is said once.
    gathered(peers.settings.task, file)
    place = create_run_folder(folder or Path("runs") / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-peers")
    run = _Run(peers, place, path, score_every, tls, observer or PeerObserver())
    nodes = run_in_thread(lambda: asyncio.run(run.run()), run.cancellation, "melisma-peers")
    report = PeerReport.of(peers, nodes, simulated=False)
    # Where nothing began there is nothing to keep.
    if not place.exists():
        return report
    save_picture(report.plot, place / PICTURE)
    return replace(report, folder=place)


class _Run:
    """Nodes of one run, from their beginning to their end."""

    def __init__(
        self,
        peers: Peers,
        folder: Path,
        path: tuple[str, ...],
        every: int,
        tls: bool,
        watch: PeerObserver,
    ) -> None:
        self._peers, self._folder, self._path = peers, folder, path
        self._every, self._tls, self._watch = every, tls, watch
        self._names = peers.topology.names
        self._ended: dict[int, str] = {}
        self._since = time.time()
        self.cancellation = Cancellation()

    async def run(self) -> list[NodeReport]:
        """All nodes; what became of each."""
        token = secrets.token_urlsafe(24)
        board = axon.board_worker(port=0, token=token, tls=self._tls and self._identity("board"))
        async with board.listening() as address:
            settings = [self._setting(place, address, token) for place in range(len(self._names))]
            async with run_processes(
                settings, self._folder / "logs", self._gone, module="melisma.live.peer.node_process"
            ):
                while len(self._ended) < len(self._names) and not self.cancellation.requested:
                    await asyncio.sleep(POLL_S)
                    self._watch.progress(await asyncio.to_thread(self._looked, address, token))
        remove_empty(self._folder)
        return [self._report(place) for place in range(len(self._names))]

    def _setting(self, place: int, board: str, token: str) -> NodeConfig:
        name = self._names[place]
        return NodeConfig(
            name=name,
            settings=self._peers.node_settings[place],
            score_every=self._every,
            part=place,
            parts=len(self._names),
            neighbours=self._peers.topology.neighbours(name),
            token=token,
            tls=self._tls,
            board=board,
            module_folders=self._path,
            folder=str(self._folder),
            start_unix_s=self._since,
        )

    def _identity(self, name: str) -> Path:
        return self._folder / f"{name}.pem"

    def _gone(self, place: int, words: str) -> None:
        self._ended[place] = words
        if self._found(place) is not None:
            return
        self._watch.log(words)
        gone = [self._names[each] for each in self._ended if self._found(each) is None]
        parts = self._peers.topology.without(gone).parts()
        if len(parts) > 1:
            said = "; ".join(", ".join(part) for part in parts)
            self._watch.log(f"the topology falls into {len(parts)} parts: {said}")

    def _looked(self, board: str, token: str) -> Progress:
        """How far those are that answer."""
        found: dict[str, Mapping[str, float]] = {}
        try:
            signed = axon.workers(board, token=token)
        except MelismaError:
            return found
        for each in signed:
            try:
                with axon.connect(each.address, token=token, deadline_s=POLL_S) as remote:
                    found[each.name.rpartition(".")[0]] = remote.progress()
            except MelismaError:
                continue
        return found

    def _found(self, place: int) -> NodeReport | None:
        path = self._folder / "reports" / f"{self._names[place]}.json"
        if not path.exists():
            return None
        return msgspec.json.decode(path.read_bytes(), type=NodeReport)

    def _report(self, place: int) -> NodeReport:
        found = self._found(place)
        if found is not None:
            return found
        why = self._ended.get(place, "it did not end in time")
        return NodeReport(name=self._names[place], outcome="gone", reason=why)
