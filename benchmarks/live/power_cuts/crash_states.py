"""The states of a folder that a power cut may leave: all that was synced, any part of the rest.

A sync of a file keeps its content, and a sync of a folder the names in it, but not the folder's own
name, nor the content of its files. Of other changes since then, each block of a write, each change
of a size and each change of a name is kept or lost by chance; those kept are applied in order. A
file is renamed as a whole or not at all. Real file systems keep more than that.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.live.power_cuts.recorder import Change

BLOCK_BYTES: Final = 4096
IGNORED_ENDING: Final = "-shm"
"""A file that SQLite rebuilds."""
KEPT_SHARES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""The share of changes that were not synced and are kept; each cut draws one."""


class Content(bytearray):
    """The content of a file, of which writes may lie beyond the end."""

    def write(self, offset: int, data: bytes) -> None:
        """Write data; the gap before it is zeros."""
        if offset > len(self):
            self.extend(bytes(offset - len(self)))
        self[offset : offset + len(data)] = data

    def resize(self, size: int) -> None:
        """Cut the content off at a size, or extend it by zeros."""
        del self[size:]
        self.extend(bytes(size - len(self)))


@dataclass(eq=False)
class File:
    """A file: its content on disk, and changes since then, of which data is None to truncate."""

    disk: Content = field(default_factory=Content)
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)

    def sync(self, count: int) -> None:
        """Move the first changes to the disk."""
        for offset, data in self.changes[:count]:
            _apply(self.disk, offset, data)
        del self.changes[:count]

    def content(self, rng: np.random.Generator, share: float) -> Content:
        """Return the content after a power cut that keeps this share of the changes."""
        content = Content(self.disk)
        for offset, data in _blocks(self.changes):
            if rng.random() < share:
                _apply(content, offset, data)
        return content


def _apply(content: Content, offset: int, data: bytes | None) -> None:
    if data is None:
        content.resize(offset)
    else:
        content.write(offset, data)


def _blocks(
    changes: Iterable[tuple[int, bytes | None]],
) -> Iterator[tuple[int, bytes | None]]:
    """Yield changes, with writes divided at the borders of blocks."""
    for offset, data in changes:
        if data is None:
            yield offset, None
            continue
        begin = 0
        while begin < len(data):
            end = begin + BLOCK_BYTES - (offset + begin) % BLOCK_BYTES
            yield offset + begin, data[begin:end]
            begin = end


@dataclass(eq=False)
class Folder:
    """A folder: its names on disk, and changes since then, each of one or two names."""

    disk: "dict[str, Node]" = field(default_factory=dict)
    changes: "list[tuple[str | None, str | None, Node | None]]" = field(default_factory=list)
    names: "dict[str, Node]" = field(default_factory=dict)
    """The names that processes see."""

    def change(self, removed: str | None, added: str | None, node: "Node | None" = None) -> None:
        """Remove a name, add one for a node, or rename."""
        self.changes.append((removed, added, node))
        _rename(self.names, removed, added, node)

    def sync(self, count: int) -> None:
        """Move the first changes to the disk."""
        for change in self.changes[:count]:
            _rename(self.disk, *change)
        del self.changes[:count]

    def entries(self, rng: np.random.Generator, share: float) -> "dict[str, Node]":
        """Return the names after a power cut that keeps this share of the changes."""
        entries = dict(self.disk)
        for change in self.changes:
            if rng.random() < share:
                _rename(entries, *change)
        return entries


Node = File | Folder


def _rename(
    entries: dict[str, Node], removed: str | None, added: str | None, node: Node | None
) -> None:
    """Change names, unless an earlier change was lost that this one needs."""
    if removed is not None and added is not None and entries.get(removed) is not node:
        return
    if removed is not None:
        entries.pop(removed, None)
    if added is not None:
        assert node is not None
        entries[added] = node


class RecordedDisk:
    """The disk below one folder since a start of the machine, from the log of changes."""

    def __init__(self, path: Path) -> None:
        """Read the folder as it is at the start; all of it is on disk."""
        self.path = path.resolve()
        self._inodes: dict[int, Node] = {}
        self._begun: dict[tuple[int, int], tuple[Node, int]] = {}
        self.root = self._scan(self.path)

    def _scan(self, path: Path) -> Folder:
        folder = Folder()
        self._inodes[path.stat().st_ino] = folder
        for entry in sorted(path.iterdir()):
            if entry.name.endswith(IGNORED_ENDING):
                continue
            node = self._scan(entry) if entry.is_dir() else File(Content(entry.read_bytes()))
            self._inodes[entry.stat().st_ino] = folder.disk[entry.name] = node
        folder.names = dict(folder.disk)
        return folder

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply the changes that processes made."""
        for change in changes:
            self._apply(change)

    def _apply(self, change: Change) -> None:
        match change.operation:
            case "C" | "M":
                node: Node = File() if change.operation == "C" else Folder()
                folder, name = self._find(change.path)
                folder.change(None, name, node)
                self._inodes[change.inode] = node
            case "W":
                self._file(change).changes.append((change.offset, change.data))
            case "T":
                self._file(change).changes.append((change.offset, None))
            case "R":
                self._move(change)
            case "L":
                source, name = self._find(change.path)
                folder, added = self._find(change.second)
                folder.change(None, added, source.names[name])
            case "U" | "D":
                folder, name = self._find(change.path)
                folder.change(name, None)
            case "s":
                node = self._inodes[change.inode]
                self._begun[change.inode, change.offset] = node, len(node.changes)
            case "S":
                self._sync(*self._begun.pop((change.inode, change.offset)))
            case _:
                raise RuntimeError(f"the recorder does not follow {change.path}: extend it")

    def _move(self, change: Change) -> None:
        source, name = self._find(change.path)
        target, added = self._find(change.second)
        if source is target:
            source.change(name, added, source.names[name])
        else:
            target.change(None, added, source.names[name])
            source.change(name, None)

    def _sync(self, node: Node, count: int) -> None:
        """Sync the changes that came before the sync began, unless another sync was faster."""
        node.sync(count)
        for key, (other, before) in self._begun.items():
            if other is node:
                self._begun[key] = node, max(0, before - count)

    def _file(self, change: Change) -> File:
        node = self._inodes[change.inode]
        assert isinstance(node, File)
        return node

    def _find(self, path: str) -> tuple[Folder, str]:
        """Return the folder of a path, and its last part."""
        *parents, name = Path(os.path.normpath(path)).relative_to(self.path).parts
        folder = self.root
        for parent in parents:
            node = folder.names[parent]
            assert isinstance(node, Folder)
            folder = node
        return folder, name

    def files(self) -> dict[str, bytes]:
        """Return the content of each file by its path, as processes see it."""
        return dict(_files(self.root, ""))

    def cut_power(self, rng: np.random.Generator) -> None:
        """Replace the folder by a state that a power cut may leave."""
        for entry in self.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        _CrashState(rng, *rng.choice(KEPT_SHARES, 2)).write(self.root, self.path)


def _files(folder: Folder, prefix: str) -> Iterator[tuple[str, bytes]]:
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            yield from _files(node, f"{prefix}{name}/")
        else:
            content = Content(node.disk)
            for offset, data in node.changes:
                _apply(content, offset, data)
            yield prefix + name, bytes(content)


class _CrashState:
    """One state that a power cut leaves, with the shares of changes of names and data it keeps."""

    def __init__(self, rng: np.random.Generator, names: float, data: float) -> None:
        self._rng, self._names, self._data = rng, names, data
        self._written: dict[File, Path] = {}

    def write(self, folder: Folder, path: Path) -> None:
        """Write the entries of a folder; a file with several names is linked."""
        for name, node in folder.entries(self._rng, self._names).items():
            entry = path / name
            if isinstance(node, Folder):
                entry.mkdir(mode=0o700)
                self.write(node, entry)
            elif node in self._written:
                entry.hardlink_to(self._written[node])
            else:
                entry.write_bytes(node.content(self._rng, self._data))
                entry.chmod(0o600)
                self._written[node] = entry
