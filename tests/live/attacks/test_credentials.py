"""Callers with wrong, used, revoked or borrowed credentials, and what can be learned of tokens."""

import base64
import contextlib
import socket
import stat
import threading
from pathlib import Path

import psutil
import pytest

from melisma import axon
from melisma.axon.transport.tls import server_context
from melisma.errors import (
    AxonError,
    LostError,
    RefusedError,
    SettingError,
    UnauthorizedError,
    UnreachableError,
)
from melisma.live import protocol
from melisma.live.learner.device_identity import DeviceState
from melisma.live.learner.reach import reach
from melisma.live.orchestrator.learner_authentication import JoinTokens
from melisma.live.orchestrator.running_orchestrator import find_running
from tests.live.attacks.attacked_fleet import AttackedFleet, attacked_fleet, total


def enrol_with(fleet: AttackedFleet, token: str | None, folder: Path) -> str:
    """Call `enroll` with a token and the identity of a folder, which is created."""
    state = DeviceState(folder)
    state.create_identity()
    address = fleet.address
    with axon.connect(address, token=token, certificate=state.identity) as orchestrator:
        return str(orchestrator(deadline_s=10.0).enroll("stranger"))


def test_callers_without_a_valid_credential_are_refused_and_named(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, "--once", "--no-discovery", learners=2, cycles=2) as fleet:
        mallory = fleet.hostile("mallory")
        with pytest.raises(UnauthorizedError, match="token is invalid"):
            enrol_with(fleet, JoinTokens().issue(), tmp_path / "wrong-token")
        with pytest.raises(UnauthorizedError, match="token is invalid"):
            enrol_with(fleet, fleet.invitation.token, tmp_path / "used-token")
        with pytest.raises(UnauthorizedError, match="does not know the identity"):
            enrol_with(fleet, None, tmp_path / "no-token")
        with (
            axon.connect(fleet.address) as nameless,
            pytest.raises(UnauthorizedError, match="requires a certificate"),
        ):
            nameless.enroll("nameless")
        # A learner can neither enrol others nor ask for what is the owner's.
        with pytest.raises(RefusedError, match="owner"):
            mallory.remote.status()
        with pytest.raises(RefusedError, match="certificate and a join token"):
            mallory.remote.enroll("another")
        # The key is needed, not only the certificate.
        pem = mallory.device.identity.read_text()
        stolen = tmp_path / "stolen.pem"
        stolen.write_text(pem[pem.index("-----BEGIN CERTIFICATE") :])
        with pytest.raises(SettingError):
            axon.connect(fleet.address, certificate=stolen).enroll("thief")
        mallory.join()
        run_melisma(fleet, "revoke", "mallory")
        with pytest.raises(UnauthorizedError, match="was revoked"):
            mallory.call("poll", None)
        with pytest.raises(RefusedError, match="was revoked"):
            enrol_with(fleet, fleet.invitation.token, mallory.device.folder)
        fleet.orchestrator.wait_for("mallory: revoked by the owner")
        output = fleet.orchestrator.text
    for reason in (
        "refused a caller from 127.0.0.1: the token is invalid",
        "refused a caller from 127.0.0.1: this orchestrator does not know the identity",
        "refused a caller from 127.0.0.1: this orchestrator requires a certificate",
        "the identity of mallory was revoked",
    ):
        assert reason in output, reason


def run_melisma(fleet: AttackedFleet, *arguments: str) -> None:
    """Run a command of the owner of the orchestrator."""
    assert fleet.melisma(*arguments).wait() == 0


def test_calls_of_another_learner_cannot_be_replayed_fetched_or_cancelled(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=2, cycles=1) as fleet:
        victim, mallory = fleet.hostile("victim"), fleet.hostile("mallory")
        victim.register()
        mallory.register()
        request = protocol.to_builtins(protocol.JoinRequest("costs"))
        victim.remote(call_id="the-call-of-the-victim").join(victim.session, request)
        with pytest.raises(UnauthorizedError, match="does not belong to mallory"):
            mallory.remote(call_id="the-call-of-the-victim").join(victim.session, request)
        # The same bytes from the victim itself do not run again either.
        with pytest.raises(LostError, match="it was delivered"):
            victim.remote(call_id="the-call-of-the-victim").join(victim.session, request)
        poll = victim.remote(call_id="the-poll-of-the-victim").submit.poll(victim.session, None)
        for verb in ("GET", "DELETE"):
            answer = fleet.send(
                f"{verb} /calls/the-call-of-the-victim HTTP/1.1\r\n\r\n".encode(), mallory.device
            )
            assert b"HTTP/1.1 401" in answer
        assert not poll.done()
        mallory.call("join", request)
        assert poll.result(20)


def test_nothing_is_sent_to_another_certificate_or_without_tls(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=1, cycles=1) as fleet:
        plain = axon.Address.parse(fleet.address)
        with socket.create_connection((plain.host, plain.port), 10.0) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert b"HTTP" not in sock.recv(1000)
        with pytest.raises(AxonError):
            axon.connect(f"http://{plain.host}:{plain.port}", token="t")(deadline_s=5.0).enroll("x")
        fleet.orchestrator.wait_for("refused a caller from 127.0.0.1: it sent plain HTTP")
        with socket.create_connection((plain.host, plain.port), 10.0) as sock:
            sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        fleet.orchestrator.wait_for("the TLS handshake failed: wrong version number")
        received: list[bytes] = []
        port = impostor(tmp_path / "impostor.pem", received)
        prefix = fleet.invitation.fingerprint_prefix
        with pytest.raises(UnreachableError, match="another server answers"):
            reach(["127.0.0.1"], port, prefix)
        pinned = str(axon.Address(plain.host, port, tls=True, fingerprint=plain.fingerprint))
        with (
            axon.connect(pinned, token=fleet.invitation.token, deadline_s=5.0) as remote,
            pytest.raises(AxonError),
        ):
            remote.enroll("x")
        assert b"".join(received) == b""


def impostor(identity: Path, received: list[bytes]) -> int:
    """Accept TLS connections with a certificate of its own; return the port."""
    server = socket.create_server(("127.0.0.1", 0))
    context = server_context(identity)

    def serve() -> None:
        with server:
            for _ in range(2):
                sock, _peer = server.accept()
                try:
                    with context.wrap_socket(sock, server_side=True) as tls:
                        received.append(tls.recv(10_000))
                except OSError:
                    sock.close()

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


def test_tokens_are_in_no_file_log_or_command_line_that_others_may_read(tmp_path: Path) -> None:
    with attacked_fleet(tmp_path, learners=3, cycles=3, deadline_s=60.0) as fleet:
        a, joined = fleet.start_learner("a"), fleet.join("joined")
        running = find_running(fleet.home / "orchestrator")
        assert running is not None
        anchor = fleet.anchor()
        assert anchor.at_work.wait(60)
        secrets_ = {
            "join token": fleet.invitation.token.encode(),
            "join string": fleet.text.encode(),
            "raw join token": base64.urlsafe_b64decode(fleet.invitation.token),
            "owner token": running.owner_token.encode(),
            "key": b"PRIVATE KEY",
        }
        allowed = {
            ("owner token", "running.json"),
            ("key", "identity.pem"),
        }
        leaks = []
        for path in tmp_path.rglob("*"):
            content = b""
            with contextlib.suppress(FileNotFoundError):
                content = path.read_bytes() if path.is_file() else b""
            for name, secret in secrets_.items():
                if secret in content and (name, path.name) not in allowed:
                    leaks.append((name, path))
        assert not leaks
        processes = list_processes()
        assert b"\0join\0" + b"*" * len(fleet.text) in processes[joined.pid]
        for pid, words in processes.items():
            assert not [name for name in secrets_.keys() - {"key"} if secrets_[name] in words], pid
        devices = fleet.home_of("joined"), *tmp_path.glob("device-*")
        for folder in (fleet.home, fleet.run_folder, *devices):
            check_private(folder)
        anchor.release()
        report = fleet.finish()
        assert joined.wait() == 0, joined.text
        for log in (a.log, joined.text):
            assert not [name for name, secret in secrets_.items() if secret.decode("latin1") in log]
    assert total(report, "a").left == total(report, "joined").left == 0


def list_processes() -> dict[int, bytes]:
    """Return the command line of each process, and the environment of those of this test."""
    own = {process.pid for process in psutil.Process().children(recursive=True)}
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        # Others may end meanwhile.
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            environment = (folder / "environ").read_bytes() if pid in own else b""
            found[pid] = (folder / "cmdline").read_bytes() + environment
    return found


def check_private(folder: Path) -> None:
    """Assert that only the owner may enter a folder or what the orchestrator wrote in it."""
    for path in (folder, *folder.rglob("*")):
        if path.name == "home-orchestrator":
            continue  # Created by the test.
        with contextlib.suppress(
            FileNotFoundError
        ):  # It was renamed or deleted since it was listed.
            modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)]
            assert not all(mode & 0o077 for mode in modes), f"{path} has the mode {modes[0]:o}"
