"""Authentication of callers: the credentials of a request, and the interface of their check."""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

OWNER: Final = "owner"
"""The name of the caller that owns the worker, such as one that sends its secret."""
ANONYMOUS: Final = "anonymous"
"""The name of all callers if the worker requires no credentials."""
OnRefused = Callable[[str | None, str], None]
"""Receives the host of a caller that is refused, None if it is unknown, and the reason."""


class Credentials(msgspec.Struct, frozen=True, gc=False):
    """The proofs of identity that a request carries.

    ``authorization`` is the header of that name. ``fingerprint`` is that of the certificate with
    which the caller opened the connection: TLS has proved that the caller has its key. ``host`` is
    the one that it called from, which proves nothing.
    """

    authorization: str | None = None
    fingerprint: str | None = None
    host: str | None = None

    @property
    def token(self) -> str | None:
        """The token in the header; None without one."""
        return self.authorization.removeprefix("Bearer ") if self.authorization else None


class Authenticator(Protocol):
    """Names the caller of each request."""

    def check(
        self, credentials: Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        """Return the name of the caller; raise `UnauthorizedError` to refuse the request.

        It is called for each request, also for those on open connections. Names are trusted: the
        caller named `OWNER` may fetch and cancel the calls of all others. ``call_id`` is empty and
        ``starts_call`` is False for requests that are no calls, such as downloads.
        """
