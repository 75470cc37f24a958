"""Enrolment: a device exchanges a join token for an entry in the registry, once.

The device presents the certificate that it will use from then on. The token is worth nothing else:
with it a device can neither register nor call other methods of learners nor download.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from melisma.axon import Worker, current_call
from melisma.errors import RefusedError
from melisma.live import protocol
from melisma.live.orchestrator.learner_authentication import JOINING, check_joining
from melisma.live.orchestrator.registry import Registry, clean_name
from melisma.live.orchestrator.strict_methods import StrictMethods

Approve = Callable[[str, str, str | None], Awaitable[bool]]
"""Decides about a device by its name, its fingerprint and the host that it called from."""
ENROLMENT_METHODS: Final = ("enroll",)
MAX_BODY_BYTES: Final = 16 << 10


class Enrolment:
    """Serves `enroll`; with `approve`, each new device waits for that decision.

    `names_in_use` returns names of the run that a new device cannot have, although they may be free
    in the registry.
    """

    def __init__(
        self,
        registry: Registry,
        approve: Approve | None = None,
        names_in_use: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._registry, self._approve, self._names_in_use = registry, approve, names_in_use

    def expose(self, worker: Worker) -> None:
        """Let devices call `enroll` at a worker whose authenticator is a `DeviceAuthenticator`."""
        methods = StrictMethods(self)
        worker.expose(
            methods,
            ENROLMENT_METHODS,
            name="",
            max_body_bytes=MAX_BODY_BYTES,
            check_caller=check_joining,
        )

    async def enroll(self, name: str) -> str:
        """Enrol the device that calls, by its certificate; return the name that it got.

        Calling again returns the same name, and asks for no decision.
        """
        call = current_call()
        fingerprint = call.caller.removeprefix(JOINING)
        name = clean_name(protocol.parse(name, protocol.ShortText))
        is_new = self._registry.find(fingerprint) is None
        if is_new and self._approve and not await self._approve(name, fingerprint, call.host):
            raise RefusedError(f"the owner of the orchestrator did not accept {name}")
        taken = self._names_in_use()
        return self._registry.add(fingerprint, name, call.host, taken).name
