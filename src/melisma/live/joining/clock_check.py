"""Whether the clock of this device is right: by its year, by time servers, by the orchestrator.

Training uses monotonic clocks, so a wrong clock does it no harm. Hours of use and logs need it.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from melisma.axon import Address
from melisma.axon.transport.tls import client_context, fingerprint

OLDEST_S: Final = 1_735_689_600  # 2025-01-01: a clock before was never set
LATEST_S: Final = 2_524_608_000  # 2050-01-01
MAX_DIFFERENCE_S: Final = 30.0
TIMEOUT_S: Final = 5.0
MAX_HEAD_BYTES: Final = 16 << 10
SET_CLOCK: Final = "set it, such as by: sudo timedatectl set-ntp true"
USES: Final = "--hours and logs use it, training does not"


def is_synchronized(run: "Callable[[], str] | None" = None) -> bool | None:
    """Return whether the system keeps the clock right by time servers; None if it is not known."""
    answer = (run or _ask_timedatectl)().strip()
    return {"yes": True, "no": False}.get(answer)


def _ask_timedatectl() -> str:
    command = shutil.which("timedatectl")
    if command is None:
        return ""
    try:
        done = subprocess.run(
            [command, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("ascii", "replace")


def find_clock_problem(now_s: float, synchronized: bool | None) -> tuple[str, str]:
    """Return the problem of a clock with its fix, or nothing; and the time that it shows."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))
    if not OLDEST_S <= now_s <= LATEST_S:
        return f"cannot be right: {SET_CLOCK}; {USES}", shown
    if synchronized is False:
        return f"is not synchronised with time servers: {SET_CLOCK}; {USES}", shown
    return "", shown


def describe_difference(ahead_s: float, synchronized: bool | None) -> str:
    """Return what to mend if the clock of this device is `ahead_s` ahead; empty if it is close."""
    if abs(ahead_s) <= MAX_DIFFERENCE_S:
        return ""
    direction = "ahead of" if ahead_s > 0 else "behind"
    difference = f"this device is {abs(ahead_s):,.0f} s {direction} the orchestrator"
    if synchronized:
        return (
            f"{difference}, and synchronised with time servers: set the clock of the orchestrator"
        )
    return f"{difference}: where the clock is wrong, {SET_CLOCK}; {USES}"


def measure_clock_difference(
    address: str, certificate: Path | None = None, now_s: Callable[[], float] = time.time
) -> float | None:
    """Return the seconds by which this clock is ahead of a worker's; None if it does not report.

    `address` has the fingerprint of the worker. The header of any response to GET has its time in
    whole seconds, also that of one that refuses the caller.
    """
    parsed = Address.parse(address)
    began_s = now_s()
    try:
        head = _request_head(parsed, certificate)
    except OSError:
        return None
    ended_s = now_s()
    for line in head.decode("latin-1").split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "date":
            try:
                shown_s = parsedate_to_datetime(value.strip()).timestamp()
            except ValueError:
                return None
            return (began_s + ended_s) / 2 - (shown_s + 0.5)
    return None


def _request_head(address: Address, certificate: Path | None) -> bytes:
    """Return the head of the response to a GET; empty from a server with another certificate."""
    request = f"GET / HTTP/1.1\r\nhost: {address.host}\r\nconnection: close\r\n\r\n"
    with (
        socket.create_connection((address.host, address.port), TIMEOUT_S) as sock,
        client_context(address.fingerprint, certificate).wrap_socket(sock) as tls,
    ):
        if fingerprint(tls.getpeercert(binary_form=True) or b"") != address.fingerprint:
            return b""
        tls.sendall(request.encode("latin-1"))
        head = b""
        while b"\r\n\r\n" not in head and len(head) < MAX_HEAD_BYTES:
            part = tls.recv(4096)
            if not part:
                break
            head += part
    return head.partition(b"\r\n\r\n")[0]
