"""Readers of IDX files and of PNG files with 8-bit RGB."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError

Bytes = NDArray[np.uint8]
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def read_idx(raw: bytes, name: str) -> Bytes:
    """Return the array of an IDX file of unsigned bytes, the format of MNIST."""
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise DataError(f"{name} is not an IDX file of unsigned bytes")
    axes = raw[3]
    shape = struct.unpack_from(f">{axes}I", raw, 4) if len(raw) >= 4 + 4 * axes else ()
    start = 4 + 4 * axes
    if not shape or len(raw) - start != int(np.prod(shape, dtype=np.int64)):
        raise DataError(
            f"{name} has {len(raw)} bytes, which does not match the array in its header"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_png(raw: bytes, name: str) -> Bytes:
    """Return rows x pixels x 3 of a PNG file with 8-bit RGB, not interlaced."""
    try:
        chunks = dict(_chunks(raw))
        width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
        lines = lines.reshape(height, 3 * width + 1)
    except (KeyError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{name} is not a readable PNG file: {error}") from None
    if kind != [8, 2, 0, 0, 0]:
        raise DataError(f"{name} has PNG format {kind}; expected 8-bit RGB without interlacing")
    return _undo_filters(lines[:, 0], lines[:, 1:].reshape(height, width, 3))


def _chunks(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Return the content of each chunk type; chunks of the same type are joined."""
    if raw[:8] != SIGNATURE:
        raise ValueError("its signature is missing")
    chunks: dict[bytes, list[bytes]] = {}
    start = 8
    while start + 12 <= len(raw):
        (size,) = struct.unpack_from(">I", raw, start)
        chunks.setdefault(raw[start + 4 : start + 8], []).append(raw[start + 8 : start + 8 + size])
        start += 12 + size
    return [(kind, b"".join(parts)) for kind, parts in chunks.items()]


def _undo_filters(filters: Bytes, lines: Bytes) -> Bytes:
    """Undo the filter of each line; most lines use filter 1, the difference to the left."""
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
    """Add the prediction from the left and upper neighbours to each pixel, in place."""
    before, corner = np.zeros(3, np.int64), np.zeros(3, np.int64)
    for column in range(len(line)):
        up = above[column].astype(np.int64)
        guess = _paeth(before, up, corner) if paeth else (before + up) // 2
        line[column] = (line[column] + guess) & 255
        before, corner = line[column].astype(np.int64), up


def _paeth(
    left: NDArray[np.int64], up: NDArray[np.int64], corner: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return whichever is nearest to left + up - corner; the first if equal."""
    candidates = np.stack([left, up, corner])
    distances = np.abs(left + up - corner - candidates)
    nearest: NDArray[np.int64] = np.take_along_axis(
        candidates, distances.argmin(axis=0)[None], axis=0
    )[0]
    return nearest
