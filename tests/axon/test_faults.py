"""Faults on a connection: each gets its own error, and the worker keeps serving."""

import contextlib
import json
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from melisma import axon
from melisma.axon.codec.encoding import encode_arguments
from melisma.axon.codec.message import message_buffers
from melisma.errors import UnreachableError
from tests.axon.served_functions import RUNS, a_worker


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    limits = axon.Limits(head_s=0.5, min_bytes_per_s=1e6, max_body_bytes=100 << 20)
    with a_worker(limits=limits).start() as address:
        yield address


@pytest.fixture(autouse=True)
def still_serving(address: str) -> Iterator[None]:
    yield
    with axon.connect(address) as remote:
        assert remote.echo("still here") == "still here"
    with urllib.request.urlopen(f"{address}/metrics") as response:
        assert b"axon_calls_active 0\n" in response.read()


def body_of(*args: object) -> bytes:
    return b"".join(message_buffers(encode_arguments(args, {})))


def request(body: bytes, name: str = "once", **headers: str) -> bytes:
    lines = {
        "content-length": str(len(body)),
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    head = "".join(f"{key}: {value}\r\n" for key, value in lines.items())
    return f"POST /rpc/{name} HTTP/1.1\r\n{head}\r\n".encode() + body


def answer(address: str, data: bytes) -> tuple[int, bytes]:
    """Send raw bytes and return the status and body of the response."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        with contextlib.suppress(OSError):  # it may have heard enough, and have closed
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        received = b""
        while part := sock.recv(65536):
            received += part
            head, separator, body = received.partition(b"\r\n\r\n")
            if separator and len(body) >= length_of(head):
                break
    head, _, body = received.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


def length_of(head: bytes) -> int:
    lines = head.decode().lower().splitlines()
    return next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)


def error_of(address: str, data: bytes) -> tuple[int, str, str]:
    status, body = answer(address, data)
    error = json.loads(body)
    return status, error["error"], error["message"]


def test_a_request_cut_off_at_any_byte_is_answered_and_runs_nothing(address: str) -> None:
    whole = request(body_of("cut"), axon_call_id="cut")
    for end in range(1, len(whole)):
        status, code, message = error_of(address, whole[:end])
        assert (status, code) == (400, "malformed"), (end, message)
    assert not RUNS
    assert answer(address, whole)[0] == 200


def test_a_body_of_the_wrong_length_is_malformed(address: str) -> None:
    body = body_of("key", np.arange(10))
    for wrong in (body[:-8], body + b"\0" * 8, b"", b"AXN1", body[:12]):
        status, code, _ = error_of(address, request(wrong))
        assert (status, code) == (400, "malformed")
    assert not RUNS


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"AXN2" + bytes(8), "format version 1"),
        (struct.pack("<4sII", b"AXN1", 2**32 - 1, 0), "a tree of 4294967295 bytes"),
        (struct.pack("<4sII", b"AXN1", 0, 2**32 - 1), "4294967295 frames"),
        (struct.pack("<4sIIQ", b"AXN1", 0, 1, 2**63), "the frames end at byte 92233720"),
        (struct.pack("<4sII", b"AXN1", 5, 0) + b"\xdd\x3b\x9a\xca\x00", "truncated"),
        (struct.pack("<4sII", b"AXN1", 9000, 0) + b"\x91" * 9000, "nested too deeply"),
        (struct.pack("<4sII", b"AXN1", 1, 0) + b"\xc0", "list of arguments"),
        (struct.pack("<4sII", b"AXN1", 3, 0) + b"\xd4\x63\x00", "extension type 99"),
    ],
)
def test_a_message_with_wrong_sizes_is_malformed(address: str, body: bytes, said: str) -> None:
    status, code, message = error_of(address, request(body))
    assert (status, code) == (400, "malformed")
    assert said in message
    assert not RUNS


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\r\n\r\n", "malformed"),
        (b"HELLO\r\n\r\n", "malformed"),
        (b"GET / HTTP/9.9\r\n\r\n", "malformed"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "malformed"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 20000 + b"\r\n\r\n", "malformed"),
        (b"POST /rpc/echo HTTP/1.1\r\ncontent-length: -5\r\n\r\n", "malformed"),
        (b"POST /rpc/echo HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", "malformed"),
        (b"POST /rpc/echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "malformed"),
        (b"POST /rpc/echo HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n", "too-large"),
        (b"GET /nothing HTTP/1.1\r\n\r\n", "refused"),
        (b"PUT /rpc/echo HTTP/1.1\r\n\r\n", "refused"),
        (b"GET /rpc/../../etc/passwd HTTP/1.1\r\n\r\n", "refused"),
        (b"GET /calls/x?wait_s=soon HTTP/1.1\r\n\r\n", "malformed"),
        (b"GET /calls/x?wait_s=nan HTTP/1.1\r\n\r\n", "malformed"),
    ],
)
def test_an_invalid_head_is_answered(address: str, data: bytes, code: str) -> None:
    assert error_of(address, data)[1] == code


@pytest.mark.parametrize("deadline", ["-1", "nan", "inf", "soon", "1e999"])
def test_an_invalid_deadline_is_malformed(address: str, deadline: str) -> None:
    data = request(body_of("key"), axon_deadline_s=deadline)
    assert error_of(address, data)[:2] == (400, "malformed")
    assert not RUNS


@pytest.mark.parametrize("call_id", ["x" * 65, "a b", "a/b", "ä"])
def test_an_invalid_call_id_is_malformed(address: str, call_id: str) -> None:
    assert error_of(address, request(body_of("key"), axon_call_id=call_id))[1] == "malformed"
    assert not RUNS


def test_a_replayed_request_does_not_run_again(address: str) -> None:
    data = request(body_of("replay"), axon_call_id="replay-1")
    first = answer(address, data)
    assert answer(address, data) == first
    assert RUNS["replay"] == 1


def test_a_retry_of_a_possibly_forgotten_call_does_not_run(address: str) -> None:
    data = request(body_of("old"), axon_call_id="old-1", axon_age_s="1000")
    assert error_of(address, data)[:2] == (410, "lost")
    assert not RUNS


@pytest.mark.parametrize("left", [1000, 40, 8])
def test_a_slow_caller_gets_a_too_slow_error(address: str, left: int) -> None:
    whole = request(body_of("slow"), axon_call_id="slow")
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(whole[:-left])
        began = time.monotonic()
        received = b""
        for byte in whole[-left:]:
            try:
                sock.sendall(bytes([byte]))
            except ConnectionError:
                break
            sock.settimeout(0.1)
            try:
                received = sock.recv(65536)
                break
            except TimeoutError:
                continue
    assert b"408" in received
    assert b"arrived at less than" in received
    assert time.monotonic() - began < 5
    assert not RUNS


def test_pipelined_requests_are_answered_in_order(address: str) -> None:
    both = request(body_of("a")) + request(body_of("a"))
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        sock.sendall(both)
        received = b""
        while received.count(b"HTTP/1.1 200") < 2 or not received.endswith(b"\x02"):
            received += sock.recv(65536)
    assert RUNS["a"] == 2


def test_a_burst_of_pipelined_requests_is_served_completely(address: str) -> None:
    data = request(body_of("burst"), "inline_echo")
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as sock:
        writer = threading.Thread(target=sock.sendall, args=(data * 500,))
        writer.start()
        answers = 0
        while answers < 500:
            received = sock.recv(65536)
            assert received
            answers += received.count(b"HTTP/1.1 200")
        writer.join()


def test_a_lost_answer_is_sent_again() -> None:
    """A proxy that cuts each first answer: the call is retried and runs once."""
    with a_worker().start() as address, cutting_proxy(address) as (proxy, cuts):
        with axon.connect(proxy) as remote:
            assert remote.once("lost answer") == 1
            assert remote.submit.once("lost answer 2").result(10) == 1
        assert len(cuts) == 2
    assert RUNS == {"lost answer": 1, "lost answer 2": 1}


def test_answers_that_always_break_are_unreachable() -> None:
    with (
        a_worker().start() as address,
        cutting_proxy(address, always=True) as (proxy, _),
        axon.connect(proxy) as remote,
        pytest.raises(UnreachableError),
    ):
        remote.once("never")
    assert RUNS == {"never": 1}


class cutting_proxy:  # noqa: N801 - reads like a function
    """A proxy that cuts answers in the middle: the first one of each call id, or all."""

    def __init__(self, address: str, *, always: bool = False) -> None:
        host, port = address.removeprefix("http://").split(":")
        self.target = host, int(port)
        self.always = always
        self.cuts: list[bytes] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve)

    def __enter__(self) -> tuple[str, list[bytes]]:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.getsockname()[1]}", self.cuts

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join()

    def serve(self) -> None:
        while True:
            try:
                caller, _ = self.server.accept()
            except OSError:
                return
            with caller, socket.create_connection(self.target) as worker:
                data = caller.recv(65536)
                worker.sendall(data)
                reply = worker.recv(65536)
                first = b"axon-age-s" not in data and b"DELETE" not in data
                if first or self.always:
                    self.cuts.append(data)
                    reply = reply[: len(reply) // 2]
                caller.sendall(reply)
