"""Shards are content: a stretch of bytes with a hash, cut from a data set, kept where it is used.

A shard says its own form in a short head, so that a device can read it with nothing else at hand.
The cache of a device keeps shards by hash, below a limit of bytes: what was used longest ago goes
first. What arrives in parts is taken up where it ended, and has no name before its hash is right.
"""

import hashlib
import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.learning.data import Split

HEAD = struct.Struct("<I")
MOST_HEAD = 1 << 10


class Form(msgspec.Struct, frozen=True, array_like=True):
    """How many samples, and the shape of one; samples are bytes, labels one byte each."""

    count: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """A shard by its number: the hash of its content, its bytes and its samples."""

    number: int
    sha256: str
    size_bytes: int
    samples: int


def encoded(split: Split) -> bytes:
    """Samples and labels as one stretch of bytes."""
    head = msgspec.json.encode(Form(len(split), split.samples.shape[1:]))
    samples, labels = np.ascontiguousarray(split.samples), np.ascontiguousarray(split.labels)
    return b"".join([HEAD.pack(len(head)), head, samples.data, labels.data])


def decoded(content: bytes) -> Split:
    """What `encoded` made; `DataError` if it is not such."""
    try:
        (size,) = HEAD.unpack_from(content)
        start = HEAD.size + min(size, MOST_HEAD)
        form = msgspec.json.decode(content[HEAD.size : start], type=Form)
    except (struct.error, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DataError(f"this is no shard: {error}") from None
    sample = int(np.prod(form.shape, dtype=np.float64))
    if min(form.count, *form.shape) < 0 or len(content) != start + form.count * (sample + 1):
        raise DataError("a shard that is longer or shorter than it says")
    samples = np.frombuffer(content, np.uint8, form.count * sample, start)
    labels = np.frombuffer(content, np.uint8, form.count, start + form.count * sample)
    return Split(samples.reshape(form.count, *form.shape), labels)


def together(splits: list[Split]) -> Split:
    """Several shards as one set of samples."""
    return Split(
        np.concatenate([split.samples for split in splits]),
        np.concatenate([split.labels for split in splits]),
    )


class ShardFolder:
    """Shards of one data set as files named by their hash, each written once."""

    def __init__(self, folder: Path, data: Split, parts: list[NDArray[np.int64]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.shards = [self._write(number, data, part) for number, part in enumerate(parts)]

    def path(self, sha256: str) -> Path:
        """Where the shard of that hash lies."""
        return self._folder / sha256

    def _write(self, number: int, data: Split, part: NDArray[np.int64]) -> Shard:
        content = encoded(Split(data.samples[part], data.labels[part]))
        sha256 = hashlib.sha256(content).hexdigest()
        if not self.path(sha256).is_file():
            unnamed = self.path(sha256).with_suffix(".part")
            unnamed.write_bytes(content)
            unnamed.replace(self.path(sha256))
        return Shard(number, sha256, len(content), len(part))


class ShardCache:
    """Shards on a device, below a limit of bytes."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._most_bytes = folder, most_bytes

    def held(self) -> set[str]:
        """Hashes of what is here, whole."""
        return {path.name for path in self._folder.iterdir() if not path.suffix}

    def read(self, sha256: str) -> Split:
        """A shard that is here; from now on it counts as used last."""
        path = self._folder / sha256
        content = path.read_bytes()
        os.utime(path)
        return decoded(content)

    def begun_bytes(self, sha256: str) -> int:
        """How much of a shard has arrived; where to take it up."""
        part = self._part(sha256)
        return part.stat().st_size if part.is_file() else 0

    def append(self, sha256: str, piece: bytes) -> None:
        """One more piece of a shard that is on its way."""
        with self._part(sha256).open("ab") as file:
            file.write(piece)

    def finish(self, sha256: str, needed: Collection[str] = ()) -> None:
        """Give a shard its name, if its hash is right; make room, but not at what is needed."""
        part = self._part(sha256)
        found = hashlib.sha256(part.read_bytes()).hexdigest()
        if found != sha256:
            part.unlink()
            raise DataError(f"a shard arrived with SHA-256 {found}; expected {sha256}")
        part.replace(self._folder / sha256)
        self._evict({sha256, *needed})

    def _evict(self, needed: set[str]) -> None:
        files = [(path, path.stat()) for path in self._folder.iterdir() if not path.suffix]
        total = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda each: (each[1].st_mtime_ns, each[0].name)):
            if total <= self._most_bytes:
                return
            if path.name not in needed:
                path.unlink()
                total -= stat.st_size

    def _part(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.part"
