"""Limits of a worker."""

import resource
from dataclasses import dataclass, field


def default_max_connections() -> int:
    """Return three quarters of the file descriptors of this process, at most 10,000."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 10_000
    return max(1, min(3 * soft // 4, 10_000))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a worker; a request that exceeds one is answered with an error."""

    max_connections: int = field(default_factory=default_max_connections)
    """Open connections; at the limit, idle ones are closed for new ones, and the rest wait."""
    max_calls: int = 128
    """Concurrent calls; further ones get a `BusyError`."""
    max_calls_per_caller: int = 64
    """Concurrent calls of one caller, from the start of the body; further ones get a `BusyError`.

    Callers without a token are told apart by their host. The owner of the secret is not limited.
    """
    max_deadline_s: float = 604_800.0
    """The longest deadline of a call, a week; a longer one is reduced to it, in seconds."""
    max_body_bytes: int = 4 << 30
    """Size of a request; a larger one gets a `TooLargeError` before its body is received."""
    max_receiving_bytes: int = 1 << 30
    """Size of all bodies that are being received; further ones wait before they are sent."""
    max_tree_bytes: int = 16 << 20
    """Size of a request without arrays and large byte strings."""
    head_s: float = 10.0
    """Time for a request head, for the TLS handshake and to the first valid request, in seconds."""
    min_bytes_per_s: float = 1024.0
    """Minimum rate of a body, checked every ``head_s``; below it, `TooSlowError`."""
    idle_s: float = 300.0
    """Time that a connection may be idle between requests, in seconds."""
    remember_s: float = 60.0
    """Time that an ended call is remembered, so that a retry does not run again, in seconds."""
    remember_calls: int = 65536
    """Number of ended calls that are remembered."""
    remember_bytes: int = 64 << 20
    """Size of the outcomes that are remembered; of further calls only the id is."""
    keep_s: float = 3600.0
    """Time that a duplex result waits to be fetched, in seconds."""
    keep_memory_bytes: int = 64 << 20
    """Size of waiting results in memory; further ones are written to disk."""
    keep_disk_bytes: int = 8 << 30
    """Size of waiting results on disk; further ones end with a `StorageError`."""
    shutdown_s: float = 10.0
    """Time that running calls have to end when the worker stops, in seconds."""

    @property
    def min_rate(self) -> tuple[float, float]:
        """A number of seconds and the bytes that must be transferred in that time."""
        return self.head_s, self.head_s * self.min_bytes_per_s
