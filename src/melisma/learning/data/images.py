"""Images as data sets come: IDX files, and PNG files of plain colours."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError

Bytes = NDArray[np.uint8]
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def read_idx(raw: bytes, name: str) -> Bytes:
    """The array of an IDX file of unsigned bytes (as MNIST is kept)."""
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError(f"{name} is not an IDX file of bytes")
    axes = raw[3]
    shape = struct.unpack_from(f">{axes}I", raw, 4) if len(raw) >= 4 + 4 * axes else ()
    start = 4 + 4 * axes
    if not shape or len(raw) - start != int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{name} ends before, or goes on after, the array that it says it holds")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_png(raw: bytes, name: str) -> Bytes:
    """Rows x pixels x 3 of a PNG file with 8 bits a colour, not interlaced."""
    try:
        chunks = dict(_chunks(raw))
        width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
        lines = lines.reshape(height, 3 * width + 1)
    except (KeyError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{name} is not a PNG file that can be read: {error}") from None
    if kind != [8, 2, 0, 0, 0]:
        raise DataError(
            f"{name} is a PNG file of another kind than 8 bits a colour, red green blue"
        )
    return _undo_filters(lines[:, 0], lines[:, 1:].reshape(height, width, 3))


def _chunks(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Chunks by type; the parts of the image put together."""
    if raw[:8] != SIGNATURE:
        raise ValueError("it does not begin like one")
    found: dict[bytes, list[bytes]] = {}
    place = 8
    while place + 12 <= len(raw):
        (size,) = struct.unpack_from(">I", raw, place)
        found.setdefault(raw[place + 4 : place + 8], []).append(raw[place + 8 : place + 8 + size])
        place += 12 + size
    return [(kind, b"".join(parts)) for kind, parts in found.items()]


def _undo_filters(filters: Bytes, lines: Bytes) -> Bytes:
    """Undo what each line was filtered with; lines differ from the pixel before, mostly."""
    pixels = np.array(lines)
    left = filters == 1
    pixels[left] = np.cumsum(lines[left], axis=1, dtype=np.uint8)
    for row in np.flatnonzero(filters > 1):
        above = pixels[row - 1] if row else np.zeros_like(pixels[0])
        if filters[row] == 2:
            pixels[row] += above
        else:
            _undo_prediction(pixels[row], above, paeth=filters[row] == 4)
    return pixels


def _undo_prediction(line: Bytes, above: Bytes, *, paeth: bool) -> None:
    """Add to each pixel what its left and upper neighbours suggest, in place."""
    before, corner = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for place in range(len(line)):
        up = above[place].astype(np.int64)
        guess = _paeth(before, up, corner) if paeth else (before + up) // 2
        line[place] = (line[place] + guess) & 255
        before, corner = line[place].astype(np.int64), up


def _paeth(
    left: NDArray[np.int64], up: NDArray[np.int64], corner: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Of the three the one nearest to left + up - corner; the first of equals."""
    each = np.stack([left, up, corner])
    far = np.abs(left + up - corner - each)
    nearest: NDArray[np.int64] = np.take_along_axis(each, far.argmin(axis=0)[None], axis=0)[0]
    return nearest
