"""Files in memory as a disk keeps them: what was not synced may be lost, torn or reordered.

A file has what the process reads, and what is on the disk. A write is pending until its file is
synced; the names of files are on disk at once. A sector is written as a whole or not at all.
"""

from dataclasses import dataclass, field
from errno import EIO, ENOSPC

import numpy as np

from melisma.simulation.journaling.disk_faults import DiskFaults

SECTOR = 512


@dataclass
class _File:
    """A file: its content, its content on disk, and the writes that make the difference."""

    content: bytearray = field(default_factory=bytearray)
    on_disk: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None cuts it off there


class SimulatedDisk:
    """The files of the orchestrator; `epoch` counts the processes that have used them."""

    def __init__(self, faults: DiskFaults, rng: np.random.Generator) -> None:
        self.epoch = 0
        self._faults, self._rng = faults, rng
        self._files: dict[str, _File] = {}

    def names(self) -> list[str]:
        """Return the names of all files, in order."""
        return sorted(self._files)

    def create(self, name: str) -> None:
        """Create a file unless there is one."""
        self._files.setdefault(name, _File())

    def delete(self, name: str) -> None:
        """Delete a file, if there is one."""
        self._files.pop(name, None)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name, instead of the file that has it."""
        self._files[new] = self._files.pop(name)

    def size(self, name: str) -> int:
        """Return the size of a file."""
        return len(self._files[name].content)

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return a part of a file, shorter at its end."""
        return bytes(self._files[name].content[offset : offset + size])

    def write(self, name: str, offset: int, content: bytes) -> None:
        """Write to a file; a full disk takes nothing that makes it larger."""
        file = self._files[name]
        if offset + len(content) > len(file.content) and self._faults.is_full():
            raise OSError(ENOSPC, "no space left on device", name)
        if self._faults.misdirects(name):
            places = max(len(file.content) // SECTOR, 2)
            offset = (offset // SECTOR + 1 + int(self._rng.integers(places - 1))) % places * SECTOR
        _apply(file.content, offset, content)
        file.pending.append((offset, content))

    def truncate(self, name: str, size: int) -> None:
        """Cut a file off."""
        file = self._files[name]
        _apply(file.content, size, None)
        file.pending.append((size, None))

    def sync(self, name: str) -> None:
        """Return when all writes to a file are on disk.

        After an error they never will be, but can still be read: so does Linux.
        """
        file = self._files[name]
        if self._faults.fails_to_sync():
            file.pending = []
            raise OSError(EIO, "input/output error", name)
        for offset, content in file.pending:
            _apply(file.on_disk, offset, content)
        file.pending = []

    def lose_power(self) -> None:
        """Keep of the writes that were not synced some, in whole or in part, in any order."""
        for name in self.names():
            file = self._files[name]
            # Between writing back all and none of it.
            share = self._rng.random()
            for offset, content in file.pending:
                if self._rng.random() < share:
                    _apply(file.on_disk, offset, self._tear(content))
            file.content, file.pending = bytearray(file.on_disk), []

    def _tear(self, content: bytes | None) -> bytes | None:
        """Return the whole content of a write, or its first sectors."""
        if not content or self._rng.random() < 0.5:
            return content
        return content[: int(self._rng.integers(len(content) // SECTOR + 1)) * SECTOR]

    def flip_any_bit(self, names: list[str]) -> None:
        """Flip a bit of one of these files, each byte alike; of empty files none."""
        sizes = np.array([self.size(name) for name in names])
        if not sizes.sum():
            return
        place, bit = int(self._rng.integers(sizes.sum())), 1 << int(self._rng.integers(8))
        index = int(np.searchsorted(np.cumsum(sizes), place, side="right"))
        place -= int(sizes[:index].sum())
        file = self._files[names[index]]
        for content in (file.content, file.on_disk):
            if place < len(content):
                content[place] ^= bit
        file.pending = [
            (offset, _flipped(data, place - offset, bit)) for offset, data in file.pending
        ]


def _flipped(content: bytes | None, place: int, bit: int) -> bytes | None:
    """Return content with a bit flipped, if it has the place."""
    if content is None or not 0 <= place < len(content):
        return content
    flipped = bytearray(content)
    flipped[place] ^= bit
    return bytes(flipped)


def _apply(file: bytearray, offset: int, content: bytes | None) -> None:
    """Write content to a file, or cut the file off."""
    if content is None:
        del file[offset:]
        return
    if offset > len(file):
        file.extend(bytes(offset - len(file)))
    file[offset : offset + len(content)] = content
