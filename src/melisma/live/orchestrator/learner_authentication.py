"""Authentication of the callers of an orchestrator.

`LearnerTokens` is for the processes of one machine. `DeviceAuthenticator` is for other devices:

===============================  ==========================  ====================================
a caller shows                   its name is                 it may
===============================  ==========================  ====================================
a certificate of the registry    the name in the registry    call the methods of learners
a certificate and a join token   ``joining:`` FINGERPRINT    call `enroll`
the owner's token                ``owner``                   ask for the status
nothing                          ``anonymous``, if allowed   pair by a code
===============================  ==========================  ====================================

The name decides what a caller may do: each service exposes its methods with a check such as
`check_learner`, which refuses other callers before the rest of their request is received.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final

from melisma.axon import Credentials
from melisma.axon.server.authentication import ANONYMOUS, OWNER, OnRefused
from melisma.errors import RefusedError, UnauthorizedError
from melisma.live.join_string import TOKEN_BYTES
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.orchestrator.registry import RESERVED_NAMES, Registry, unique_name

JOINING: Final = "joining:"
"""The start of the name of a caller with a join token; no learner can have such a name."""


class LearnerTokens:
    """Names the learners of one run by a random token of each.

    For learners that are processes of this machine. There is no secret from which a token for
    another name could be issued.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._tokens = {name: secrets.token_urlsafe(24) for name in names}
        # Looked up by a digest, so that the time of a lookup reveals nothing about a token.
        self._names = {_digest(token): name for name, token in self._tokens.items()}

    def token(self, name: str) -> str:
        """Return the token of a learner, for its process alone."""
        return self._tokens[name]

    def check(
        self, credentials: Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        """Return the name of the learner that calls."""
        del call_id, starts_call
        name = self._names.get(_digest(credentials.token or ""))
        if name is None:
            raise UnauthorizedError(
                "the token is missing or not of a learner of this run: learners are started by it"
            )
        return name


class JoinTokens:
    """The join tokens that are valid now, each for any number of devices or for one."""

    def __init__(self) -> None:
        self._device: dict[bytes, str | None] = {}

    def issue(self, *, once: bool = False) -> str:
        """Return a new token; with `once` it belongs to the first device that shows it."""
        token = base64.urlsafe_b64encode(secrets.token_bytes(TOKEN_BYTES)).decode()
        self._device[_digest(token)] = "" if once else None
        return token

    def accept(self, token: str, fingerprint: str) -> bool:
        """Return whether a device may enrol with a token."""
        digest = _digest(token)
        if digest not in self._device:
            return False
        if self._device[digest] == "":
            self._device[digest] = fingerprint
        return self._device[digest] in (None, fingerprint)

    def revoke_all(self) -> None:
        """Make all tokens invalid, such as when the run begins to finish."""
        self._device.clear()


class DeviceAuthenticator:
    """Names devices by their certificates; see the table of this module.

    `on_refused` receives each refusal.
    A device keeps the name under which it called first: a rename holds from the next run on. No
    other device gets that name in this run, not even if its owner was renamed or revoked. A revoked
    device is refused from its next request on.
    """

    def __init__(
        self,
        registry: Registry,
        tokens: JoinTokens,
        *,
        owner_token: str | None = None,
        allow_anonymous: bool = False,
        on_refused: OnRefused = lambda _host, _reason: None,
    ) -> None:
        self._registry, self._tokens, self._on_refused = registry, tokens, on_refused
        self._owner_token, self._allow_anonymous = owner_token, allow_anonymous
        self._names: dict[str, str] = {}  # of this run, by fingerprint

    def keep_names(self, learners: Iterable[Mailbox]) -> None:
        """Let devices keep the names that they have in a run that is resumed."""
        for mailbox in learners:
            if mailbox.fingerprint is not None:
                self._names[mailbox.fingerprint] = mailbox.name

    def names_in_use(self) -> set[str]:
        """Return the names that devices have in this run."""
        return set(self._names.values())

    def check(
        self, credentials: Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        """Return the name of the caller; raise `UnauthorizedError` with the fix."""
        del call_id, starts_call
        try:
            return self._name(credentials)
        except UnauthorizedError as error:
            self._on_refused(credentials.host, str(error))
            raise

    def _name(self, credentials: Credentials) -> str:
        token, fingerprint = credentials.token, credentials.fingerprint
        if token is not None:
            return self._name_by_token(token, fingerprint)
        if fingerprint is not None:
            return self._name_by_certificate(fingerprint)
        if self._allow_anonymous:
            return ANONYMOUS
        raise UnauthorizedError("this orchestrator requires a certificate: use melisma join STRING")

    def _name_by_token(self, token: str, fingerprint: str | None) -> str:
        owner = self._owner_token
        if owner is not None and hmac.compare_digest(token.encode(), owner.encode()):
            return OWNER
        if fingerprint is not None and self._tokens.accept(token, fingerprint):
            return JOINING + fingerprint
        raise UnauthorizedError(
            "the token is invalid or no longer valid: ask the owner of the orchestrator for its "
            "current join string"
        )

    def _name_by_certificate(self, fingerprint: str) -> str:
        learner = self._registry.find(fingerprint)
        if learner is None:
            raise UnauthorizedError(
                "this orchestrator does not know the identity of this device: use "
                "melisma join STRING with its current join string"
            )
        if learner.revoked_at is not None:
            raise UnauthorizedError(learner.revocation)
        if fingerprint not in self._names:
            self._names[fingerprint] = self._unique(learner.name)
        return self._names[fingerprint]

    def _unique(self, name: str) -> str:
        """Return a name that no device has in this run, and no other one in the registry."""
        if name not in (in_use := self.names_in_use()):
            return name
        return unique_name(name, in_use.union(item.name for item in self._registry.learners()))


def check_learner(caller: str) -> None:
    """Raise `RefusedError` unless the name of a caller is one that a learner can have."""
    if caller in RESERVED_NAMES or caller.startswith(JOINING):
        raise RefusedError(f"{caller} is not a learner of this run: use a learner's credential")


def check_joining(caller: str) -> None:
    """Raise `RefusedError` unless a caller has shown a certificate and a join token."""
    if not caller.startswith(JOINING):
        raise RefusedError("enrolling needs a certificate and a join token: use melisma join")


def check_owner(caller: str) -> None:
    """Raise `RefusedError` unless a caller has shown the owner's token."""
    if caller != OWNER:
        raise RefusedError(
            f"{caller} may not call this: only the owner may, with the token of this run"
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
