"""Addresses of workers: ``http[s]://[TOKEN@]HOST:PORT[/via/NAME][#sha256:FINGERPRINT]``.

- ``https`` with a fingerprint: TLS with exactly that certificate. Without a fingerprint, the
  certificate must be signed by an authority that this machine trusts.
- ``/via/NAME``: the worker NAME behind the relay at HOST:PORT. With ``http`` and a fingerprint,
  TLS runs from caller to worker and the relay forwards encrypted bytes. With ``https``, TLS runs
  from caller to relay, and the relay can read the forwarded bytes.
"""

import re
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urlsplit

from melisma.errors import SettingError

DEFAULT_PORT = 8000
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
_CALL_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_GRAMMAR = "http[s]://[TOKEN@]HOST:PORT[/via/NAME][#sha256:FINGERPRINT]"


@dataclass(frozen=True)
class Address:
    """The parts of an address."""

    host: str
    port: int = DEFAULT_PORT
    tls: bool = False
    fingerprint: str | None = None
    token: str | None = field(default=None, repr=False)
    via: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse an address; a bare ``HOST`` or ``HOST:PORT`` means plain HTTP."""
        if not isinstance(text, str):
            raise SettingError(f"{text!r} is not an address: pass a str such as {_GRAMMAR}")
        text = text.strip()
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port or DEFAULT_PORT
        except ValueError as error:
            raise SettingError(
                f"{_hide_token(text)} is not an address ({error}): use {_GRAMMAR}"
            ) from error
        via = re.fullmatch(r"/via/([\w.-]+)", parts.path, re.ASCII)
        fingerprint = parts.fragment or None
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.password is not None
            or re.search(r"\s", text)
            or parts.query
            or (parts.path not in ("", "/") and not via)
            or (fingerprint and not _FINGERPRINT.fullmatch(fingerprint))
        ):
            raise SettingError(f"{_hide_token(text)} is not an address: use {_GRAMMAR}")
        if fingerprint and parts.scheme == "http" and not via:
            raise SettingError(f"{_hide_token(text)} has a fingerprint but no TLS: use https://")
        return cls(
            parts.hostname,
            port,
            parts.scheme == "https",
            fingerprint,
            unquote(parts.username) if parts.username else None,
            via[1] if via else None,
        )

    def without_token(self) -> "Address":
        """Return the address without its token, for logs and error messages."""
        return replace(self, token=None)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return "".join(
            (
                "https://" if self.tls else "http://",
                f"{quote(self.token, safe='')}@" if self.token else "",
                f"{host}:{self.port}",
                f"/via/{self.via}" if self.via else "",
                f"#{self.fingerprint}" if self.fingerprint else "",
            )
        )


def _hide_token(text: str) -> str:
    """Return the address quoted for an error message, without its token."""
    return repr(re.sub(r"//[^/]*@", "//...@", text))


def host_and_port(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, an interface and port to listen on."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise SettingError(
            f"{_hide_token(text)} is not HOST:PORT: use 0.0.0.0:8000, or port 0 for a free one"
        )
    return host.strip("[]"), int(port)


def check_call_id(call_id: str) -> None:
    """Raise `SettingError` if ``call_id`` is invalid."""
    if not _CALL_ID.fullmatch(call_id):
        raise SettingError(f"{call_id!r} is not a call id: use up to 64 letters, digits, . : _ -")


def check_name(name: str) -> None:
    """Raise `SettingError` if ``name`` is not valid for a worker; names are part of addresses."""
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"{name!r} is not a name for a worker: use up to 64 letters, digits, . _ -"
        )
