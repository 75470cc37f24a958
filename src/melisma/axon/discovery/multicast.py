"""Finding workers on the local network by multicast DNS (service ``_axon._tcp``)."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from melisma.axon.address import Address
from melisma.errors import SettingError

SERVICE: Final = "_axon._tcp.local."


@dataclass(frozen=True)
class DiscoveredWorker:
    """A worker that announces itself."""

    name: str
    address: str


def discover(
    timeout_s: float = 2.0, *, interfaces: list[str] | None = None
) -> list[DiscoveredWorker]:
    """The workers that answer within ``timeout_s``, by name.

    ``interfaces``: addresses of the network interfaces to ask on; all, if not given.
    """
    zeroconf = _import_zeroconf()
    names: set[str] = set()

    def changed(name: str, state_change: Any, **_: Any) -> None:
        if state_change is not zeroconf.ServiceStateChange.Removed:
            names.add(name)

    async def search() -> list[DiscoveredWorker]:
        async with _open_zeroconf(interfaces) as asking:
            browser = zeroconf.asyncio.AsyncServiceBrowser(asking.zeroconf, SERVICE, [changed])
            await asyncio.sleep(timeout_s)
            await browser.async_cancel()
            infos = [zeroconf.asyncio.AsyncServiceInfo(SERVICE, name) for name in sorted(names)]
            answered = [info for info in infos if await info.async_request(asking.zeroconf, 1000)]
            return [found for info in answered if (found := _parse_announcement(info)) is not None]

    return asyncio.run(search())


@contextlib.asynccontextmanager
async def announce(name: str, address: Address) -> AsyncIterator[None]:
    """Announce a worker while inside."""
    zeroconf = _import_zeroconf()
    host, interfaces = address.host, None
    if host in ("127.0.0.1", "localhost"):
        host, interfaces = "127.0.0.1", ["127.0.0.1"]
    addresses = [await asyncio.to_thread(socket.gethostbyname, host)]
    info = zeroconf.asyncio.AsyncServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        address.port,
        parsed_addresses=addresses,
        properties={"fingerprint": address.fingerprint or "", "tls": "1" if address.tls else ""},
    )
    async with _open_zeroconf(interfaces) as announcing:
        try:
            await announcing.async_register_service(info)
        except zeroconf.NonUniqueNameException as error:
            raise SettingError(f"a worker {name!r} is announced already: pass name=") from error
        try:
            yield
        finally:
            await announcing.async_unregister_service(info)


@contextlib.asynccontextmanager
async def _open_zeroconf(interfaces: list[str] | None) -> AsyncIterator[Any]:
    zeroconf = _import_zeroconf()
    chosen = interfaces or zeroconf.InterfaceChoice.All
    asking = zeroconf.asyncio.AsyncZeroconf(interfaces=chosen)
    try:
        yield asking
    finally:
        await asking.async_close()


def _parse_announcement(info: Any) -> DiscoveredWorker | None:
    """The worker that an announcement describes; None for one that makes no sense."""
    try:
        text = {k.decode(): (v or b"").decode() for k, v in info.properties.items()}
        host, tls = info.parsed_addresses()[0], bool(text.get("tls"))
        address = Address(host, info.port, tls, text.get("fingerprint") or None)
        Address.parse(str(address))
    except (UnicodeDecodeError, IndexError, SettingError):
        return None
    return DiscoveredWorker(info.name.removesuffix(f".{SERVICE}"), str(address))


def _import_zeroconf() -> Any:
    try:
        import zeroconf
        import zeroconf.asyncio
    except ImportError as error:
        raise SettingError(
            'finding workers takes one more package: pip install "melisma[discovery]"'
        ) from error
    return zeroconf
