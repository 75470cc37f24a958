"""Machines as network namespaces on one switch: addresses, shaped links, NAT and lost lines.

Creating namespaces needs root, and the commands `ip`, `tc` and `nft`.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(name) for name in ("ip", "tc", "nft")),
    reason="network namespaces need root and the commands ip, tc and nft",
)
SWITCH_NETWORK, INNER_NETWORK = "10.88.0", "192.168.88"


def run(*command: str) -> None:
    """Run a command that sets up the network; its error output is part of the exception."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@dataclass
class Host:
    """A machine of the lab."""

    name: str
    namespace: str
    addresses: list[str] = field(default_factory=list)
    interface: str = "eth0"

    @property
    def prefix(self) -> list[str]:
        """The start of a command that runs in this machine."""
        return ["ip", "netns", "exec", self.namespace]

    def ip(self, *arguments: str) -> None:
        """Run `ip` in this machine."""
        run("ip", "-n", self.namespace, *arguments)

    def shape(self, mbit: float) -> None:
        """Limit what this machine sends to a rate."""
        rate, burst = f"{round(1000 * mbit)}kbit", f"{max(8, round(mbit))}kb"
        shaping = ["root", "tbf", "rate", rate, "burst", burst, "latency", "200ms"]
        run(*self.prefix, "tc", "qdisc", "replace", "dev", self.interface, *shaping)

    def cut(self) -> None:
        """Unplug this machine."""
        self.ip("link", "set", self.interface, "down")

    def restore(self) -> None:
        """Plug this machine in again."""
        self.ip("link", "set", self.interface, "up")


class NetworkLab:
    """Creates the machines of one test, and deletes them."""

    def __init__(self) -> None:
        self._id, self._count, self._namespaces = f"mel{os.getpid() % 100000}", 0, list[str]()
        self._switch = self._add_namespace("switch")
        run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "br0", "up")

    def close(self) -> None:
        """Delete all machines."""
        for namespace in self._namespaces:
            run("ip", "netns", "del", namespace)

    def host(
        self, name: str, *, ipv4: bool = True, ipv6: bool = False, mbit: float | None = None
    ) -> Host:
        """Add a machine to the switch; `mbit` shapes both directions of its link."""
        host = Host(name, self._add_namespace(name))
        port = self._plug(host, "eth0")
        self._count += 1
        if ipv4:
            self._address(host, f"{SWITCH_NETWORK}.{self._count}", 24)
        if ipv6:
            # Without the seconds in which the kernel looks for the same address elsewhere.
            self._address(host, f"fd88::{self._count}", 64, "nodad")
        if mbit is not None:
            host.shape(mbit)
            Host("switch", self._switch, interface=port).shape(mbit)
        return host

    def host_behind_nat(self, name: str) -> Host:
        """Add a machine that reaches the switch through a router with masquerading."""
        router = self.host(f"{name}-router")
        host = Host(name, self._add_namespace(name))
        pair = [f"{self._id}i{len(self._namespaces)}{side}" for side in "ab"]
        run("ip", "link", "add", pair[0], "type", "veth", "peer", "name", pair[1])
        for end, owner, interface, number in (
            (pair[0], router, "lan0", 1),
            (pair[1], host, "eth0", 2),
        ):
            run("ip", "link", "set", end, "netns", owner.namespace, "name", interface)
            owner.ip("addr", "add", f"{INNER_NETWORK}.{number}/24", "dev", interface)
            owner.ip("link", "set", interface, "up")
        host.addresses.append(f"{INNER_NETWORK}.2")
        host.ip("route", "add", "default", "via", f"{INNER_NETWORK}.1")
        run(*router.prefix, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for rule in (
            "add table ip nat",
            "add chain ip nat post { type nat hook postrouting priority 100 ; }",
            "add rule ip nat post oifname eth0 masquerade",
        ):
            run(*router.prefix, "nft", rule)
        return host

    def move(self, host: Host, interface: str = "wlan0") -> None:
        """Replace the interface of a machine by another one with another address."""
        host.ip("link", "del", host.interface)
        host.interface = interface
        host.addresses.clear()
        self._plug(host, interface)
        self._count += 1
        self._address(host, f"{SWITCH_NETWORK}.{self._count}", 24)

    def _add_namespace(self, name: str) -> str:
        namespace = f"{self._id}-{name}"
        run("ip", "netns", "add", namespace)
        self._namespaces.append(namespace)
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _plug(self, host: Host, interface: str) -> str:
        """Connect a new interface of a machine to the switch; return the port of the switch."""
        port = f"{self._id}p{self._count}{interface[0]}"
        end = f"{port}e"
        run("ip", "link", "add", end, "type", "veth", "peer", "name", port)
        run("ip", "link", "set", port, "netns", self._switch)
        run("ip", "-n", self._switch, "link", "set", port, "master", "br0", "up")
        run("ip", "link", "set", end, "netns", host.namespace, "name", interface)
        host.ip("link", "set", interface, "up")
        return port

    def _address(self, host: Host, address: str, bits: int, *flags: str) -> None:
        host.ip("addr", "add", f"{address}/{bits}", "dev", host.interface, *flags)
        host.addresses.append(address)


@contextmanager
def network_lab() -> Iterator[NetworkLab]:
    """Yield a lab that is deleted afterwards."""
    lab = NetworkLab()
    try:
        yield lab
    finally:
        lab.close()


@contextmanager
def cabled_host(name: str) -> Iterator[tuple[Host, str]]:
    """Yield a machine with a cable to this one, and the address of this one at the cable."""
    number = os.getpid() % 16384
    here, there = (f"10.87.{number >> 6}.{4 * (number & 63) + side}" for side in (1, 2))
    host = Host(name, f"mel{number}-{name}", [there])
    ends = f"mel{number}h", f"mel{number}t"
    run("ip", "netns", "add", host.namespace)
    try:
        run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        run("ip", "link", "set", ends[1], "netns", host.namespace, "name", host.interface)
        run("ip", "addr", "add", f"{here}/30", "dev", ends[0])
        run("ip", "link", "set", ends[0], "up")
        host.ip("addr", "add", f"{there}/30", "dev", host.interface)
        host.ip("link", "set", "lo", "up")
        host.restore()
        yield host, here
    finally:
        # Both ends of the cable go with it.
        run("ip", "netns", "del", host.namespace)
