"""Enrolment: a device exchanges a join token for an entry in the registry, once.

The device presents the certificate that it will use from then on. The token is worth nothing else:
with it a device can neither register nor call other methods of learners nor download.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from melisma.axon import Worker, current_call
from melisma.errors import RefusedError
from melisma.live import protocol
from melisma.live.orchestrator.learner_authentication import JOINING
from melisma.live.orchestrator.registry import Registry, clean_name
from melisma.live.orchestrator.strict_methods import StrictMethods

Approve = Callable[[str, str, str | None], Awaitable[bool]]
"""Decides about a device by its name, its fingerprint and the host that it called from."""
ENROLMENT_METHODS: Final = ("enroll",)
MAX_BODY_BYTES: Final = 16 << 10


class Enrolment:
    """Serves `enroll`; with `approve`, each new device waits for that decision."""

    def __init__(self, registry: Registry, approve: Approve | None = None) -> None:
        self._registry, self._approve = registry, approve

    def expose(self, worker: Worker) -> None:
        """Let devices call `enroll` at a worker whose authenticator is a `DeviceAuthenticator`."""
        methods = StrictMethods(self)
        worker.expose(methods, ENROLMENT_METHODS, name="", max_body_bytes=MAX_BODY_BYTES)

    async def enroll(self, name: str) -> str:
        """Enrol the device that calls, by its certificate; return the name that it got.

        Calling again returns the same name, and asks for no decision.
        """
        call = current_call()
        if call.fingerprint is None or call.caller != JOINING + call.fingerprint:
            raise RefusedError("enrolling needs a certificate and a join token: use melisma join")
        name = clean_name(protocol.parse(name, protocol.ShortText))
        is_new = self._registry.find(call.fingerprint) is None
        if is_new and self._approve and not await self._approve(name, call.fingerprint, call.host):
            raise RefusedError(f"the owner of the orchestrator did not accept {name}")
        return self._registry.add(call.fingerprint, name, call.host).name
