"""What a worker takes on before it says no."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that answer with an error instead of letting the worker die."""

    max_calls: int = 128
    """Calls at once; one more is answered `BusyError`."""
    max_body_bytes: int = 4 << 30
    """Bytes of one request; more is answered `TooLargeError` before it is received."""
    max_tree_bytes: int = 16 << 20
    """Bytes of one request outside arrays and large byte strings."""
    head_s: float = 10.0
    """Seconds that a request head may take to arrive."""
    min_bytes_per_s: float = 1024.0
    """Slowest rate of a body, looked at every ``head_s``; below it, `TooSlowError`."""
    idle_s: float = 300.0
    """Seconds that a connection may stay open between requests."""
    remember_s: float = 60.0
    """Seconds that an ended call is remembered, so that a retry is answered and not run."""
    remember_calls: int = 65536
    """Calls remembered at the most."""
    remember_bytes: int = 64 << 20
    """Bytes of their outcomes remembered at the most; of others only the id."""
    keep_s: float = 3600.0
    """Seconds that a duplex result waits to be fetched."""
    keep_memory_bytes: int = 64 << 20
    """Bytes of waiting results in memory; further ones go to disk."""
    keep_disk_bytes: int = 8 << 30
    """Bytes of waiting results on disk; further ones are answered `StorageError`."""
    shutdown_s: float = 10.0
    """Seconds that running calls get to end when the worker stops."""

    @property
    def min_rate(self) -> tuple[float, float]:
        """Seconds, and the bytes that have to come or go in that time at the least."""
        return self.head_s, self.head_s * self.min_bytes_per_s
