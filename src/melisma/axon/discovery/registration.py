"""Registration of a worker: by multicast DNS, at a notice board, at a relay."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from melisma.axon.address import Address
from melisma.axon.server.calls.functions import Functions
from melisma.axon.server.http_server import HttpServer
from melisma.errors import MelismaError

_log = logging.getLogger("melisma.axon")


@dataclass(frozen=True)
class Registration:
    """The services at which a worker registers."""

    name: str
    announce: bool = False
    board: str | None = None
    relay: str | None = None

    @contextlib.asynccontextmanager
    async def register(
        self, address: Address, functions: Functions, server: HttpServer, identity: Path | None
    ) -> AsyncIterator[Address]:
        """Register inside an ``async with``; yield the public address of the worker."""
        async with contextlib.AsyncExitStack() as stack:
            if self.relay is not None:
                from melisma.axon.discovery.relay import dial_relay

                address = await stack.enter_async_context(
                    dial_relay(self.relay, self.name, server, identity)
                )
            elif self.announce:
                from melisma.axon.discovery.multicast import announce

                await stack.enter_async_context(announce(self.name, address))
            if self.board is not None:
                names = [exposed.name for exposed in functions]
                await stack.enter_async_context(
                    _sign_in(self.board, self.name, str(address), names)
                )
            yield address


@contextlib.asynccontextmanager
async def _sign_in(
    board: str, name: str, address: str, functions: list[str]
) -> AsyncIterator[None]:
    from melisma.axon.client.remote import connect
    from melisma.axon.discovery.board import LIFETIME_S

    with connect(board, deadline_s=10.0) as remote:
        ticket: str = await remote.aio.sign_in(name, address, functions)

        async def renew() -> None:
            while True:
                await asyncio.sleep(LIFETIME_S / 3)
                try:
                    await remote.aio.sign_in(name, address, functions, ticket=ticket)
                except Exception as error:  # noqa: BLE001 - try again at the next renewal
                    _log.warning("renewing the notice of %s failed: %s", name, error)

        renewal = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewal.cancel()
            with contextlib.suppress(MelismaError):
                await remote.aio.sign_out(name, ticket)
