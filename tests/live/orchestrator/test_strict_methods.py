"""Methods that may be called with any arguments."""

import logging

import pytest

from melisma import axon
from melisma.axon.server.calls.context import enter
from melisma.errors import BusyError, DataError, MalformedError, RefusedError
from melisma.live.orchestrator import call_rates
from melisma.live.orchestrator.strict_methods import MAX_LOGGED, StrictMethods


class Service:
    async def double(self, number: int) -> int:
        return 2 * number

    async def refuse(self) -> None:
        raise RefusedError("no")

    async def fail(self) -> None:
        raise ZeroDivisionError

    async def lose(self) -> None:
        raise DataError("the folder was deleted")


async def test_an_error_that_ends_the_run_is_not_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = axon.Worker(port=0)
    worker.expose(StrictMethods(Service()), ["lose"], name="")
    async with worker.listening() as address:
        with axon.connect(address) as remote, pytest.raises(Exception, match="was deleted"):
            await remote.aio.lose()
    assert not caplog.records


async def test_wrong_arguments_are_refused_and_errors_are_logged_a_few_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = axon.Worker(port=0)
    worker.expose(StrictMethods(Service()), ["double", "refuse", "fail"], name="")
    async with worker.listening() as address:
        with axon.connect(address) as remote:
            assert await remote.aio.double(4) == 8
            for arguments in ((), (1, 2)):
                with pytest.raises(MalformedError, match="invalid arguments of double"):
                    await remote.aio.double(*arguments)
            with pytest.raises(RefusedError):
                await remote.aio.refuse()
            assert not caplog.records
            for _ in range(MAX_LOGGED + 3):
                with pytest.raises(ZeroDivisionError):
                    await remote.aio.fail()
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == MAX_LOGGED
    assert "fail failed, called by anonymous" in logged[0].getMessage()


async def test_calls_are_counted_also_if_their_arguments_are_invalid_and_by_host_if_anonymous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_rates, "CALLS_PER_S", 0.001)
    monkeypatch.setattr(call_rates, "BURST_CALLS", 3)
    methods = StrictMethods(Service())
    enter(axon.CallContext("1", "double", "anonymous", host="10.0.0.1"))
    for _ in range(3):
        with pytest.raises(MalformedError):
            await methods.double()
    with pytest.raises(BusyError, match=r"anonymous@10\.0\.0\.1"):
        await methods.double()
    enter(axon.CallContext("2", "double", "anonymous", host="10.0.0.2"))
    assert await methods.double(4) == 8
