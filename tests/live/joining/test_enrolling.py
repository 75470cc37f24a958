"""Enrolling by a join string, at a known orchestrator, and by a code, over real TLS."""

import asyncio
from pathlib import Path

import pytest

from melisma import axon
from melisma.errors import (
    BusyError,
    RefusedError,
    SettingError,
    UnauthorizedError,
    UnreachableError,
)
from melisma.live.join_string import JoinString
from melisma.live.joining import enrolling
from melisma.live.joining.enrolling import Enroller, discover_orchestrators
from melisma.live.learner import device_reports as reports
from melisma.live.learner.device_identity import DeviceState, KnownOrchestrator
from melisma.live.pairing import FIRST_PAUSE_S, ORCHESTRATOR_KIND, PairingService
from tests.live.joining.fleet import OpenRun
from tests.live.orchestrator.served_run import wait_until


class JoiningDevice:
    """A device with a folder of its own."""

    def __init__(self, folder: Path, name: str = "a", *, new_identity: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.state, self.reports = DeviceState(folder), list[reports.DeviceReport]()
        self.enroller = Enroller(self.state, name, self.reports.append, new_identity=new_identity)

    async def join(self, string: str) -> KnownOrchestrator:
        return await asyncio.to_thread(self.enroller.by_string, string)

    def of(self, kind: type) -> list[reports.DeviceReport]:
        return [report for report in self.reports if isinstance(report, kind)]


async def test_a_join_string_enrols_and_is_remembered(tmp_path: Path) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path).listening() as run:
        known = await device.join(run.string)
    assert known.name == "a"
    assert known.addresses[0] == run.address
    assert len(known.addresses) == 2, "addresses of other networks are kept"
    assert device.state.orchestrators() == [known]
    kinds = [type(report) for report in device.reports]
    assert kinds == [reports.IdentityReady, reports.Reached, reports.Enrolled]


async def test_an_identity_is_reported_as_created_also_if_it_replaces_one(tmp_path: Path) -> None:
    async with OpenRun(tmp_path).listening() as run:
        for new, created in ((False, True), (False, False), (True, True)):
            device = JoiningDevice(tmp_path / "a")
            if new:
                device.state.replace_identity()
            await device.join(run.string)
            (ready,) = device.of(reports.IdentityReady)
            assert isinstance(ready, reports.IdentityReady)
            assert ready.created == created


async def test_a_known_device_joins_again_without_a_string_or_with_an_old_one(
    tmp_path: Path,
) -> None:
    device = JoiningDevice(tmp_path / "a")
    assert device.enroller.known() is None
    async with OpenRun(tmp_path).listening() as run:
        first = await device.join(run.string)
        run.tokens.revoke_all()
        assert await asyncio.to_thread(device.enroller.known) == first
        assert await device.join(run.string) == first
        other = JoiningDevice(tmp_path / "b")
        with pytest.raises(UnauthorizedError, match="ask the owner"):
            await other.join(run.string)
    assert device.reports[-1] == reports.Enrolled("a", again=True)


async def test_an_identity_is_replaced_only_when_the_orchestrator_has_answered(
    tmp_path: Path,
) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path).listening() as run:
        known = await device.join(run.string)
        old = device.state.create_identity()
        new = JoiningDevice(tmp_path / "a", new_identity=True)
        with pytest.raises(SettingError, match="join string is invalid"):
            await new.join(run.string[:-1])
        # At this port of the loopback interface nothing listens.
        closed = JoinString.create(9, f"sha256:{'0' * 64}", "AAECAwQFBgcICQoL", ["127.0.0.1"])[0]
        with pytest.raises(UnreachableError):
            await new.join(str(closed))
        assert (device.state.create_identity(), device.state.orchestrators()) == (old, [known])
        again = await new.join(run.string)
    assert device.state.create_identity() != old
    assert device.state.orchestrators() == [again]
    kinds = [type(report) for report in new.reports]
    assert kinds == [reports.Reached, reports.IdentityReady, reports.Enrolled]


async def test_a_device_says_that_it_waits_for_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolling, "APPROVAL_NOTICE_S", 0.01)
    decision: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def approve(name: str, fingerprint: str, host: str | None) -> bool:
        return await decision

    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path).listening(approve) as run:
        joining = asyncio.create_task(device.join(run.string))
        await wait_until(lambda: bool(device.of(reports.ApprovalAwaited)))
        decision.set_result(False)
        with pytest.raises(RefusedError, match="did not accept a"):
            await joining


async def test_an_orchestrator_that_is_gone_is_named_with_all_addresses(tmp_path: Path) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path).listening() as run:
        await device.join(run.string)
    with pytest.raises(UnreachableError, match="did not answer at any of its 2 addresses"):
        await asyncio.to_thread(device.enroller.known)


async def test_another_certificate_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    device = JoiningDevice(tmp_path / "a")
    async with OpenRun(tmp_path).listening() as run:
        real = JoinString.parse(run.string)
        other = JoinString(real.port, f"sha256:{'0' * 32}", real.token, real.hosts)
        with pytest.raises(UnreachableError, match="another server answers"):
            await device.join(str(other))
        assert not run.registry.learners()


class PairedOrchestrator:
    """The methods of an orchestrator that gives a token by a code, and enrols."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.service: PairingService | None = None

    async def begin_pairing(self, message: bytes) -> tuple[str, bytes]:
        assert self.service is not None
        return await self.service.begin_pairing(message)

    async def complete_pairing(self, pairing: str, proof: bytes) -> tuple[bytes, str]:
        assert self.service is not None
        return await self.service.complete_pairing(pairing, proof)

    async def enroll(self, name: str) -> str:
        return name


def test_a_code_gives_the_token_with_which_a_device_enrols(tmp_path: Path) -> None:
    served, device = PairedOrchestrator(), JoiningDevice(tmp_path / "a")
    worker = axon.Worker(port=0, tls=tmp_path / "identity.pem")
    worker.expose(served, ["begin_pairing", "complete_pairing", "enroll"], name="")
    with worker.start() as address:
        fingerprint = address.rpartition("#")[2]
        now_s = [0.0]
        served.service = PairingService(
            fingerprint, "the token", served.codes.append, now=lambda: now_s[0]
        )
        found = axon.DiscoveredWorker("home", address)
        with pytest.raises(SettingError, match="not a pairing code"):
            device.enroller.by_code(found, lambda: "wrong")
        with pytest.raises(UnauthorizedError, match="the code is wrong"):
            device.enroller.by_code(found, lambda: "10-acorn-acorn")
        assert len(device.of(reports.CodeRefused)) == enrolling.CODE_ATTEMPTS - 1
        assert len(served.codes) == 2, "a code is replaced after the last wrong attempt"
        with pytest.raises(BusyError, match="try again in 10 s"):
            device.enroller.by_code(found, served.codes[-1].upper)
        now_s[0] += FIRST_PAUSE_S
        known = device.enroller.by_code(found, served.codes[-1].upper)
    assert known == KnownOrchestrator(fingerprint, (address,), "a")


def test_a_discovered_worker_without_tls_is_no_orchestrator(tmp_path: Path) -> None:
    device = JoiningDevice(tmp_path / "a")
    found = axon.DiscoveredWorker("home", "http://127.0.0.1:1")
    with pytest.raises(SettingError, match="has no TLS"):
        device.enroller.by_code(found, lambda: "10-acorn-acorn")


def test_without_the_package_for_discovery_the_join_string_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(timeout_s: float) -> None:
        raise SettingError('discovery needs another package: pip install "melisma[discovery]"')

    monkeypatch.setattr(axon, "discover", fail)
    with pytest.raises(SettingError, match=r"melisma\[discovery\].*melisma join STRING"):
        discover_orchestrators()


def test_only_orchestrators_with_tls_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    secure = f"https://127.0.0.1:1#sha256:{'0' * 64}"
    plain = axon.DiscoveredWorker("plain", "http://127.0.0.1:1", ORCHESTRATOR_KIND)
    node = axon.DiscoveredWorker("node.1", secure)
    other = axon.DiscoveredWorker("other", secure, "another-program")
    home = axon.DiscoveredWorker("home", secure, ORCHESTRATOR_KIND)
    monkeypatch.setattr(axon, "discover", lambda timeout_s: [plain, node, other, home])
    assert discover_orchestrators() == [home]


def test_if_nothing_is_found_the_join_string_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axon, "discover", lambda timeout_s: [])
    with pytest.raises(UnreachableError, match="melisma join STRING"):
        discover_orchestrators()
