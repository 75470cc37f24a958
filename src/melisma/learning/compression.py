"""How a vector of numbers travels between peers: whole, in few bits, or only its largest numbers.

What a compression drops is the difference of what was packed and what comes out; whoever sends
keeps it for the next time. Both ends know the size and the compression, so that a content has no
head. All numbers are little-endian.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError, suggest

Vector = NDArray[np.float32]

BLOCK_NUMBERS = 256  # numbers that share a scale
MIN_NORMAL = np.finfo(np.float32).tiny
MAX_FLOAT = np.finfo(np.float32).max
TOPK = "topk: with a part above 0 and of at most 1, such as topk:0.01"


class Compression(Protocol):
    """From numbers to bytes and back."""

    @property
    def exact(self) -> bool:
        """Whether what comes out is what was packed, bit for bit."""

    @property
    def name(self) -> str:
        """As `compression_for` takes it."""

    def pack(self, vector: Vector) -> bytes:
        """The bytes of a vector; `DataError` unless all of it is finite."""

    def unpack(self, content: bytes, size: int) -> Vector:
        """A vector of that size; `DataError` where the bytes cannot be one."""


@dataclass(frozen=True)
class Uncompressed:
    """All numbers, 32 bits each."""

    exact: ClassVar[bool] = True
    name: ClassVar[str] = "none"

    def pack(self, vector: Vector) -> bytes:
        """As they lie in memory."""
        return _require_finite(vector).astype("<f4", copy=False).tobytes()

    def unpack(self, content: bytes, size: int) -> Vector:
        """It looks into the bytes, and may not be written to."""
        _check_length(content, 4 * size, size)
        return _require_finite(_from_bytes(content))


@dataclass(frozen=True)
class Quantized:
    """A float32 scale for every block, then a whole number of `bits` for every number.

    A scale is the largest magnitude of its block over `steps`; numbers are rounded to the nearest
    multiple. Blocks too small for a scale in full precision are 0.
    """

    bits: int
    exact: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """By its bits."""
        return f"q{self.bits}"

    @property
    def max_code(self) -> int:
        """The largest whole number; below 0 there are as many."""
        return int(2 ** (self.bits - 1)) - 1

    @property
    def max_scale(self) -> np.float32:
        """The largest scale: so many steps of it are still a float32."""
        return np.float32(np.nextafter(np.float32(MAX_FLOAT / self.max_code), np.float32(0)))

    def pack(self, vector: Vector) -> bytes:
        """Scales, then numbers; two of four bits share a byte, the first in the lower half."""
        blocks = np.zeros((ceil(vector.size / BLOCK_NUMBERS), BLOCK_NUMBERS), np.float32)
        blocks.reshape(-1)[: vector.size] = _require_finite(vector)
        most = np.maximum(blocks.max(axis=1), -blocks.min(axis=1))
        scales: Vector = most / np.float32(self.max_code)
        scales[scales < MIN_NORMAL] = 0
        np.minimum(scales, self.max_scale, out=scales)
        blocks[scales == 0] = 0
        blocks /= np.where(scales == 0, np.float32(1), scales)[:, None]
        codes = np.rint(blocks, out=blocks).astype(np.int8).reshape(-1)
        return scales.astype("<f4", copy=False).tobytes() + self._bytes(codes[: vector.size])

    def unpack(self, content: bytes, size: int) -> Vector:
        """Scales times numbers."""
        blocks = ceil(size / BLOCK_NUMBERS)
        _check_length(content, 4 * blocks + ceil(size * self.bits / 8), size)
        scales = _from_bytes(content[: 4 * blocks])
        # Not finite ones are no larger than the most, either.
        if not np.all((scales >= 0) & (scales <= self.max_scale)):
            raise DataError(f"scales are not from 0 to {self.max_scale:g}")
        codes = self._codes(content[4 * blocks :], blocks * BLOCK_NUMBERS)
        if codes.min(initial=0) < -self.max_code:
            raise DataError(f"a number is {codes.min()}; expected from {-self.max_code}")
        found = codes.astype(np.float32).reshape(blocks, BLOCK_NUMBERS)
        found *= scales[:, None]
        return found.reshape(-1)[:size]

    def _bytes(self, codes: NDArray[np.int8]) -> bytes:
        if self.bits == 8:
            return codes.tobytes()
        halves = np.zeros(codes.size + codes.size % 2, np.uint8)
        halves[: codes.size] = codes.view(np.uint8) & 15
        packed = halves[::2] | halves[1::2] << 4
        return packed.tobytes()

    def _codes(self, content: bytes, room: int) -> NDArray[np.int8]:
        """Whole numbers, filled up with 0."""
        codes = np.zeros(room, np.int8)
        found = np.frombuffer(content, np.int8)
        if self.bits == 8:
            codes[: found.size] = found
        else:
            # Shifted to the upper half and back, the sign comes along.
            codes[: 2 * found.size : 2] = found << 4 >> 4
            codes[1 : 2 * found.size : 2] = found >> 4
        return codes


@dataclass(frozen=True)
class TopK:
    """The part of the numbers with the largest magnitudes; the others are 0.

    First the indices, uint32 and ascending, then the numbers, float32. At least one travels; of
    equal magnitudes those that stand first.
    """

    fraction: float

    @property
    def exact(self) -> bool:
        """Where all travel."""
        return self.fraction == 1

    @property
    def name(self) -> str:
        """With its part."""
        return f"topk:{self.fraction}"

    def pack(self, vector: Vector) -> bytes:
        """Indices, then numbers."""
        count = self._count(vector.size)
        places = _largest_indices(np.abs(_require_finite(vector)), count)
        return places.astype("<u4").tobytes() + vector[places].astype("<f4", copy=False).tobytes()

    def unpack(self, content: bytes, size: int) -> Vector:
        """The numbers at their places."""
        count = self._count(size)
        _check_length(content, 8 * count, size)
        places = np.frombuffer(content[: 4 * count], "<u4")
        # Words of 32 bits wrap around when subtracted; they can be compared.
        if not np.all(places[1:] > places[:-1]):
            raise DataError("indices do not ascend; expected each once, the smallest first")
        if count and places[-1] >= size:
            raise DataError(f"index {places[-1]} is out of range; expected below {size}")
        found = np.zeros(size, np.float32)
        found[places] = _require_finite(_from_bytes(content[4 * count :]))
        return found

    def _count(self, size: int) -> int:
        return min(size, max(1, round(self.fraction * size)))


def compression_for(name: str) -> Compression:
    """The compression of that name; `SettingError` says which there are."""
    if name in COMPRESSIONS:
        return COMPRESSIONS[name]()
    kind, _, part = name.partition(":")
    if kind != "topk":
        raise SettingError(f"compression is {name!r}; {suggest(name, COMPRESSIONS, TOPK)}")
    if (found := _parse_fraction(part)) is None:
        raise SettingError(f"compression is {name!r}; expected {TOPK}")
    return TopK(found)


COMPRESSIONS: dict[str, Callable[[], Compression]] = {
    "none": Uncompressed,
    "q8": lambda: Quantized(8),
    "q4": lambda: Quantized(4),
}


def _parse_fraction(said: str) -> float | None:
    try:
        part = float(said)
    except ValueError:
        return None
    return part if 0 < part <= 1 else None


def _largest_indices(magnitudes: Vector, count: int) -> NDArray[np.intp]:
    """Where the so many largest are, ascending."""
    if count == magnitudes.size:
        return np.arange(count)
    least = np.partition(magnitudes, -count)[-count]
    above = np.flatnonzero(magnitudes > least)
    equal = np.flatnonzero(magnitudes == least)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def _from_bytes(content: bytes) -> Vector:
    return np.frombuffer(content, "<f4").astype(np.float32, copy=False)


def _require_finite(vector: Vector) -> Vector:
    if not np.isfinite(vector).all():
        place = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DataError(f"number {place} is {vector[place]}; expected finite numbers")
    return vector


def _check_length(content: bytes, expected: int, size: int) -> None:
    if len(content) != expected:
        raise DataError(f"{len(content)} bytes; expected {expected} for {size} numbers")
