"""The IP addresses of this machine at which other devices may reach it.

They are read with ``getifaddrs`` of the C library, which Linux and macOS have: the standard library
has no function for it.
"""

import ctypes
import ctypes.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from socket import AF_INET, AF_INET6
from typing import Final

IFF_UP: Final = 0x1
IFF_RUNNING: Final = 0x40
BRIDGES: Final = ("docker", "br-", "veth", "virbr", "lxc", "lxd", "cni", "podman")
"""The start of the names of interfaces to containers and virtual machines on this machine."""
_VPN: Final = ip_network("100.64.0.0/10")


@dataclass(frozen=True)
class InterfaceAddress:
    """An address of a network interface that is up."""

    interface: str
    address: IPv4Address | IPv6Address


def local_addresses() -> list[str]:
    """Return the addresses of this machine for other devices, the most useful first.

    Those of the local network come first, then VPN, public and IPv6 addresses, then bridges to
    containers. Loopback and link-local addresses are left out.
    """
    ranked = sorted(
        (item for item in interface_addresses() if _is_reachable(item.address)), key=_rank
    )
    return list(dict.fromkeys(str(item.address) for item in ranked))


def _is_reachable(address: IPv4Address | IPv6Address) -> bool:
    return not (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
    )


def _rank(item: InterfaceAddress) -> int:
    address = item.address
    if item.interface.startswith(BRIDGES):
        return 5
    if isinstance(address, IPv6Address):
        return 3 if address.is_global else 4
    if address in _VPN:
        return 1
    return 0 if address.is_private else 2


class _SocketAddress(ctypes.Structure):
    _fields_ = [("family", ctypes.c_uint8 * 2), ("data", ctypes.c_uint8 * 26)]


class _Interface(ctypes.Structure):
    pass


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SocketAddress)),
]


def interface_addresses() -> list[InterfaceAddress]:
    """Return all IP addresses of all interfaces that are up."""
    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if library.getifaddrs(ctypes.byref(first)):
        number = ctypes.get_errno()
        raise OSError(number, "the addresses of this machine cannot be read")
    try:
        return list(_addresses(first))
    finally:
        library.freeifaddrs(first)


def _addresses(interface: "ctypes._Pointer[_Interface]") -> Iterator[InterfaceAddress]:
    while bool(interface):  # False for the null pointer at the end.
        item = interface.contents
        up = item.flags & IFF_UP and item.flags & IFF_RUNNING
        if up and item.address and (packed := _pack_address(item.address.contents)):
            yield InterfaceAddress(item.name.decode(errors="replace"), ip_address(packed))
        interface = item.next


def _pack_address(address: _SocketAddress) -> bytes | None:
    # On macOS the family is the second byte, after the length.
    raw = bytes(address.family)
    family = raw[1] if sys.platform == "darwin" else int.from_bytes(raw, sys.byteorder)
    data = bytes(address.data)
    if family == AF_INET:
        return data[2:6]  # After the port.
    return data[6:22] if family == AF_INET6 else None  # After port and flow information.
