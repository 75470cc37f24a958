"""Enrolment over TLS: a join token becomes an identity, and is worth nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from melisma import axon
from melisma.errors import RefusedError, UnauthorizedError
from melisma.live import protocol
from melisma.live.orchestrator.enrolment import Approve, Enrolment
from melisma.live.orchestrator.learner_authentication import DeviceAuthenticator, JoinTokens
from melisma.live.orchestrator.learner_service import METHODS
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.registry import Registry
from tests.live.orchestrator.served_run import ServedRun

OWNER_TOKEN = "the owner's token"


class ServedEnrolment:
    """An orchestrator with TLS whose learners a and b are devices that enrol."""

    def __init__(self, folder: Path, approve: Approve | None = None) -> None:
        self.folder = folder
        self.registry = Registry(folder / "learners.json")
        self.tokens = JoinTokens()
        self.run = ServedRun(folder / "run", mailboxes=Mailboxes(max_learners=5))
        self.approve, self.address = approve, ""

    def worker(self, **settings: Any) -> axon.Worker:
        authenticator = DeviceAuthenticator(
            self.registry, self.tokens, owner_token=OWNER_TOKEN, **settings
        )
        worker = self.run.service.worker(authenticator, tls=self.folder / "orchestrator.pem")
        Enrolment(self.registry, self.approve, authenticator.names_in_use).expose(worker)
        return worker

    @asynccontextmanager
    async def serving(self, **settings: Any) -> AsyncIterator[None]:
        worker = self.worker(**settings)
        self.run.orchestrator.start()
        async with worker.listening() as self.address:
            yield
        self.run.close()

    def device(self, name: str, token: str | None = None) -> axon.Remote:
        """Connect with the identity of a device."""
        identity = self.folder / f"{name}.pem"
        axon.create_identity(identity)
        return axon.connect(self.address, token=token, certificate=identity).aio


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedEnrolment]:
    orchestrator = ServedEnrolment(tmp_path)
    async with orchestrator.serving():
        yield orchestrator


def registration(session: str = "a-session-of-a-device") -> Any:
    return protocol.to_builtins(protocol.RegisterRequest(session))


async def test_a_device_enrols_once_and_is_a_learner_from_then_on(served: ServedEnrolment) -> None:
    token = served.tokens.issue()
    with pytest.raises(UnauthorizedError, match="does not know the identity of this device"):
        await served.device("pi").register(registration())
    for _ in range(2):
        assert await served.device("pi", token).enroll("a") == "a"
    assert await served.device("jetson", token).enroll("a") == "a-2"
    with served.device("pi") as device:
        reply = await device.register(registration())
        assert protocol.parse(reply, protocol.RegisterResponse).learner == 0
        # Revoked by another process, while the connection is open.
        Registry(served.folder / "learners.json").revoke("a")
        with pytest.raises(UnauthorizedError, match="a was revoked"):
            await device.poll("a-session-of-a-device")
    with pytest.raises(RefusedError, match="--new-identity"):
        await served.device("pi", token).enroll("a")


async def test_a_join_token_is_worth_nothing_else(served: ServedEnrolment) -> None:
    token = served.tokens.issue()
    await served.device("pi", token).enroll("a")
    device = served.device("stranger", token)
    with pytest.raises(RefusedError, match="is not a learner of this run"):
        await device.register(registration())
    with pytest.raises(RefusedError, match="is not a learner of this run"):
        await device.poll("a-session-of-a-device")
    with pytest.raises(RefusedError, match="is not a learner of this run"):
        await asyncio.to_thread(list, axon.fetch(device, protocol.INITIAL_MODEL))


async def test_callers_are_refused_before_their_bodies_are_received(tmp_path: Path) -> None:
    orchestrator = ServedEnrolment(tmp_path)
    orchestrator.run.mailboxes.open("a")
    allowed: dict[str, set[str]] = {}
    for caller in ("anonymous", "owner", "joining:sha256:0", "a", "not-registered"):
        allowed[caller] = set()
        for exposed in orchestrator.worker().functions:
            with suppress(RefusedError):
                exposed.rules.check(caller, 0, exposed.name)
                allowed[caller].add(exposed.name)
    orchestrator.run.close()
    assert allowed == {
        "anonymous": set(),
        "owner": set(),
        "joining:sha256:0": {"enroll"},
        "a": set(METHODS),
        "not-registered": {"register"},
    }


async def test_a_token_without_a_certificate_is_refused(served: ServedEnrolment) -> None:
    with (
        axon.connect(served.address, token=served.tokens.issue()) as remote,
        pytest.raises(UnauthorizedError, match="ask the owner"),
    ):
        await remote.aio.enroll("a")


async def test_an_enrolled_device_cannot_enrol_another(served: ServedEnrolment) -> None:
    await served.device("pi", served.tokens.issue()).enroll("a")
    with pytest.raises(RefusedError, match="needs a certificate and a join token"):
        await served.device("pi").enroll("b")


@pytest.mark.parametrize("wrong", ["", "A" * 16, "Bearer", "größe"])
async def test_a_wrong_token_is_refused(served: ServedEnrolment, wrong: str) -> None:
    served.tokens.issue()
    with pytest.raises(UnauthorizedError):
        await served.device("pi", wrong).enroll("a")
    assert served.registry.learners() == []


async def test_a_used_token_is_refused_for_another_device(served: ServedEnrolment) -> None:
    token = served.tokens.issue(once=True)
    for _ in range(2):
        assert await served.device("pi", token).enroll("a") == "a"
    with pytest.raises(UnauthorizedError, match="no longer valid"):
        await served.device("jetson", token).enroll("b")


async def test_revoked_tokens_do_not_affect_devices_that_have_enrolled(
    served: ServedEnrolment,
) -> None:
    token = served.tokens.issue()
    await served.device("pi", token).enroll("a")
    served.tokens.revoke_all()
    with pytest.raises(UnauthorizedError, match="no longer valid"):
        await served.device("jetson", token).enroll("b")
    await served.device("pi").register(registration())


async def test_the_owner_is_not_a_learner(served: ServedEnrolment) -> None:
    with axon.connect(served.address, token=OWNER_TOKEN) as owner:
        with pytest.raises(RefusedError, match="owner is not a learner"):
            await owner.aio.register(registration())
        with pytest.raises(RefusedError, match="needs a certificate and a join token"):
            await owner.aio.enroll("a")


async def test_callers_without_credentials_are_allowed_only_if_stated(tmp_path: Path) -> None:
    orchestrator = ServedEnrolment(tmp_path)
    async with orchestrator.serving(allow_anonymous=True):
        with axon.connect(orchestrator.address) as stranger:
            for call in (stranger.aio.enroll("a"), stranger.aio.register(registration())):
                with pytest.raises(RefusedError):
                    await call


async def test_strangers_are_refused(served: ServedEnrolment) -> None:
    with axon.connect(served.address) as stranger, pytest.raises(UnauthorizedError):
        await stranger.aio.enroll("a")


async def test_the_owner_decides_about_each_new_device(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    async def approve(name: str, fingerprint: str, host: str | None) -> bool:
        asked.append((name, host))
        return name == "a"

    orchestrator = ServedEnrolment(tmp_path, approve)
    async with orchestrator.serving():
        token = orchestrator.tokens.issue()
        for _ in range(2):
            assert await orchestrator.device("pi", token).enroll("a") == "a"
        with pytest.raises(RefusedError, match="did not accept x-31m"):
            await orchestrator.device("jetson", token).enroll("x\x1b[31m")
    assert asked == [("a", "127.0.0.1"), ("x-31m", "127.0.0.1")]
    assert [item.name for item in orchestrator.registry.learners()] == ["a"]


async def test_a_rename_holds_from_the_next_run_on(served: ServedEnrolment) -> None:
    await served.device("pi", served.tokens.issue()).enroll("a")
    await served.device("pi").register(registration())
    served.registry.rename("a", "kitchen")
    await served.device("pi").register(registration())
    assert [mailbox.name for mailbox in served.run.mailboxes] == ["a"]


@pytest.mark.parametrize("change", ["renamed", "revoked"])
async def test_a_new_device_never_takes_over_a_learner_of_the_run(
    served: ServedEnrolment, change: str
) -> None:
    token = served.tokens.issue()
    await served.device("pi", token).enroll("a")
    await served.device("pi").register(registration())
    if change == "renamed":
        served.registry.rename("a", "kitchen")
    else:
        served.registry.revoke("a")
    assert await served.device("jetson", token).enroll("a") == "a-2"
    await served.device("jetson").register(registration("a-session-of-another-device"))
    assert [mailbox.name for mailbox in served.run.mailboxes] == ["a", "a-2"]
    assert served.run.mailboxes[0].session == "a-session-of-a-device"


async def test_devices_whose_names_were_swapped_stay_apart_in_the_run(
    served: ServedEnrolment,
) -> None:
    token = served.tokens.issue()
    for name in ("a", "b", "a-2"):
        await served.device(name, token).enroll(name)
    await served.device("a").register(registration())
    for name, new_name in (("a", "c"), ("b", "a"), ("c", "b")):
        served.registry.rename(name, new_name)
    for name in ("a", "b", "a-2"):
        await served.device(name).register(registration(f"the-session-of-{name}"))
    names = [mailbox.name for mailbox in served.run.mailboxes]
    assert names == ["a", "a-3", "a-2"]


async def test_a_learner_with_a_certificate_cannot_speak_for_another(
    served: ServedEnrolment,
) -> None:
    token = served.tokens.issue()
    for name in ("a", "b"):
        assert await served.device(name, token).enroll(name) == name
    for name in ("a", "b"):
        message = protocol.to_builtins(protocol.RegisterRequest(f"the-session-of-{name}"))
        await served.device(name).register(message)
    with pytest.raises(RefusedError, match="a is in use elsewhere"):
        await served.device("a").report_failure("the-session-of-b", "b: gone")
    assert not served.run.orchestrator._mailboxes[1].left
