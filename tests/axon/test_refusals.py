"""Functions that refuse a call: the caller gets the error as it was raised."""

from collections.abc import Iterator

import pytest

from melisma import axon
from melisma.errors import AxonError, MalformedError, RefusedError, RemoteError, UnauthorizedError
from tests.axon.server.calls.test_calls import connect


@pytest.mark.parametrize("kind", [RefusedError, UnauthorizedError, MalformedError])
@pytest.mark.parametrize("name", ["on_thread", "on_loop"])
def test_a_refusal_arrives_as_it_is_and_without_traceback(kind: type[AxonError], name: str) -> None:
    worker = axon.Worker(port=0)

    @worker.rpc()
    def on_thread() -> None:
        raise kind("too late: join the next cycle")

    @worker.rpc()
    async def on_loop() -> None:
        raise kind("too late: join the next cycle")

    with worker.start() as address, pytest.raises(kind) as caught:
        getattr(axon.connect(address), name)()
    assert type(caught.value) is kind
    assert str(caught.value) == "too late: join the next cycle"


def test_other_errors_of_axon_are_errors_of_the_function() -> None:
    worker = axon.Worker(port=0)

    @worker.rpc()
    def fail() -> None:
        raise AxonError("another worker failed")

    with worker.start() as address, pytest.raises(RemoteError, match="another worker failed"):
        axon.connect(address).fail()


@pytest.mark.parametrize("kind", [RefusedError, UnauthorizedError, MalformedError])
def test_a_stream_may_end_with_a_refusal(kind: type[AxonError]) -> None:
    worker = axon.Worker(port=0)

    @worker.rpc()
    def count() -> Iterator[int]:
        yield 1
        raise kind("too late: join the next cycle")

    with worker.start() as address, axon.connect(address) as remote:
        items = remote.count()
        assert next(items) == 1
        with pytest.raises(kind, match="too late") as caught:
            next(items)
    assert type(caught.value) is kind


def test_a_caller_is_refused_before_its_body_is_received() -> None:
    worker = axon.Worker(port=0)

    def check_caller(caller: str) -> None:
        raise RefusedError(f"{caller} may not upload")

    @worker.rpc(check_caller=check_caller)
    def upload(update: bytes) -> None:
        raise AssertionError

    with worker.start() as address, connect(address) as sock:
        sock.sendall(b"POST /rpc/upload HTTP/1.1\r\ncontent-length: 100000000\r\n\r\n")
        assert b"anonymous may not upload" in sock.recv(10_000)


def test_counters_are_for_the_owner_if_callers_need_credentials() -> None:
    token = axon.issue_token("sesame", "pi")
    with axon.Worker(port=0, token="sesame").start() as address, connect(address) as sock:
        for sent, status in ((token, b" 401 "), ("sesame", b" 200 ")):
            head = f"GET /metrics HTTP/1.1\r\nauthorization: Bearer {sent}\r\n\r\n"
            sock.sendall(head.encode())
            assert status in sock.recv(10_000)[:20]
