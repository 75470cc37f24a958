"""Compression of vectors between peers: none, quantization, or only the largest numbers (top-k).

The compression error is the packed vector minus the unpacked one; the sender adds it to its next
vector. Both peers know the size and the compression, so the packed bytes have no header. All
numbers are little-endian.
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
TOPK = "topk: with a fraction above 0 and at most 1, such as topk:0.01"


class Compression(Protocol):
    """Converts vectors to bytes and back."""

    @property
    def exact(self) -> bool:
        """Whether unpacking returns the packed vector bit for bit."""

    @property
    def name(self) -> str:
        """The name that `compression_for` accepts."""

    def pack(self, vector: Vector) -> bytes:
        """Return a vector as bytes; raise `DataError` unless all numbers are finite."""

    def unpack(self, content: bytes, size: int) -> Vector:
        """Return the vector of `size` numbers; raise `DataError` if the bytes are invalid."""


@dataclass(frozen=True)
class Uncompressed:
    """All numbers as float32."""

    exact: ClassVar[bool] = True
    name: ClassVar[str] = "none"

    def pack(self, vector: Vector) -> bytes:
        """Return the float32 numbers as they are in memory."""
        return _require_finite(vector).astype("<f4", copy=False).tobytes()

    def unpack(self, content: bytes, size: int) -> Vector:
        """Return a read-only view of the bytes."""
        _check_length(content, 4 * size, size)
        return _require_finite(_from_bytes(content))


@dataclass(frozen=True)
class Quantized:
    """A float32 scale for every block, then an integer code of `bits` bits for every number.

    A scale is the largest magnitude of its block divided by `max_code`; numbers are rounded to the
    nearest multiple of it. Blocks whose scale would be subnormal become 0.
    """

    bits: int
    exact: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The letter q and the bits, such as q8."""
        return f"q{self.bits}"

    @property
    def max_code(self) -> int:
        """The largest code; the smallest is its negative."""
        return int(2 ** (self.bits - 1)) - 1

    @property
    def max_scale(self) -> np.float32:
        """The largest scale whose product with `max_code` is a finite float32."""
        largest: np.float32 = np.nextafter(np.float32(MAX_FLOAT / self.max_code), np.float32(0))
        return largest

    def pack(self, vector: Vector) -> bytes:
        """Return scales, then codes; two 4-bit codes share a byte, the first in the low half."""
        blocks = np.zeros((ceil(vector.size / BLOCK_NUMBERS), BLOCK_NUMBERS), np.float32)
        blocks.reshape(-1)[: vector.size] = _require_finite(vector)
        magnitudes = np.maximum(blocks.max(axis=1), -blocks.min(axis=1))
        scales: Vector = magnitudes / np.float32(self.max_code)
        scales[scales < MIN_NORMAL] = 0
        np.minimum(scales, self.max_scale, out=scales)
        blocks[scales == 0] = 0
        blocks /= np.where(scales == 0, np.float32(1), scales)[:, None]
        codes = np.rint(blocks, out=blocks).astype(np.int8).reshape(-1)
        return scales.astype("<f4", copy=False).tobytes() + self._bytes(codes[: vector.size])

    def unpack(self, content: bytes, size: int) -> Vector:
        """Return scales times codes."""
        blocks = ceil(size / BLOCK_NUMBERS)
        _check_length(content, 4 * blocks + ceil(size * self.bits / 8), size)
        scales = _from_bytes(content[: 4 * blocks])
        # NaN and infinity fail this comparison too.
        if not np.all((scales >= 0) & (scales <= self.max_scale)):
            raise DataError(
                f"a scale is out of range; expected scales from 0 to {self.max_scale:g}"
            )
        codes = self._codes(content[4 * blocks :], blocks * BLOCK_NUMBERS)
        if codes.min(initial=0) < -self.max_code:
            raise DataError(f"a code is {codes.min()}; expected at least {-self.max_code}")
        numbers = codes.astype(np.float32).reshape(blocks, BLOCK_NUMBERS)
        numbers *= scales[:, None]
        return numbers.reshape(-1)[:size]

    def _bytes(self, codes: NDArray[np.int8]) -> bytes:
        if self.bits == 8:
            return codes.tobytes()
        halves = np.zeros(codes.size + codes.size % 2, np.uint8)
        halves[: codes.size] = codes.view(np.uint8) & 15
        packed = halves[::2] | halves[1::2] << 4
        return packed.tobytes()

    def _codes(self, content: bytes, size: int) -> NDArray[np.int8]:
        """Return the codes, padded with 0 to `size`."""
        codes = np.zeros(size, np.int8)
        packed = np.frombuffer(content, np.int8)
        if self.bits == 8:
            codes[: packed.size] = packed
        else:
            # Shifting to the upper half and back extends the sign.
            codes[: 2 * packed.size : 2] = packed << 4 >> 4
            codes[1 : 2 * packed.size : 2] = packed >> 4
        return codes


@dataclass(frozen=True)
class TopK:
    """The fraction of the numbers with the largest magnitudes; the others become 0.

    The bytes are the indices (uint32, ascending), then the numbers (float32). At least one number
    is kept; of equal magnitudes the first ones.
    """

    fraction: float

    @property
    def exact(self) -> bool:
        """Whether all numbers are kept."""
        return self.fraction == 1

    @property
    def name(self) -> str:
        """The word topk and the fraction, such as topk:0.01."""
        return f"topk:{self.fraction}"

    def pack(self, vector: Vector) -> bytes:
        """Return indices, then numbers."""
        count = self._count(vector.size)
        indices = _largest_indices(np.abs(_require_finite(vector)), count)
        return indices.astype("<u4").tobytes() + vector[indices].astype("<f4", copy=False).tobytes()

    def unpack(self, content: bytes, size: int) -> Vector:
        """Return the numbers at their indices, 0 elsewhere."""
        count = self._count(size)
        _check_length(content, 8 * count, size)
        indices = np.frombuffer(content[: 4 * count], "<u4")
        # Compare instead of subtracting: uint32 differences wrap around.
        if not np.all(indices[1:] > indices[:-1]):
            raise DataError(
                "indices are not strictly ascending; expected each index once, the smallest first"
            )
        if count and indices[-1] >= size:
            raise DataError(f"index {indices[-1]} is out of range; expected below {size}")
        vector = np.zeros(size, np.float32)
        vector[indices] = _require_finite(_from_bytes(content[4 * count :]))
        return vector

    def _count(self, size: int) -> int:
        return min(size, max(1, round(self.fraction * size)))


def compression_for(name: str) -> Compression:
    """Return the compression of that name; raise `SettingError` if it is unknown."""
    if name in COMPRESSIONS:
        return COMPRESSIONS[name]()
    kind, _, argument = name.partition(":")
    if kind != "topk":
        raise SettingError(f"compression is {name!r}; {suggest(name, COMPRESSIONS, TOPK)}")
    if (fraction := _parse_fraction(argument)) is None:
        raise SettingError(f"compression is {name!r}; expected {TOPK}")
    return TopK(fraction)


COMPRESSIONS: dict[str, Callable[[], Compression]] = {
    "none": Uncompressed,
    "q8": lambda: Quantized(8),
    "q4": lambda: Quantized(4),
}


def _parse_fraction(text: str) -> float | None:
    try:
        fraction = float(text)
    except ValueError:
        return None
    return fraction if 0 < fraction <= 1 else None


def _largest_indices(magnitudes: Vector, count: int) -> NDArray[np.intp]:
    """Return the indices of the `count` largest, ascending."""
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
        index = int(np.flatnonzero(~np.isfinite(vector))[0])
        raise DataError(f"number {index} is {vector[index]}; expected finite numbers")
    return vector


def _check_length(content: bytes, expected: int, size: int) -> None:
    if len(content) != expected:
        raise DataError(f"{len(content)} bytes; expected {expected} for {size} numbers")
