"""Authentication of callers by a shared secret, or by tokens issued from it.

The secret itself is a token. Issued tokens have the form ``NAME.EXPIRY.NONCE.MAC``: EXPIRY is in
seconds since 1970 by the worker's clock (0: never), and NONCE starts with ``once`` for a token for
a single call. The worker stores only the nonces of used single-call tokens.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from math import isfinite

from melisma.axon.server.authentication import ANONYMOUS, OWNER, Credentials
from melisma.errors import SettingError, UnauthorizedError


def issue_token(
    secret: str, name: str, *, lifetime_s: float | None = None, once: bool = False
) -> str:
    """Return a token for ``name`` that a worker with this secret accepts."""
    if not re.fullmatch(r"[\w-]+", name, re.ASCII):
        raise SettingError(f"token name {name!r} is invalid: use letters, digits, _ and -")
    if name in (OWNER, ANONYMOUS):
        raise SettingError(f"token name {name!r} is reserved: choose another name")
    if lifetime_s is not None and not isfinite(lifetime_s):
        raise SettingError(f"lifetime_s is {lifetime_s}; expected seconds, or None for no limit")
    expiry = int(time.time() + lifetime_s) if lifetime_s is not None else 0
    nonce = ("once" if once else "many") + secrets.token_hex(8)
    body = f"{name}.{expiry}.{nonce}"
    return f"{body}.{_mac(secret, body)}"


class TokenChecker:
    """The authenticator of a worker with a secret, or of one that accepts all callers."""

    def __init__(
        self, secret: str | None, retry_s: float = 60.0, now: Callable[[], float] = time.time
    ) -> None:
        if secret is not None and not secret:
            raise SettingError("the token is empty: pass None to allow all callers")
        self._secret = secret
        self._now = now
        self._retry_s = retry_s
        self._used: dict[str, tuple[str, float]] = {}

    def check(
        self, credentials: Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        """Return the name of the caller; raise `UnauthorizedError` for an invalid token.

        A single-call token stays valid for retries with the same call id: for ``retry_s`` if the
        request ``starts_call``, without limit otherwise.
        """
        if self._secret is None:
            return ANONYMOUS
        token = credentials.token
        if token is None:
            raise UnauthorizedError("this worker requires a token: connect(address, token=...)")
        if hmac.compare_digest(token.encode(), self._secret.encode()):
            return OWNER
        body, _, mac = token.rpartition(".")
        if not hmac.compare_digest(mac.encode(), _mac(self._secret, body).encode()):
            raise UnauthorizedError(
                "the token is invalid for this worker: check the token and the address"
            )
        name, expiry, nonce = body.split(".")
        if int(expiry) and self._now() > int(expiry):
            raise UnauthorizedError(f"the token of {name} has expired: request a new one")
        if nonce.startswith("once"):
            if not call_id:
                raise UnauthorizedError(
                    f"the token of {name} is for one call, but the request has no call id"
                )
            first_id, first_at = self._used.setdefault(nonce, (call_id, self._now()))
            late = starts_call and self._now() - first_at >= self._retry_s
            if first_id != call_id or late:
                raise UnauthorizedError(
                    f"the token of {name} was for one call and has been used: request a new one"
                )
        return name


def _mac(secret: str, body: str) -> str:
    return hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
