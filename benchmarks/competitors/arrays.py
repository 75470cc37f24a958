"""Arrays as bytes, for competitors without a codec: type and shape in 64 bytes, then the memory.

Encoding copies the array once, which bytes cannot avoid; decoding returns a view.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 64


def encode(array: NDArray[Any]) -> bytes:
    """Return the header and the memory of a contiguous array as one bytes object."""
    return _header(array) + array.data.cast("B")


def decode(data: bytes | memoryview) -> NDArray[Any]:
    """Return a view of the array after the header."""
    dtype, shape = bytes(data[:HEADER_BYTES]).decode().split()
    return np.frombuffer(data, dtype, offset=HEADER_BYTES).reshape(
        [int(size) for size in shape.split(",")]
    )


def _header(array: NDArray[Any]) -> bytes:
    """Return type and shape, padded to a fixed length."""
    return f"{array.dtype.str} {','.join(map(str, array.shape))}".encode().ljust(HEADER_BYTES)
