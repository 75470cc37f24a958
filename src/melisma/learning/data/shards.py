"""Shards as bytes with a hash: their encoding, the folder of a data set, the cache of a device.

A short header describes the arrays of a shard, so that a device can decode it without further
information. The cache of a device stores shards by hash up to a limit in bytes and evicts the
least recently used ones first; parts of shards count too. Interrupted downloads are resumed; a
shard gets its final file name only after its hash was checked.
"""

import hashlib
import os
import re
import struct
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.learning.data.datasets import PLAIN_DTYPES, Split
from melisma.private_files import make_private_folder, open_private, write_private

HEADER_LENGTH = struct.Struct("<I")
MAX_HEADER_BYTES = 1 << 10
MAX_AXES = 32
HASHED_BYTES = 1 << 20  # read at once to hash a file
# Other files of the folder are not touched: its owner may have chosen one that is in use.
CACHE_FILE = re.compile(r"[0-9a-f]{64}(\.part)?")


class ShardHeader(msgspec.Struct, frozen=True, array_like=True):
    """The number of samples, and the shape and dtype of one sample and one label."""

    count: int
    shape: tuple[int, ...]
    dtype: str
    label_shape: tuple[int, ...]
    label_dtype: str

    @classmethod
    def from_split(cls, split: Split) -> "ShardHeader":
        """Return the header of these samples."""
        x, y = split.samples, split.labels
        return cls(
            len(split), x.shape[1:], _little_endian(x).str, y.shape[1:], _little_endian(y).str
        )

    def check(self) -> None:
        """Raise `DataError` unless `from_split` could have made this header."""
        axes = self.shape + self.label_shape
        # With an empty axis any count would need 0 bytes.
        if self.count < 0 or min(axes, default=1) < 1 or len(axes) > MAX_AXES:
            raise DataError(
                f"a shard has {self.count} samples with axes {list(axes)}; expected none empty"[
                    :200
                ]
            )
        for dtype in (self.dtype, self.label_dtype):
            if dtype not in PLAIN_DTYPES:
                raise DataError(
                    f"a shard has dtype {dtype!r:.20}; expected one of {', '.join(PLAIN_DTYPES)}"
                )


@dataclass(frozen=True)
class Shard:
    """A numbered shard: the hash of its content, its size in bytes and its sample count."""

    number: int
    sha256: str
    size_bytes: int
    samples: int


def encode_shard(split: Split) -> bytes:
    """Return samples and labels as bytes."""
    header = ShardHeader.from_split(split)
    header.check()
    header_bytes = msgspec.json.encode(header)
    arrays = (np.ascontiguousarray(a, _little_endian(a)) for a in (split.samples, split.labels))
    return b"".join(
        [
            HEADER_LENGTH.pack(len(header_bytes)),
            header_bytes,
            *(array.tobytes() for array in arrays),
        ]
    )


def decode_shard(content: bytes) -> Split:
    """Decode the bytes of `encode_shard`; raise `DataError` if they are invalid."""
    header, start = _decode_header(content)
    header.check()
    labels_start = start + header.count * prod(header.shape) * np.dtype(header.dtype).itemsize
    label_bytes = prod(header.label_shape) * np.dtype(header.label_dtype).itemsize
    if len(content) != labels_start + header.count * label_bytes:
        raise DataError(f"a shard has {len(content)} bytes, which does not match its header")
    return Split(
        _decode_array(content[start:labels_start], header.dtype, (header.count, *header.shape)),
        _decode_array(
            content[labels_start:], header.label_dtype, (header.count, *header.label_shape)
        ),
    )


def _decode_header(content: bytes) -> tuple[ShardHeader, int]:
    """Return the header and the index of the first sample byte."""
    try:
        (size,) = HEADER_LENGTH.unpack_from(content)
        if size > MAX_HEADER_BYTES:
            raise DataError(
                f"not a shard: its header has {size} bytes; expected at most {MAX_HEADER_BYTES}"
            )
        start = HEADER_LENGTH.size + size
        return msgspec.json.decode(content[HEADER_LENGTH.size : start], type=ShardHeader), start
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"not a shard: {error}") from None


def _decode_array(content: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    # A boolean byte other than 0 and 1 would compare unequal to both.
    if dtype == "|b1" and content.translate(None, b"\x00\x01"):
        raise DataError("a shard has boolean bytes other than 0 and 1")
    return np.frombuffer(content, dtype).reshape(shape)


def _little_endian(array: NDArray[Any]) -> np.dtype[Any]:
    dtype: np.dtype[Any] = array.dtype.newbyteorder("<")
    return dtype


def concatenate(splits: list[Split]) -> Split:
    """Join several shards into one set of samples."""
    return Split(
        np.concatenate([split.samples for split in splits]),
        np.concatenate([split.labels for split in splits]),
    )


class ShardFolder:
    """The shards of one data set, as files named by hash; equal shards share a file."""

    def __init__(self, folder: Path, data: Split, parts: list[NDArray[np.int64]]) -> None:
        make_private_folder(folder)
        self._folder = folder
        self.shards = [self._write(number, data, part) for number, part in enumerate(parts)]
        self._hashes = {shard.sha256 for shard in self.shards}

    def path(self, sha256: str) -> Path | None:
        """Return the file of the shard with that hash; None if it is not in this folder."""
        return self._folder / sha256 if sha256 in self._hashes else None

    def _write(self, number: int, data: Split, part: NDArray[np.int64]) -> Shard:
        content = encode_shard(Split(data.samples[part], data.labels[part]))
        sha256 = hashlib.sha256(content).hexdigest()
        path = self._folder / sha256
        # A power cut may have left an earlier process's file incomplete.
        if not (path.is_file() and path.read_bytes() == content):
            partial = path.with_suffix(".part")
            write_private(partial, content)
            partial.replace(path)
        return Shard(number, sha256, len(content), len(part))


class ShardCache:
    """The shards and parts of shards stored on a device, up to `max_bytes` together.

    A shard of an earlier process is checked before its first use, as a power cut may have damaged
    it: one whose hash is wrong is deleted.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        make_private_folder(folder)
        self._folder, self.max_bytes = folder, max_bytes
        self._checked: set[str] = set()

    def __contains__(self, sha256: str) -> bool:
        path = self._folder / sha256
        if sha256 not in self._checked and path.is_file():
            if _hash_file(path) == sha256:
                self._checked.add(sha256)
            else:
                path.unlink()
        return path.is_file()

    def hashes(self) -> set[str]:
        """Return the hashes of the complete shards."""
        return {path.name for path in self._files() if not path.suffix}

    def read(self, sha256: str, size_bytes: int) -> Split:
        """Decode a stored shard and mark it as the most recently used.

        Raise `DataError` if it does not have `size_bytes`.
        """
        path = self._folder / sha256
        if (actual := path.stat().st_size) != size_bytes:
            raise DataError(
                f"shard {sha256} has {actual} bytes; the orchestrator says {size_bytes}"
            )
        content = path.read_bytes()
        os.utime(path)
        return decode_shard(content)

    def partial_bytes(self, sha256: str) -> int:
        """Return the number of bytes already received of an incomplete shard."""
        try:
            return self._part(sha256).stat().st_size
        except FileNotFoundError:
            return 0

    def make_room(self, sha256: str, size_bytes: int, needed: Collection[str] = ()) -> None:
        """Delete the least recently used files until a shard of `size_bytes` fits.

        Shards in `needed` are kept, complete or not. Raise `SettingError` if they leave no room.
        """
        if self.partial_bytes(sha256) > size_bytes:
            self.discard(sha256)
        others = [(path, path.stat()) for path in self._files() if path.stem != sha256]
        kept_bytes = sum(stat.st_size for path, stat in others if path.stem in needed)
        if kept_bytes + size_bytes > self.max_bytes:
            raise SettingError(
                f"a shard of {size_bytes} bytes does not fit in the cache of {self.max_bytes} "
                f"bytes beside {kept_bytes} bytes that are needed: allow more (--cache-bytes)"
            )
        total = size_bytes + sum(stat.st_size for _, stat in others)
        for path, stat in sorted(others, key=lambda file: (file[1].st_mtime_ns, file[0].name)):
            if total <= self.max_bytes:
                return
            if path.stem not in needed:
                path.unlink()
                total -= stat.st_size

    def append(self, sha256: str, piece: bytes | bytearray) -> None:
        """Append received bytes to an incomplete shard, after `make_room`."""
        with open_private(self._part(sha256), "ab") as file:
            file.write(piece)

    def finish(self, sha256: str) -> None:
        """Check the hash of a received shard and name its file; delete it if it has another."""
        part = self._part(sha256)
        actual = _hash_file(part)
        if actual != sha256:
            part.unlink()
            raise DataError(f"received a shard with SHA-256 {actual}; expected {sha256}")
        part.replace(self._folder / sha256)
        self._checked.add(sha256)

    def discard(self, sha256: str) -> None:
        """Delete the received part of an incomplete shard."""
        self._part(sha256).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if CACHE_FILE.fullmatch(path.name)]

    def _part(self, sha256: str) -> Path:
        return self._folder / f"{sha256}.part"


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(HASHED_BYTES):
            digest.update(piece)
    return digest.hexdigest()
