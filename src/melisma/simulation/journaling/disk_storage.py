"""The journal and the updates of a simulated orchestrator, on a disk with faults."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from melisma.fleet.rng import generator
from melisma.runs.journal import Journal, StepJournal
from melisma.simulation.faults import Fault
from melisma.simulation.journaling.disk_faults import DiskFaults
from melisma.simulation.journaling.disk_vfs import SimulatedDatabase
from melisma.simulation.journaling.simulated_disk import SimulatedDisk
from melisma.simulation.journaling.storage import PATH


class DiskStorage:
    """A journal and updates as files of a `SimulatedDisk`."""

    keeps_updates = True

    def __init__(
        self,
        faults: Sequence[Fault],
        clock: Callable[[], float],
        seed: int,
        kind: type[StepJournal[Any]] = Journal,
    ) -> None:
        self._kind = kind
        self._faults = DiskFaults(faults, clock)
        self._disk = SimulatedDisk(self._faults, generator(seed, "disk of the orchestrator"))
        self._database: SimulatedDatabase | None = None
        self._received: Counter[int] = Counter()

    def create(self) -> Any:
        self._end_process()
        for name in self._disk.names():
            self._disk.delete(name)
        return self._kind.create_in(PATH, self._connect())

    def open(self) -> Any:
        self._end_process()
        self._rot()
        return self._kind.open_in(PATH, self._connect())

    def _connect(self) -> SimulatedDatabase:
        self._database = SimulatedDatabase(self._disk, str(PATH))
        return self._database

    def _end_process(self) -> None:
        """Let open files change nothing any more."""
        self._disk.epoch += 1
        if self._database is not None:
            self._database.close()
            self._database = None

    def _rot(self) -> None:
        """Flip the bits that are due, each in one of the files of the journal."""
        for _ in range(self._faults.take_rots()):
            names = [name for name in self._disk.names() if name.startswith(str(PATH))]
            self._disk.flip_any_bit(names)

    def stop(self, *, power: bool) -> None:
        self._end_process()
        if power:
            self._disk.lose_power()

    def healthy_from_s(self, at_s: float) -> float:
        return self._faults.healthy_from_s(at_s)

    def write_update(self, learner: int, name: str, content: bytes) -> None:
        self._received[learner] += 1
        part = f"{name}.part"
        self._disk.delete(part)
        self._disk.create(part)
        self._disk.write(part, 0, content)
        self._disk.sync(part)
        self._disk.rename(part, name)
        if self._faults.rots_update(learner, self._received[learner]):
            self._disk.flip_any_bit([name])

    def read_update(self, name: str) -> bytes:
        if name not in self._disk.names():
            return b""
        return self._disk.read(name, 0, self._disk.size(name))

    def delete_update(self, name: str) -> None:
        self._disk.delete(name)

    def updates(self) -> list[str]:
        return [name for name in self._disk.names() if name.startswith("update/")]

    def close(self) -> None:
        self._end_process()
