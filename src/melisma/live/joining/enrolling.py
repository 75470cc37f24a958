"""From a join string, a pairing code or a known orchestrator to a device that has enrolled."""

import socket
import threading
from collections.abc import Callable
from typing import Final

from melisma import axon
from melisma.axon import Address
from melisma.errors import AxonError, SettingError, UnauthorizedError, UnreachableError
from melisma.live.join_string import JoinString
from melisma.live.learner.device_identity import DeviceState, KnownOrchestrator
from melisma.live.learner.device_reports import (
    ApprovalAwaited,
    CodeRefused,
    Enrolled,
    IdentityReady,
    OnReport,
    Reached,
)
from melisma.live.learner.reach import ReachedOrchestrator, reach
from melisma.live.pairing import ORCHESTRATOR_KIND, normalize_code, pair

APPROVAL_NOTICE_S: Final = 1.5
"""Time without an answer after which the owner of the orchestrator probably has to decide."""
APPROVAL_S: Final = 3600.0
DISCOVERY_S: Final = 3.0
CODE_ATTEMPTS: Final = 3


def default_name() -> str:
    """Return the name of this machine, without its domain."""
    return socket.gethostname().partition(".")[0] or "device"


class Enroller:
    """Enrols this device, as `name` if the orchestrator has no other device of that name.

    With `new_identity` a join string replaces the identity, once its orchestrator has answered.
    """

    def __init__(
        self, state: DeviceState, name: str, report: OnReport, *, new_identity: bool = False
    ) -> None:
        self._state, self._name, self._report = state, name, report
        self._new_identity = new_identity

    def by_string(self, text: str) -> KnownOrchestrator:
        """Reach the orchestrator of a join string and enrol there, unless that was done before."""
        invitation = JoinString.parse(text)
        if not self._new_identity:
            self._prepare_identity()
        reached = self._reach(invitation.hosts, invitation.port, invitation.fingerprint_prefix)
        if self._new_identity:
            self._report(IdentityReady(self._state.replace_identity(), created=True))
            self._new_identity = False
        addresses = [
            str(Address(host, invitation.port, tls=True, fingerprint=reached.fingerprint))
            for host in invitation.hosts
        ]
        return self._enroll(reached, addresses, invitation.token)

    def by_code(
        self, found: "axon.DiscoveredWorker", ask_code: Callable[[], str]
    ) -> KnownOrchestrator:
        """Pair with an orchestrator that discovery found, by the code that it shows; enrol there.

        The code proves the certificate: the announced fingerprint is not trusted before. After a
        wrong one, `ask_code` is called again, `CODE_ATTEMPTS` times at most.
        """
        address = Address.parse(found.address)
        if not address.tls or address.fingerprint is None:
            raise SettingError(
                f"{found.name} at {found.address} has no TLS, so it is no orchestrator for devices:"
                " use the join string of yours"
            )
        self._prepare_identity()
        reached = self._reach((address.host,), address.port, address.fingerprint, found.name)
        return self._enroll(reached, [reached.address], self._pair(reached, ask_code))

    def _pair(self, reached: ReachedOrchestrator, ask_code: Callable[[], str]) -> str:
        """Return the join token, for one of several codes."""
        for attempt in range(1, CODE_ATTEMPTS + 1):
            code = normalize_code(ask_code())
            try:
                with axon.connect(reached.address) as orchestrator:
                    return pair(orchestrator, reached.fingerprint, code)
            except UnauthorizedError as error:
                if attempt == CODE_ATTEMPTS:
                    raise
                self._report(CodeRefused(str(error)))
        raise AssertionError

    def known(self) -> KnownOrchestrator | None:
        """Reach the orchestrator that this device joined last; None if it has joined none."""
        orchestrators = self._state.orchestrators()
        if not orchestrators:
            return None
        last = orchestrators[0]
        self._prepare_identity()
        parsed = [Address.parse(address) for address in last.addresses]
        hosts = [address.host for address in parsed]
        reached = self._reach(hosts, parsed[0].port, last.fingerprint)
        self._report(Enrolled(last.name, again=True))
        return self._remember(reached, last.addresses, last.name)

    def _prepare_identity(self) -> None:
        fingerprint = self._state.create_identity()
        self._report(IdentityReady(fingerprint, self._state.created))

    def _reach(
        self, hosts: "tuple[str, ...] | list[str]", port: int, prefix: str, name: str = ""
    ) -> ReachedOrchestrator:
        reached = reach(hosts, port, prefix)
        failures = tuple(map(str, reached.failures))
        address = reached.address.partition("#")[0]
        self._report(Reached(address, reached.fingerprint, failures, name))
        return reached

    def _enroll(
        self, reached: ReachedOrchestrator, addresses: "list[str]", token: str
    ) -> KnownOrchestrator:
        """Exchange the token for an entry in the registry; report if a decision is awaited.

        A device that has enrolled before needs no valid token.
        """
        timer = threading.Timer(APPROVAL_NOTICE_S, self._report, [ApprovalAwaited()])
        timer.daemon = True
        timer.start()
        try:
            with axon.connect(
                reached.address, token=token, certificate=self._state.identity
            ) as orchestrator:
                name = str(orchestrator(deadline_s=APPROVAL_S).enroll(self._name))
        except UnauthorizedError:
            names = {item.fingerprint: item.name for item in self._state.orchestrators()}
            if reached.fingerprint not in names:
                raise
            name, again = names[reached.fingerprint], True
        else:
            again = False
        finally:
            timer.cancel()
        self._report(Enrolled(name, again))
        return self._remember(reached, addresses, name)

    def _remember(
        self, reached: ReachedOrchestrator, addresses: "list[str] | tuple[str, ...]", name: str
    ) -> KnownOrchestrator:
        """Store the orchestrator, the address that was reached first."""
        ordered = tuple(dict.fromkeys([reached.address, *addresses]))
        self._state.remember(reached.fingerprint, ordered, name)
        return KnownOrchestrator(reached.fingerprint, ordered, name)


def discover_orchestrators() -> "list[axon.DiscoveredWorker]":
    """Return the orchestrators in the local network; other workers are announced there, too."""
    try:
        found = axon.discover(DISCOVERY_S)
    except (SettingError, AxonError) as error:
        raise SettingError(
            f"orchestrators cannot be found in the local network ({error}): use melisma join "
            "STRING with the join string that the orchestrator shows"
        ) from error
    found = [
        item
        for item in found
        if item.kind == ORCHESTRATOR_KIND and Address.parse(item.address).fingerprint is not None
    ]
    if not found:
        raise UnreachableError(
            "no orchestrator was found in the local network, and this device has joined none "
            "before: use melisma join STRING with the join string that the orchestrator shows"
        )
    return found
