"""Accepting connections up to a limit, and the choice of a connection to close for a new one.

A connection is *proven* by its first request that the handler accepted, which includes its token.
When the limit is reached, the oldest unproven connection makes room for a new one, from the
network with the most of them, so that a host that opens hundreds displaces its own first. If fewer
than a quarter are unproven, a proven connection without a request makes room instead. There is no
fixed limit by address: many devices may share one behind a router. Accepting pauses while every
connection serves a request, and after an error such as too many open files.
"""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol

_log = logging.getLogger("melisma.axon")
_BACKLOG: Final = 1024
_BATCH: Final = 16
"""Connections accepted before other events of the loop are served."""
_FULL_PAUSE_S: Final = 0.1
_ERROR_PAUSE_S: Final = 1.0
_NO_ADDRESS: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_LOG_INTERVAL_S: Final = 60.0
"""Time between two log lines about connections that were not accepted, in seconds."""


class Closable(Protocol):
    """A connection that can make room for another one."""

    @property
    def idle_since(self) -> float | None:
        """The time of the last request, None while one is served."""

    def close(self) -> None:
        """Close the connection, even during a request."""


class Slot:
    """The place of one accepted connection."""

    __slots__ = ("connection", "network", "proven")

    def __init__(self, network: bytes, connection: Closable) -> None:
        self.network = network
        self.connection = connection
        self.proven = False


class Slots:
    """The slots of all accepted connections of a server."""

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._unproven: dict[bytes, dict[Slot, None]] = {}
        """Unproven connections by network, oldest first."""
        self._unproven_count = 0
        self._proven: dict[Slot, None] = {}

    def __len__(self) -> int:
        return self._unproven_count + len(self._proven)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return len(self) >= self._max

    def add(self, slot: Slot) -> None:
        """Add a new connection."""
        self._unproven.setdefault(slot.network, {})[slot] = None
        self._unproven_count += 1

    def prove(self, slot: Slot) -> None:
        """Record that the connection sent an accepted request."""
        if not slot.proven and self._discard_unproven(slot):
            slot.proven = True
            self._proven[slot] = None

    def remove(self, slot: Slot) -> None:
        """Remove a closed connection."""
        if slot.proven:
            self._proven.pop(slot, None)
        else:
            self._discard_unproven(slot)

    def make_room(self) -> bool:
        """Close the connection that is needed least; return False if all serve requests."""
        victim = None
        if self._unproven_count < max(1, self._max // 4):
            victim = self._longest_idle()
        if victim is None and self._unproven:
            largest: dict[Slot, None] = max(self._unproven.values(), key=len)
            victim = next(iter(largest))
        if victim is None:
            return False
        self.remove(victim)
        victim.connection.close()
        return True

    def _longest_idle(self) -> Slot | None:
        """Return the proven connection that is idle longest, of the network with the most."""
        idle = {
            slot: since
            for slot in self._proven
            if (since := slot.connection.idle_since) is not None
        }
        count = Counter(slot.network for slot in idle)
        return max(idle, key=lambda slot: (count[slot.network], -idle[slot]), default=None)

    def _discard_unproven(self, slot: Slot) -> bool:
        group = self._unproven.get(slot.network, {})
        if slot not in group:
            return False
        del group[slot]
        self._unproven_count -= 1
        if not group:
            del self._unproven[slot.network]
        return True


Connect = Callable[[socket.socket, bytes], None]
"""Takes an accepted socket and the network that it comes from."""


class Listener:
    """Listening sockets whose connections are passed on while there are free slots."""

    def __init__(self, slots: Slots, connect: Connect) -> None:
        self._slots = slots
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._resume: asyncio.TimerHandle | None = None
        self._logged_at = -_LOG_INTERVAL_S

    async def listen(self, host: str, port: int) -> int:
        """Listen on all addresses of ``host`` and return the port; port 0 selects a free one."""
        infos = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(infos):
            try:
                sock = _listen(family, (address[0], port, *address[2:]))
            except OSError as error:
                # A name may have an IPv6 address on a machine without IPv6.
                if error.errno in _NO_ADDRESS and len(infos) > 1:
                    continue
                self.close()
                raise
            self._sockets.append(sock)
            port = sock.getsockname()[1]
        if not self._sockets:
            raise OSError(errno.EADDRNOTAVAIL, "no address of this host can be used")
        self._add_readers()
        return port

    def close(self) -> None:
        """Stop listening."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets = []

    def _add_readers(self) -> None:
        self._resume = None
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def _pause(self, seconds: float, reason: object) -> None:
        """Stop accepting for a time, with at most one log line per minute."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
        self._resume = self._loop.call_later(seconds, self._add_readers)
        now = time.monotonic()
        if now - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = now
            _log.warning("new connections wait, %d are open: %s", len(self._slots), reason)

    def _accept(self, listening: socket.socket) -> None:
        for number in range(_BATCH):
            if self._slots.full:
                if number:
                    return  # Close another connection only if one waits: the loop calls again.
                if not self._slots.make_room():
                    self._pause(_FULL_PAUSE_S, "all serve requests; raise max_connections")
                    return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                made_room = [self._slots.make_room() for _ in range(_BATCH)]
                reason = f"{error}; raise ulimit -n or lower max_connections"
                self._pause(_FULL_PAUSE_S if any(made_room) else _ERROR_PAUSE_S, reason)
                return
            sock.setblocking(False)
            self._connect(sock, _network(sock.family, address[0]))


async def open_transport(
    sock: socket.socket,
    protocol: asyncio.BaseProtocol,
    tls: ssl.SSLContext | None,
    handshake_s: float,
) -> None:
    """Connect an accepted socket to a protocol, after the TLS handshake if there is one."""
    loop = asyncio.get_running_loop()
    limit = {"ssl_handshake_timeout": handshake_s} if tls else {}
    await loop.connect_accepted_socket(lambda: protocol, sock, ssl=tls, **limit)


def _listen(family: int, address: Iterable[object]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(tuple(address))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _network(family: int, host: str) -> bytes:
    """Return the IPv4 address, or the /64 network of an IPv6 address."""
    if family == socket.AF_INET6:
        return socket.inet_pton(family, host.partition("%")[0])[:8]
    return host.encode()
