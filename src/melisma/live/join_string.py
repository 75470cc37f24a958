"""Join strings: addresses, fingerprint and token of an orchestrator as one word.

``mel1`` and base64url without padding of: flags (1 byte, 0), port (2), the first 16 bytes of the
SHA-256 of the certificate, the token (12), the number of IPv4 addresses (1), those (4 each), IPv6
addresses (16 each), and a checksum (2) against typing errors. A string has fewer than 120
characters. It contains a token: whoever has it can enrol a device.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from melisma.errors import SettingError

PREFIX: Final = "mel1"
MAX_CHARS: Final = 119
FINGERPRINT_BYTES: Final = 16
TOKEN_BYTES: Final = 12
CHECKSUM_BYTES: Final = 2
_HEAD_BYTES: Final = 1 + 2 + FINGERPRINT_BYTES + TOKEN_BYTES + 1
_ADDRESSES_BYTES: Final = (MAX_CHARS - len(PREFIX)) * 6 // 8 - _HEAD_BYTES - CHECKSUM_BYTES


@dataclass(frozen=True)
class JoinString:
    """The contents of a join string.

    `fingerprint_prefix` is the start of a fingerprint as in addresses: ``sha256:`` and 32 digits.
    `token` is the join token as in requests. `hosts` are IP addresses, the most useful first within
    IPv4 and IPv6.
    """

    port: int
    fingerprint_prefix: str
    token: str = field(repr=False)
    hosts: tuple[str, ...]

    @classmethod
    def create(
        cls, port: int, fingerprint: str, token: str, hosts: Sequence[str]
    ) -> tuple["JoinString", list[str]]:
        """Return a join string with as many hosts as fit, and the hosts that are left out.

        Raises `SettingError` without hosts.
        """
        if not hosts:
            raise SettingError(
                "this machine has no address that devices could reach: connect it to a network"
            )
        kept, left_out, room = list[str](), list[str](), _ADDRESSES_BYTES
        for host in dict.fromkeys(hosts):
            size = len(ip_address(host).packed)
            (kept if size <= room else left_out).append(host)
            room -= size if size <= room else 0
        prefix = fingerprint[: len("sha256:") + 2 * FINGERPRINT_BYTES]
        # In the order in which they are decoded.
        kept.sort(key=lambda host: ip_address(host).version)
        return cls(port, prefix, token, tuple(kept)), left_out

    def __str__(self) -> str:
        addresses = [ip_address(host) for host in self.hosts]
        body = b"".join(
            (
                b"\0",
                self.port.to_bytes(2, "big"),
                bytes.fromhex(self.fingerprint_prefix.removeprefix("sha256:")),
                base64.urlsafe_b64decode(self.token),
                bytes([sum(isinstance(address, IPv4Address) for address in addresses)]),
                *(address.packed for address in addresses),
            )
        )
        text = base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")
        return PREFIX + text

    @classmethod
    def parse(cls, text: str) -> "JoinString":
        """Read a join string; raise `SettingError` if it is incomplete or mistyped."""
        body = _decode(text)
        if body[0] != 0:
            raise SettingError(
                "the join string needs a newer version of melisma: install the orchestrator's"
            )
        fingerprint, token = body[3:19], body[19:31]
        count, packed = body[31], body[_HEAD_BYTES:]
        old, new = packed[: 4 * count], packed[4 * count :]
        if len(old) != 4 * count or len(new) % 16 or not packed:
            raise _invalid("its list of addresses is incomplete")
        hosts = [str(IPv4Address(old[i : i + 4])) for i in range(0, len(old), 4)]
        hosts += [str(IPv6Address(new[i : i + 16])) for i in range(0, len(new), 16)]
        return cls(
            int.from_bytes(body[1:3], "big"),
            f"sha256:{fingerprint.hex()}",
            base64.urlsafe_b64encode(token).decode(),
            tuple(hosts),
        )


def _decode(text: str) -> bytes:
    """Return the bytes of a join string without its checksum."""
    text = re.sub(r"\s", "", text)
    if not text.startswith(PREFIX):
        raise _invalid(f"it does not start with {PREFIX}")
    if len(text) > MAX_CHARS or not re.fullmatch(r"[\w-]+", text, re.ASCII):
        raise _invalid("it is too long, or has characters that none has")
    encoded = text.removeprefix(PREFIX)
    try:
        content = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        raise _invalid("a character is missing") from None
    body, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(body) < _HEAD_BYTES or checksum != _checksum(body):
        raise _invalid("a character is missing or mistyped")
    return body


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:CHECKSUM_BYTES]


def _invalid(reason: str) -> SettingError:
    # Without the string itself, which contains a token.
    return SettingError(
        f"the join string is invalid: {reason}; copy the whole string that the orchestrator shows"
    )
