"""Finding the address at which an orchestrator answers: all are tried at once."""

import queue
import socket
import ssl
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from melisma.axon import Address
from melisma.axon.transport.tls import client_context, fingerprint
from melisma.errors import SettingError, UnreachableError

REACH_S = 10.0
"""Time to connect and to complete the TLS handshake, in seconds."""
MIN_PREFIX_CHARS = len("sha256:") + 32


@dataclass(frozen=True)
class FailedAddress:
    """An address at which the orchestrator was not reached, and why."""

    address: str
    reason: str

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


@dataclass(frozen=True)
class ReachedOrchestrator:
    """The address that answered first, with the whole fingerprint; and those that failed before."""

    address: str
    fingerprint: str
    failures: tuple[FailedAddress, ...]


def reach(
    hosts: Sequence[str], port: int, fingerprint_prefix: str, timeout_s: float = REACH_S
) -> ReachedOrchestrator:
    """Connect to all hosts in parallel; return the first one with the expected certificate.

    `fingerprint_prefix` is at least 128 bits of the fingerprint, or all of it. Nothing is sent but
    the TLS handshake. Raises `UnreachableError` with the reason for each address.
    """
    _require_length(fingerprint_prefix)
    results: queue.SimpleQueue[ReachedOrchestrator | FailedAddress] = queue.SimpleQueue()
    for host in hosts:

        def try_host(host: str = host) -> None:
            results.put(_try(host, port, fingerprint_prefix, timeout_s))

        threading.Thread(target=try_host, name="reach", daemon=True).start()
    failures: list[FailedAddress] = []
    for _ in hosts:
        result = results.get()
        if isinstance(result, ReachedOrchestrator):
            return ReachedOrchestrator(result.address, result.fingerprint, tuple(failures))
        failures.append(result)
    # Each reason ends with a semicolon, as the lines may be printed as one.
    reasons = "\n".join(f"  {failure};" for failure in failures)
    addresses = "its address" if len(hosts) == 1 else f"any of its {len(hosts)} addresses"
    raise UnreachableError(
        f"the orchestrator did not answer at {addresses}:\n{reasons}\n"
        "check that it is running, that this device is in the same network or VPN, and that the "
        f"orchestrator's firewall allows TCP port {port}"
    )


def reach_each(
    hosts: Sequence[str], port: int, fingerprint_prefix: str, timeout_s: float = REACH_S
) -> list[ReachedOrchestrator | FailedAddress]:
    """Connect to all hosts in parallel, as `reach` does; return the result of each, in order."""
    _require_length(fingerprint_prefix)
    with ThreadPoolExecutor(max(len(hosts), 1)) as pool:
        return list(pool.map(lambda host: _try(host, port, fingerprint_prefix, timeout_s), hosts))


def _require_length(fingerprint_prefix: str) -> None:
    if len(fingerprint_prefix) < MIN_PREFIX_CHARS:
        raise SettingError(f"{fingerprint_prefix!r} is too short: use at least 32 digits")


def _try(
    host: str, port: int, prefix: str, timeout_s: float
) -> ReachedOrchestrator | FailedAddress:
    shown = str(Address(host, port)).removeprefix("http://")
    try:
        with (
            socket.create_connection((host, port), timeout_s) as sock,
            client_context(prefix).wrap_socket(sock) as tls,
        ):
            actual = fingerprint(tls.getpeercert(binary_form=True) or b"")
    except ssl.SSLError as error:
        return FailedAddress(shown, f"answers without valid TLS ({error.reason or error})")
    except TimeoutError:
        return FailedAddress(shown, f"no answer within {timeout_s:g} s")
    except OSError as error:
        return FailedAddress(shown, (error.strerror or str(error)).lower())
    if not actual.startswith(prefix):
        return FailedAddress(
            shown, f"another server answers: its certificate is {actual[:23]}, not {prefix[:23]}"
        )
    return ReachedOrchestrator(str(Address(host, port, True, actual)), actual, ())
