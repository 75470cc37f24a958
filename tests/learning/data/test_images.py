import struct
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.learning.data.images import SIGNATURE, read_idx, read_png


def png(lines: bytes, width: int, height: int, kind: bytes = b"\x08\x02\x00\x00\x00") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    head = struct.pack(">II", width, height) + kind
    packed = zlib.compress(lines)
    parts = [chunk(b"IDAT", packed[:10]), chunk(b"IDAT", packed[10:]), chunk(b"IEND", b"")]
    return SIGNATURE + chunk(b"IHDR", head) + b"".join(parts)


def filtered(image: NDArray[np.uint8], filters: list[int]) -> bytes:
    """Each line as a PNG writer would put it, by the definitions of the five filters."""
    lines = bytearray()
    flat = image.reshape(image.shape[0], -1).astype(int)
    for row, kind in enumerate(filters):
        lines.append(kind)
        for column, value in enumerate(flat[row]):
            left = flat[row][column - 3] if column >= 3 else 0
            up = flat[row - 1][column] if row else 0
            corner = flat[row - 1][column - 3] if row and column >= 3 else 0
            near = left + up - corner
            far = [abs(near - left), abs(near - up), abs(near - corner)]
            paeth = [left, up, corner][far.index(min(far))]
            lines.append((value - [0, left, up, (left + up) // 2, paeth][kind]) % 256)
    return bytes(lines)


def test_all_png_filters_are_decoded() -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (40, 7, 3)).astype(np.uint8)
    filters = [int(kind) for kind in rng.integers(0, 5, 40)]
    assert set(filters) == set(range(5))
    result = read_png(png(filtered(image, filters), 7, 40), "image.png")
    np.testing.assert_array_equal(result, image)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"GIF89a", "not a readable PNG file: its signature is missing"),
        (SIGNATURE, "not a readable PNG file"),
        (png(b"\x00" * 4, 1, 1)[:-20], "not a readable PNG file"),
        (png(b"\x00" * 4, 1, 1, b"\x10\x02\x00\x00\x00"), "expected 8-bit RGB"),
        (png(b"\x00" * 9, 1, 1), "not a readable PNG file"),
    ],
)
def test_the_error_about_an_invalid_png_names_the_problem(raw: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"image.png.*{message}|{message}"):
        read_png(raw, "image.png")


def test_an_idx_file_is_read() -> None:
    raw = b"\x00\x00\x08\x02" + struct.pack(">II", 2, 3) + bytes(range(6))
    assert read_idx(raw, "labels").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("cut", [-1, 1, 3, 6, 11])
def test_a_truncated_idx_file_is_refused(cut: int) -> None:
    raw = b"\x00\x00\x08\x02" + struct.pack(">II", 2, 3) + bytes(range(6))
    with pytest.raises(DataError, match="labels"):
        read_idx(raw[:cut], "labels")


def test_an_idx_file_with_trailing_bytes_is_refused() -> None:
    with pytest.raises(
        DataError, match="has 11 bytes, which does not match the array in its header"
    ):
        read_idx(b"\x00\x00\x08\x01" + struct.pack(">I", 2) + b"abc", "labels")
