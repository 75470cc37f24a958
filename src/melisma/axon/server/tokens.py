"""Who may call: a shared secret, or tokens issued from it.

The secret itself is a token. From it come tokens with a name, a lifetime, and if wanted for one
call only: ``NAME.EXPIRY.NONCE.MAC``, where EXPIRY is on the clock of the worker that checks it
(0: never) and NONCE starts with ``once`` for a single use. Nothing is stored but the nonces used.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from typing import Final

from melisma.errors import SettingError, UnauthorizedError

OWNER: Final = "owner"
"""The name of a caller that shows the secret itself."""
ANONYMOUS: Final = "anyone"
"""The name of a caller where no token is asked for."""


def issue_token(
    secret: str, name: str, *, lifetime_s: float | None = None, once: bool = False
) -> str:
    """A token for ``name`` that a worker with this secret accepts."""
    if not re.fullmatch(r"[\w-]+", name, re.ASCII):
        raise SettingError(f"the name of a token is letters, digits, _ and -, not {name!r}")
    if name in (OWNER, ANONYMOUS):
        raise SettingError(f"{name!r} is the name of callers without such a token")
    expiry = int(time.time() + lifetime_s) if lifetime_s is not None else 0
    nonce = ("once" if once else "many") + secrets.token_hex(8)
    body = f"{name}.{expiry}.{nonce}"
    return f"{body}.{_mac(secret, body)}"


class TokenChecker:
    """Decides whether a token opens this worker."""

    def __init__(
        self, secret: str | None, retry_s: float = 60.0, now: Callable[[], float] = time.time
    ) -> None:
        if secret is not None and not secret:
            raise SettingError("an empty token would let everyone in: use None to say so")
        self._secret = secret
        self._now = now
        self._retry_s = retry_s
        self._used: dict[str, tuple[str, float]] = {}

    def check(self, header: str | None, call_id: str = "", *, runs: bool = True) -> str:
        """The name of the caller; an `UnauthorizedError` says what is wrong with its token.

        A token for one call keeps opening that call, whose retries have the same id: as long as
        the worker remembers it where something ``runs``, else without limit.
        """
        if self._secret is None:
            return ANONYMOUS
        if not header:
            raise UnauthorizedError("this worker asks for a token: connect(address, token=...)")
        token = header.removeprefix("Bearer ")
        if hmac.compare_digest(token.encode(), self._secret.encode()):
            return OWNER
        body, _, mac = token.rpartition(".")
        if not hmac.compare_digest(mac.encode(), _mac(self._secret, body).encode()):
            raise UnauthorizedError("the token is not one of this worker's")
        name, expiry, nonce = body.split(".")
        if int(expiry) and self._now() > int(expiry):
            raise UnauthorizedError(f"the token of {name} has expired: ask for a new one")
        if nonce.startswith("once"):
            if not call_id:
                raise UnauthorizedError(f"the token of {name} is for one call, and this has no id")
            first_id, first_at = self._used.setdefault(nonce, (call_id, self._now()))
            late = runs and self._now() - first_at >= self._retry_s
            if first_id != call_id or late:
                raise UnauthorizedError(f"the token of {name} was for one call and has been used")
        return name


def _mac(secret: str, body: str) -> str:
    return hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
