"""Learner processes with certificates of their own, over TLS, from a join string to a model."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from melisma import axon
from melisma.cycle import events
from melisma.errors import SupersededError
from melisma.live import protocol
from melisma.live.code_bundle import CodeBundle, collect_bundle
from melisma.live.join_string import JoinString
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.orchestrator.enrolment import Enrolment
from melisma.live.orchestrator.learner_authentication import DeviceAuthenticator, JoinTokens
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.registry import Registry
from melisma.live.processes import run_processes
from tests.live import tiny_task
from tests.live.enrolled_device import ROOT, join
from tests.live.orchestrator.served_run import TASK, ServedRun, wait_until


async def test_devices_enrol_by_a_join_string_and_train(tmp_path: Path) -> None:
    task = msgspec.structs.replace(TASK, deadline_s=3.0)
    run, tokens = ServedRun(tmp_path / "run", task), JoinTokens()
    registry = Registry(tmp_path / "learners.json")
    worker = run.service.worker(
        DeviceAuthenticator(registry, tokens), tls=tmp_path / "orchestrator.pem"
    )
    Enrolment(registry).expose(worker)
    failures: list[str] = []
    async with worker.listening() as address:
        parsed = axon.Address.parse(address)
        assert parsed.fingerprint is not None
        text = str(
            JoinString.create(parsed.port, parsed.fingerprint, tokens.issue(), [parsed.host])[0]
        )
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder in folders:
            folder.mkdir()
        settings = [await asyncio.to_thread(join, folder, text) for folder in folders]
        run.orchestrator.start()
        logs = tmp_path / "logs"
        async with run_processes(settings, logs, lambda _, reason: failures.append(reason)):
            await wait_until(lambda: len(run.of(events.UpdatesReceived)) >= 2)
            with (
                axon.connect(address, certificate=folders[0] / "identity.pem") as copy,
                pytest.raises(SupersededError, match="the identity of a is in use elsewhere"),
            ):
                await copy.aio.poll("the-session-of-a-copied-disk")
            await run.orchestrator.finished
    run.close()
    assert failures == []
    assert {item.names for item in run.of(events.LearnersJoined)} == {("a",), ("b",)}
    assert run.store.model is not None


async def test_a_learner_process_whose_identity_is_used_elsewhere_ends_with_the_reason(
    tmp_path: Path,
) -> None:
    run = ServedRun(tmp_path / "run", msgspec.structs.replace(TASK, deadline_s=60.0))
    run.orchestrator.start()
    reasons: list[str] = []
    async with run.service.worker(run.tokens).listening() as address:
        settings = LearnerSettings(
            name="a",
            orchestrator=(address,),
            token=run.tokens.token("a"),
            cache=str(tmp_path / "cache"),
            module_path=(ROOT,),
            allowed_modules=("tests.live.tiny_task",),
        )
        logs = tmp_path / "logs"
        async with run_processes([settings], logs, lambda _, reason: reasons.append(reason)):
            await wait_until(lambda: bool(run.of(events.LearnersJoined)))
            with axon.connect(address, token=run.tokens.token("a")) as copy:
                request = protocol.RegisterRequest("the-session-of-a-copied-disk")
                await copy.aio.register(protocol.to_builtins(request))
            await wait_until(lambda: bool(reasons))
    run.close()
    assert "the identity of a is in use elsewhere" in reasons[0]
    assert "--new-identity" in reasons[0]


MALICIOUS = msgspec.structs.replace(
    TASK, model="os:system", model_args={"command": "touch /tmp/never"}
)


@pytest.mark.parametrize("trust", [False, True], ids=["not trusted", "trusted"])
async def test_a_device_never_calls_what_its_owner_did_not_allow(
    tmp_path: Path, trust: bool
) -> None:
    run = ServedRun(tmp_path / "run", MALICIOUS, bundle=CodeBundle(b""))
    run.orchestrator.start()
    reasons: list[str] = []
    async with run.service.worker(run.tokens).listening() as address:
        settings = LearnerSettings(
            name="a",
            orchestrator=(address,),
            token=run.tokens.token("a"),
            cache=str(tmp_path / "cache"),
            module_path=(ROOT,),
            allowed_modules=("tests.live.tiny_task",),
            trust_code=trust,
        )
        logs = tmp_path / "logs"
        async with run_processes([settings], logs, lambda _, reason: reasons.append(reason)):
            await wait_until(lambda: bool(reasons))
    run.close()
    assert "not a valid zip" in reasons[0] if trust else "--trust-code" in reasons[0]
    assert not run.of(events.LearnersJoined)


async def test_a_device_that_trusts_the_task_trains_with_its_bundle(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(tiny_task.__file__, source / "offered_net.py")
    bundle = collect_bundle("offered_net:Linear", [str(source)])
    task = msgspec.structs.replace(TASK, model="offered_net:Linear", deadline_s=2.0)
    run = ServedRun(tmp_path / "run", task, Mailboxes(["a"]), bundle=bundle)
    run.orchestrator.start()
    reasons: list[str] = []
    async with run.service.worker(run.tokens).listening() as address:
        settings = LearnerSettings(
            name="a",
            orchestrator=(address,),
            token=run.tokens.token("a"),
            cache=str(tmp_path / "cache"),
            trust_code=True,
        )
        logs = tmp_path / "logs"
        async with run_processes([settings], logs, lambda _, reason: reasons.append(reason)):
            await run.orchestrator.finished
    run.close()
    assert reasons == []
    assert run.store.model is not None
    assert (tmp_path / "cache-code").is_dir()


async def test_a_bundle_that_needs_too_much_memory_fails_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "greedy_net.py").write_text("def Net(): return bytearray(4 << 30)")
    task = msgspec.structs.replace(TASK, model="greedy_net:Net", model_args={})
    bundle = collect_bundle("greedy_net:Net", [str(source)])
    run = ServedRun(tmp_path / "run", task, bundle=bundle)
    run.orchestrator.start()
    reasons: list[str] = []
    async with run.service.worker(run.tokens).listening() as address:
        settings = LearnerSettings(
            name="a",
            orchestrator=(address,),
            token=run.tokens.token("a"),
            cache=str(tmp_path / "cache"),
            trust_code=True,
            memory_bytes=2 << 30,
        )
        logs = tmp_path / "logs"
        async with run_processes([settings], logs, lambda _, reason: reasons.append(reason)):
            await wait_until(lambda: bool(reasons))
    run.close()
    assert "MemoryError" in reasons[0]
