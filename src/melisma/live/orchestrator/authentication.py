"""Authentication of the learners that call the orchestrator."""

import hashlib
import secrets
from collections.abc import Iterable

from melisma.axon import Credentials
from melisma.errors import UnauthorizedError


class LearnerTokens:
    """Names the learners of one run by a random token of each.

    For learners that are processes of this machine. There is no secret from which a token for
    another name could be issued.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._tokens = {name: secrets.token_urlsafe(24) for name in names}
        # Looked up by a digest, so that the time of a lookup reveals nothing about a token.
        self._names = {token_digest(token): name for name, token in self._tokens.items()}

    def token(self, name: str) -> str:
        """Return the token of a learner, for its process alone."""
        return self._tokens[name]

    def check(
        self, credentials: Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        """Return the name of the learner that calls."""
        del call_id, starts_call
        name = self._names.get(token_digest(credentials.token or ""))
        if name is None:
            raise UnauthorizedError(
                "the token is missing or not of a learner of this run: learners are started by it"
            )
        return name


def token_digest(token: str) -> bytes:
    """Return the digest under which a token is stored and looked up."""
    return hashlib.sha256(token.encode()).digest()
