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
from math import prod
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.learning.data.datasets import PLAIN_DTYPES, Split

HEADER_LENGTH = struct.Struct("<I")
MAX_HEADER_BYTES = 1 << 10
MAX_AXES = 32


class ShardHeader(msgspec.Struct, frozen=True, array_like=True):
    """How many samples, and the shape and type of one sample and of one label."""

    count: int
    shape: tuple[int, ...]
    dtype: str
    label_shape: tuple[int, ...]
    label_dtype: str

    @classmethod
    def from_split(cls, split: Split) -> Self:
        """The form of these samples."""
        x, y = split.samples, split.labels
        return cls(
            len(split), x.shape[1:], _little_endian(x).str, y.shape[1:], _little_endian(y).str
        )

    def check(self) -> None:
        """`DataError` unless it is one that `of` could have given."""
        sides = self.shape + self.label_shape
        # An empty side would let any count pass as no bytes at all.
        if self.count < 0 or min(sides, default=1) < 1 or len(sides) > MAX_AXES:
            raise DataError(f"a shard of {self.count} samples with sides {list(sides)}"[:200])
        for dtype in (self.dtype, self.label_dtype):
            if dtype not in PLAIN_DTYPES:
                raise DataError(
                    f"a shard of {dtype!r:.20}; expected one of {', '.join(PLAIN_DTYPES)}"
                )


@dataclass(frozen=True)
class Shard:
    """A shard by its number: the hash of its content, its bytes and its samples."""

    number: int
    sha256: str
    size_bytes: int
    samples: int


def encode_shard(split: Split) -> bytes:
    """Samples and labels as one stretch of bytes."""
    form = ShardHeader.from_split(split)
    form.check()
    head = msgspec.json.encode(form)
    arrays = (np.ascontiguousarray(a, _little_endian(a)) for a in (split.samples, split.labels))
    return b"".join([HEADER_LENGTH.pack(len(head)), head, *(array.tobytes() for array in arrays)])


def decode_shard(content: bytes) -> Split:
    """What `encoded` made; `DataError` if it is not such."""
    form, start = _decode_header(content)
    form.check()
    labels_start = start + form.count * prod(form.shape) * np.dtype(form.dtype).itemsize
    label_bytes = prod(form.label_shape) * np.dtype(form.label_dtype).itemsize
    if len(content) != labels_start + form.count * label_bytes:
        raise DataError("a shard that is longer or shorter than it says")
    return Split(
        _decode_array(content[start:labels_start], form.dtype, (form.count, *form.shape)),
        _decode_array(content[labels_start:], form.label_dtype, (form.count, *form.label_shape)),
    )


def _decode_header(content: bytes) -> tuple[ShardHeader, int]:
    """The form, and where the samples begin."""
    try:
        (size,) = HEADER_LENGTH.unpack_from(content)
        if size > MAX_HEADER_BYTES:
            raise DataError(f"this is no shard: a head of {size} bytes")
        start = HEADER_LENGTH.size + size
        return msgspec.json.decode(content[HEADER_LENGTH.size : start], type=ShardHeader), start
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"this is no shard: {error}") from None


def _decode_array(content: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    # A byte that is neither 0 nor 1 would be a truth value that equals no other.
    if dtype == "|b1" and content.translate(None, b"\x00\x01"):
        raise DataError("a shard with truth values that are neither 0 nor 1")
    return np.frombuffer(content, dtype).reshape(shape)


def _little_endian(array: NDArray[Any]) -> np.dtype[Any]:
    return array.dtype.newbyteorder("<")


def concatenate(splits: list[Split]) -> Split:
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
        self._hashes = {shard.sha256 for shard in self.shards}

    def path(self, sha256: str) -> Path | None:
        """Where the shard of that hash lies; nothing if it is none of these."""
        return self._folder / sha256 if sha256 in self._hashes else None

    def _write(self, number: int, data: Split, part: NDArray[np.int64]) -> Shard:
        content = encode_shard(Split(data.samples[part], data.labels[part]))
        sha256 = hashlib.sha256(content).hexdigest()
        path = self._folder / sha256
        if not path.is_file():
            unnamed = path.with_suffix(".part")
            unnamed.write_bytes(content)
            unnamed.replace(path)
        return Shard(number, sha256, len(content), len(part))


class ShardCache:
    """Shards on a device, below a limit of bytes."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._most_bytes = folder, most_bytes

    def __contains__(self, sha256: str) -> bool:
        return (self._folder / sha256).is_file()

    def hashes(self) -> set[str]:
        """Hashes of what is here, whole."""
        return {path.name for path in self._folder.iterdir() if not path.suffix}

    def read(self, sha256: str) -> Split:
        """A shard that is here; from now on it counts as used last."""
        path = self._folder / sha256
        content = path.read_bytes()
        os.utime(path)
        return decode_shard(content)

    def partial_bytes(self, sha256: str) -> int:
        """How much of a shard has arrived; where to take it up."""
        part = self._part(sha256)
        return part.stat().st_size if part.is_file() else 0

    def append(self, sha256: str, piece: bytes | bytearray) -> None:
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
