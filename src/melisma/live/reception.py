"""How devices reach an orchestrator: its identity, its tokens, enrolment and pairing.

It knows nothing of tasks: the worker that it opens serves those, too.
"""

import asyncio
import secrets
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from melisma.axon import Address, Worker, create_identity
from melisma.axon.discovery.multicast import announce
from melisma.errors import MelismaError
from melisma.live.invitation import Invitation, OrchestrationObserver
from melisma.live.join_string import JoinString
from melisma.live.local_addresses import local_addresses
from melisma.live.orchestrator.enrolment import Enrolment
from melisma.live.orchestrator.learner_authentication import (
    DeviceAuthenticator,
    JoinTokens,
    check_owner,
)
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.orchestrator.refusal_log import RefusalLog
from melisma.live.orchestrator.registry import Registry, clean_name
from melisma.live.orchestrator.running_orchestrator import announce_running, require_none_running
from melisma.live.orchestrator.strict_methods import StrictMethods
from melisma.live.orchestrator_settings import OrchestratorSettings
from melisma.live.pairing import ORCHESTRATOR_KIND, PairingService
from melisma.live.state_folder import orchestrator_folder

REVOCATION_CHECK_S: Final = 0.5
MAX_WAITING_APPROVALS: Final = 20
PAIRING_METHODS: Final = ("begin_pairing", "complete_pairing")
PAIRING_BODY_BYTES: Final = 4096
RemoveLearner = Callable[[int, str, str], object]
"""Takes the number of a learner, why it leaves, and why its calls are refused."""


class Reception:
    """Lets devices enrol at an orchestrator, and names its callers."""

    def __init__(self, settings: OrchestratorSettings, observer: OrchestrationObserver) -> None:
        self._settings, self._observer = settings, observer
        self.registry, self._tokens = Registry(), JoinTokens()
        self._waiting_approvals, self._code = 0, ""
        self._approving = asyncio.Lock()
        self._owner_token = secrets.token_urlsafe(24)
        self._pairing: PairingService | None
        self._authenticator: DeviceAuthenticator

    def prepare(self, learners: Iterable[Mailbox]) -> DeviceAuthenticator:
        """Load the identity, and return who names the callers; `learners` keep their names."""
        # Before the port, which that one probably uses, too.
        require_none_running()
        self.identity: Path = orchestrator_folder() / "identity.pem"
        self.fingerprint = create_identity(self.identity)
        self._token = self._tokens.issue(once=self._settings.once)
        self._pairing = self._create_pairing()
        self.on_refused = RefusalLog(self._observer.on_note).add
        self._authenticator = DeviceAuthenticator(
            self.registry,
            self._tokens,
            owner_token=self._owner_token,
            allow_anonymous=self._pairing is not None,
            on_refused=self.on_refused,
        )
        self._authenticator.keep_names(learners)
        return self._authenticator

    async def open(
        self, stack: AsyncExitStack, worker: Worker, run: str
    ) -> tuple[JoinString, tuple[str, ...]]:
        """Serve with the worker; return the join string, and the addresses that it left out."""
        self._expose(worker)
        settings, fingerprint = self._settings, self.fingerprint
        port = await stack.enter_async_context(_listening(worker))
        hosts = [settings.host] if _is_specific(settings.host) else local_addresses()
        joined, left_out = JoinString.create(port, fingerprint, self._token, hosts)
        local = Address(_local_host(settings.host), port, True, fingerprint)
        stack.enter_context(announce_running(str(local), self._owner_token, run))
        return joined, tuple(left_out)

    def _expose(self, worker: Worker) -> None:
        approve = self._approve if self._settings.approve else None
        Enrolment(self.registry, approve, self._authenticator.names_in_use).expose(worker)
        if self._pairing is not None:
            methods = StrictMethods(self._pairing)
            expose = partial(worker.expose, name="", max_body_bytes=PAIRING_BODY_BYTES)
            expose(methods, PAIRING_METHODS)
            expose(methods, ["renew_code"], check_caller=check_owner)

    async def invite(self, stack: AsyncExitStack, invitation: Invitation) -> None:
        """Tell the owner how devices join, and announce this orchestrator in the network."""
        self._observer.on_invitation(invitation)
        if self._pairing is not None:
            joined = invitation.join_string
            address = Address(joined.hosts[0], joined.port, True, self.fingerprint)
            await self._announce(stack, address)
            self._observer.on_code(self._code, invitation)

    def close(self) -> None:
        """Let no further device enrol."""
        self._tokens.revoke_all()

    async def watch_revocations(self, learners: Iterable[Mailbox], remove: RemoveLearner) -> None:
        """Remove learners whose device was revoked, until cancelled."""
        while True:
            for number, mailbox in enumerate(learners):
                known = mailbox.fingerprint and self.registry.find(mailbox.fingerprint)
                if known and known.revoked_at is not None:
                    remove(number, f"{mailbox.name}: revoked by the owner", known.revocation)
            await asyncio.sleep(REVOCATION_CHECK_S)

    async def _approve(self, name: str, fingerprint: str, host: str | None) -> bool:
        """Ask for one decision at a time; the thread that waits for it does not delay the exit."""
        decide = self._settings.approve
        assert decide is not None
        if self._waiting_approvals >= MAX_WAITING_APPROVALS:
            return False
        self._waiting_approvals += 1
        try:
            async with self._approving:
                return await _in_daemon_thread(lambda: decide(name, fingerprint, host))
        finally:
            self._waiting_approvals -= 1

    def _create_pairing(self) -> PairingService | None:
        """Return the service for pairing by a code; None without it, and say why."""
        if not self._settings.discovery:
            return None
        try:
            import spake2  # noqa: F401
            import zeroconf  # noqa: F401
        except ImportError:
            self._observer.on_note(
                "devices cannot find this orchestrator by themselves: they need the join string, "
                'or install "melisma[discovery]" here'
            )
            return None
        return PairingService(self.fingerprint, self._token, self._on_code, self._observer.on_note)

    def _on_code(self, code: str) -> None:
        is_new, self._code = bool(self._code), code
        if is_new:
            self._observer.on_learner(
                f"the code before is no longer valid; the next device joins with the code {code}"
            )

    async def _announce(self, stack: AsyncExitStack, address: Address) -> None:
        name = self._settings.name or clean_name(socket.gethostname())
        try:
            await stack.enter_async_context(announce(name, address, ORCHESTRATOR_KIND))
        except (MelismaError, OSError) as error:
            self._observer.on_note(f"this orchestrator is not announced in the network: {error}")


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine inside an ``async with``."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _listening(worker: Worker) -> AsyncIterator[int]:
    """Serve inside an ``async with``; yield the port."""
    async with worker.listening() as address:
        yield Address.parse(address).port


def _in_daemon_thread(decide: Callable[[], bool]) -> "asyncio.Future[bool]":
    """Return the future of a decision that a daemon thread waits for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()

    def finish(decision: bool) -> None:
        if not future.done():
            future.set_result(decision)

    def wait() -> None:
        decision = False
        try:
            decision = decide()
        finally:
            # The loop may be closed by now.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, decision)

    threading.Thread(target=wait, name="approve", daemon=True).start()
    return future


def _is_specific(host: str) -> bool:
    return bool(host) and not ip_address(host).is_unspecified


def _local_host(host: str) -> str:
    """Return the host at which this machine reaches a worker that listens on `host`."""
    if _is_specific(host):
        return host
    return "::1" if host == "::" else "127.0.0.1"
