"""Discovery on the local network by multicast DNS (service ``_axon._tcp``)."""

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
    """A worker that `discover` found; `kind` is what it announced itself as, empty if nothing."""

    name: str
    address: str
    kind: str = ""


def discover(
    timeout_s: float = 2.0, *, interfaces: list[str] | None = None
) -> list[DiscoveredWorker]:
    """Return the workers that answer within ``timeout_s``, sorted by name.

    ``interfaces``: addresses of the network interfaces to use, by default all.
    """
    zeroconf = _import_zeroconf()
    names: set[str] = set()

    def on_change(name: str, state_change: Any, **_: Any) -> None:
        if state_change is not zeroconf.ServiceStateChange.Removed:
            names.add(name)

    async def search() -> list[DiscoveredWorker]:
        async with _open_zeroconf(interfaces) as client:
            browser = zeroconf.asyncio.AsyncServiceBrowser(client.zeroconf, SERVICE, [on_change])
            await asyncio.sleep(timeout_s)
            await browser.async_cancel()
            infos = [zeroconf.asyncio.AsyncServiceInfo(SERVICE, name) for name in sorted(names)]
            answered = [info for info in infos if await info.async_request(client.zeroconf, 1000)]
            workers = map(_parse_announcement, answered)
            return [worker for worker in workers if worker is not None]

    return asyncio.run(search())


@contextlib.asynccontextmanager
async def announce(name: str, address: Address, kind: str = "") -> AsyncIterator[None]:
    """Announce a worker inside an ``async with``.

    ``kind`` tells workers of one program from others, such as ``"melisma-orchestrator"``.
    """
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
        properties={
            "fingerprint": address.fingerprint or "",
            "tls": "1" if address.tls else "",
            "kind": kind,
        },
    )
    async with _open_zeroconf(interfaces) as client:
        try:
            await client.async_register_service(info)
        except zeroconf.NonUniqueNameException as error:
            raise SettingError(
                f"a worker {name!r} is already announced: pass another name="
            ) from error
        try:
            yield
        finally:
            await client.async_unregister_service(info)


@contextlib.asynccontextmanager
async def _open_zeroconf(interfaces: list[str] | None) -> AsyncIterator[Any]:
    zeroconf = _import_zeroconf()
    interface_choice = interfaces or zeroconf.InterfaceChoice.All
    client = zeroconf.asyncio.AsyncZeroconf(interfaces=interface_choice)
    try:
        yield client
    finally:
        await client.async_close()


def _parse_announcement(info: Any) -> DiscoveredWorker | None:
    """Return the announced worker, None for an invalid announcement."""
    try:
        properties = {k.decode(): (v or b"").decode() for k, v in info.properties.items()}
        host, tls = info.parsed_addresses()[0], bool(properties.get("tls"))
        address = Address(host, info.port, tls, properties.get("fingerprint") or None)
        Address.parse(str(address))
    except (UnicodeDecodeError, IndexError, SettingError):
        return None
    name = info.name.removesuffix(f".{SERVICE}")
    return DiscoveredWorker(name, str(address), properties.get("kind", ""))


def _import_zeroconf() -> Any:
    try:
        import zeroconf
        import zeroconf.asyncio
    except ImportError as error:
        raise SettingError(
            'discovery needs another package: pip install "melisma[discovery]"'
        ) from error
    return zeroconf
