"""An array as bytes: 64 bytes that say type and shape, then its memory. For peers without a codec.

Encoding copies the array once, which bytes cannot avoid; decoding is a view.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 64


def encode(array: NDArray[Any]) -> bytes:
    """The header and the memory of a contiguous array in one piece."""
    return _header(array) + array.data.cast("B")


def decode(data: bytes | memoryview) -> NDArray[Any]:
    """A view of the array that starts after its header."""
    dtype, shape = bytes(data[:HEADER_BYTES]).decode().split()
    return np.frombuffer(data, dtype, offset=HEADER_BYTES).reshape(
        [int(size) for size in shape.split(",")]
    )


def _header(array: NDArray[Any]) -> bytes:
    """Type and shape, padded to a fixed length."""
    return f"{array.dtype.str} {','.join(map(str, array.shape))}".encode().ljust(HEADER_BYTES)
