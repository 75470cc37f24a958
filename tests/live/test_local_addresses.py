"""The addresses of this machine, beside those that psutil reads."""

import socket
from ipaddress import ip_address

import psutil
import pytest

from melisma.live import local_addresses as module
from melisma.live.local_addresses import InterfaceAddress, interface_addresses, local_addresses


def test_all_addresses_are_those_that_psutil_reads() -> None:
    running = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    expected = {
        (name, item.address.partition("%")[0])
        for name, items in psutil.net_if_addrs().items()
        for item in items
        if name in running and item.family in (socket.AF_INET, socket.AF_INET6)
    }
    assert {(item.interface, str(item.address)) for item in interface_addresses()} == expected
    assert expected


def test_addresses_are_ordered_by_use(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "127.0.0.1": "lo",
        "172.17.0.1": "docker0",
        "2a00:1450::1": "eth0",
        "fd00::1": "eth0",
        "fe80::1": "eth0",
        "169.254.3.4": "eth0",
        "8.8.8.8": "eth1",
        "100.100.1.2": "tailscale0",
        "192.168.1.7": "wlan0",
        "::1": "lo",
    }
    items = [InterfaceAddress(name, ip_address(text)) for text, name in found.items()]
    monkeypatch.setattr(module, "interface_addresses", lambda: items)
    assert local_addresses() == [
        "192.168.1.7",
        "100.100.1.2",
        "8.8.8.8",
        "2a00:1450::1",
        "fd00::1",
        "172.17.0.1",
    ]
