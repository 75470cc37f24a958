"""Small messages with huge sizes in them.

``python -m tests.axon.oversized_messages`` decodes all of them under a memory limit.
"""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec.msgpack import Ext
from msgspec.msgpack import encode as pack

from melisma.axon.codec.encoding import decode
from melisma.axon.codec.message import (
    MAGIC,
    PRELUDE,
    Message,
    message_buffers,
    parse_message,
)
from melisma.errors import MalformedError

BILLION: Final = 1 << 30


def tree(data: bytes) -> bytes:
    return b"".join(message_buffers(Message(data)))


def extension(code: int, *parts: Any) -> bytes:
    frame = memoryview(bytes(8))
    return b"".join(message_buffers(Message(pack(Ext(code, pack(list(parts)))), [frame])))


MESSAGES: Final[dict[str, Callable[[], bytes]]] = {
    "tree": lambda: PRELUDE.pack(MAGIC, (1 << 32) - 1, 0),
    "frames": lambda: PRELUDE.pack(MAGIC, 0, (1 << 32) - 1),
    "frame": lambda: PRELUDE.pack(MAGIC, 0, 1) + b"\xff" * 8,
    "array": lambda: tree(b"\xdd\x7f\xff\xff\xff\xc0"),
    "map": lambda: tree(b"\xdf\x7f\xff\xff\xff\xc0"),
    "str": lambda: tree(b"\xdb\x7f\xff\xff\xff\xc0"),
    "bytes": lambda: tree(b"\xc6\x7f\xff\xff\xff\xc0"),
    "extension": lambda: tree(b"\xc9\x7f\xff\xff\xff\x01\xc0"),
    "array in a tuple": lambda: tree(pack(Ext(1, b"\xdd\x7f\xff\xff\xff\xc0"))),
    "NumPy array": lambda: extension(9, "<f8", [BILLION], "C", 0),
    "NumPy array of all dimensions": lambda: extension(9, "|u1", [BILLION] * 64, "C", 0),
    "NumPy array that overflows": lambda: extension(9, "<f8", [1 << 61, 8], "C", 0),
    "NumPy dtype": lambda: extension(9, f"|V{(1 << 31) - 1}", [1], "C", 0),
    "NumPy sub-array": lambda: extension(9, [["a", "<f8", [BILLION]]], [1], "C", 0),
    "NumPy scalar": lambda: extension(10, f"|S{BILLION}", b"x"),
    "tensor": lambda: extension(11, "strided", "float64", [BILLION], 0),
    "tensor that overflows": lambda: extension(11, "strided", "float64", [1 << 61, 8], 0),
    "sparse tensor": lambda: extension(
        11, "sparse_csr", "float64", [BILLION, 1], [0, 1], [0], Ext(11, _one_item())
    ),
}


def _one_item() -> bytes:
    return pack(["strided", "float64", [1], 0])


def main() -> None:
    import torch

    torch.eye(2).to_sparse_csr().values()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for name, data in MESSAGES.items():
        try:
            decode(parse_message(bytearray(data())))
        except MalformedError:
            continue
        raise AssertionError(name)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
