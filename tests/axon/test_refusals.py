"""Functions that refuse a call: the caller gets the error as it was raised."""

from collections.abc import Iterator

import pytest

from melisma import axon
from melisma.errors import AxonError, MalformedError, RefusedError, RemoteError, UnauthorizedError


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
