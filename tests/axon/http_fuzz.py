"""A fuzzer of raw HTTP and of messages against a running worker.

Each attack is one connection that sends mutated, truncated, oversized or pipelined requests. The
same seed sends the same bytes.
"""

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from typing import Final

from tests.axon.fuzz import corpus, mutant, scrambled
from tests.axon.test_faults import body_of, request

TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 1 << 20
NAMES: Final = ("echo", "inline_echo", "coroutine", "count_to", "long_echo", "store.put", "none")
MESSAGES: Final = corpus()
LENGTHS: Final = ("0", "1", "12", "99999999999", "18446744073709551616", "-1", "1e3", "0x10", "")


def valid(rng: random.Random) -> bytes:
    """Return a valid request."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.choice((b"GET / HTTP/1.1\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"))
    if kind == 1:
        return b"DELETE /calls/%d HTTP/1.1\r\n\r\n" % rng.randrange(20)
    if kind == 2:
        return b"GET /calls/%d?wait_s=0.1 HTTP/1.1\r\n\r\n" % rng.randrange(20)
    call_id = str(rng.randrange(20)) if kind == 3 else str(rng.random())
    return request(body_of(rng.randrange(9)), rng.choice(NAMES), axon_call_id=call_id)


def mutated(rng: random.Random) -> bytes:
    return scrambled(rng, valid(rng))


def truncated(rng: random.Random) -> bytes:
    data = valid(rng)
    return data[: rng.randrange(len(data))]


def hostile_message(rng: random.Random) -> bytes:
    return request(mutant(rng, MESSAGES), rng.choice(NAMES))


def wrong_length(rng: random.Random) -> bytes:
    head, _, body = valid(rng).partition(b"\r\n\r\n")
    length = rng.choice(LENGTHS).encode()
    return head + b"\r\ncontent-length: " + length + b"\r\n\r\n" + body


def wrong_sizes(rng: random.Random) -> bytes:
    sizes = [rng.choice((0, 1, 100, (1 << 31) - 1, (1 << 32) - 1)) for _ in range(2)]
    table = b"".join(struct.pack("<Q", rng.getrandbits(64)) for _ in range(rng.randrange(4)))
    return request(struct.pack("<4sII", b"AXN1", *sizes) + table, rng.choice(NAMES))


def huge_head(rng: random.Random) -> bytes:
    line = b"x-%d: %s\r\n" % (rng.randrange(9), b"y" * rng.choice((1, 100, 5000)))
    return b"GET / HTTP/1.1\r\n" + line * rng.choice((1, 100, 1000)) + b"\r\n"


def bad_chunks(rng: random.Random) -> bytes:
    size = rng.choice((b"0", b"5", b"fffffffffffffffff", b"-1", b"zz", b""))
    chunk = size + b"\r\n" + rng.randbytes(rng.randrange(20)) + b"\r\n"
    return b"POST /rpc/echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 3


def pipelined(rng: random.Random) -> bytes:
    return b"".join(rng.choice((valid, valid, mutated))(rng) for _ in range(rng.randrange(2, 30)))


def noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 20, 3000, 40_000)))


ATTACKS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    valid,
    mutated,
    truncated,
    hostile_message,
    wrong_length,
    wrong_sizes,
    huge_head,
    bad_chunks,
    pipelined,
    noise,
)


def attack(rng: random.Random, place: tuple[str, int]) -> bytes:
    """Send one attack and return the answer, which ends when the worker closes."""
    data = rng.choice(ATTACKS)(rng)
    with socket.create_connection(place, TIMEOUT_S) as sock:
        answer = b""
        # The worker may close the connection before it has read everything.
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            if rng.random() < 0.2:
                return b""  # Leave without reading.
            with contextlib.suppress(OSError):  # The worker has closed the connection.
                sock.shutdown(socket.SHUT_WR)
            while (part := sock.recv(1 << 16)) and len(answer) < MAX_ANSWER_BYTES:
                answer += part
    return answer
