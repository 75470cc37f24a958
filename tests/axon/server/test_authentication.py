"""Authenticators: the certificate of a connection names the caller, for each request anew."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from melisma import axon
from melisma.errors import SettingError, UnauthorizedError, UnreachableError


class KnownCertificates:
    """Names callers by their certificate; a caller without one is a guest."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def check(
        self, credentials: axon.Credentials, call_id: str = "", *, starts_call: bool = True
    ) -> str:
        if credentials.token == "join":
            return "guest"
        if credentials.fingerprint is None:
            raise UnauthorizedError("no certificate")
        if credentials.fingerprint not in self.names:
            raise UnauthorizedError(f"unknown certificate {credentials.fingerprint}")
        return self.names[credentials.fingerprint]


def caller() -> list[str | None]:
    call = axon.current_call()
    return [call.caller, call.fingerprint, call.host]


@pytest.fixture
def known() -> KnownCertificates:
    return KnownCertificates()


@contextmanager
def serve(tmp_path: Path, known: KnownCertificates, **settings: object) -> Iterator[str]:
    worker = axon.Worker(
        port=0,
        tls=tmp_path / "server.pem",
        authenticator=known,
        files=lambda name, caller: tmp_path / f"{caller}-{name}",
        **settings,  # type: ignore[arg-type]
    )
    worker.functions.rpc()(caller)
    with worker.start() as address:
        yield address


@pytest.fixture
def address(tmp_path: Path, known: KnownCertificates) -> Iterator[str]:
    with serve(tmp_path, known) as address:
        yield address


def issue(issuer: Path, path: Path) -> None:
    """Create an identity whose certificate is signed with the key of another identity."""
    pem = issuer.read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    own = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged")]))
        .issuer_name(x509.load_pem_x509_certificate(pem).subject)
        .public_key(own.public_key())
        .serial_number(7)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=timezone.utc))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=timezone.utc))
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        own.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
        + pem
    )


def test_a_known_certificate_names_the_caller(
    address: str, tmp_path: Path, known: KnownCertificates
) -> None:
    for name in ("pi", "jetson"):
        fingerprint = axon.create_identity(tmp_path / f"{name}.pem")
        known.names[fingerprint] = name
        with axon.connect(address, certificate=tmp_path / f"{name}.pem") as remote:
            assert remote.caller() == [name, fingerprint, "127.0.0.1"]
            assert remote.submit.caller().result() == [name, fingerprint, "127.0.0.1"]


def test_an_unknown_certificate_is_refused_with_a_reason(
    address: str, tmp_path: Path, known: KnownCertificates
) -> None:
    fingerprint = axon.create_identity(tmp_path / "pi.pem")
    with axon.connect(address, certificate=tmp_path / "pi.pem") as remote:
        with pytest.raises(UnauthorizedError, match=fingerprint):
            remote.caller()
        with pytest.raises(UnauthorizedError, match=fingerprint):
            remote.submit.caller().result()
        # Enrolled on the same connection.
        known.names[fingerprint] = "pi"
        assert remote.caller()[0] == "pi"


def test_a_certificate_is_refused_from_the_next_request_on_after_it_is_revoked(
    address: str, tmp_path: Path, known: KnownCertificates
) -> None:
    (tmp_path / "pi-data").write_bytes(b"shard")
    fingerprint = axon.create_identity(tmp_path / "pi.pem")
    known.names[fingerprint] = "pi"
    with axon.connect(address, certificate=tmp_path / "pi.pem") as remote:
        assert remote.caller()[0] == "pi"
        (connection,) = remote._connections.socket_pool._idle
        del known.names[fingerprint]
        with pytest.raises(UnauthorizedError):
            remote.caller()
        assert remote._connections.socket_pool._idle == [connection]
        with pytest.raises(UnauthorizedError):
            list(axon.fetch(remote, "data"))


def test_a_certificate_signed_by_a_known_one_is_refused(
    address: str, tmp_path: Path, known: KnownCertificates
) -> None:
    known.names[axon.create_identity(tmp_path / "pi.pem")] = "pi"
    issue(tmp_path / "pi.pem", tmp_path / "forged.pem")
    with (
        axon.connect(address, certificate=tmp_path / "forged.pem") as remote,
        pytest.raises((UnauthorizedError, UnreachableError)),
    ):
        remote.caller()


def test_the_authenticator_decides_about_callers_without_a_certificate(address: str) -> None:
    with axon.connect(address) as stranger, pytest.raises(UnauthorizedError, match="no cert"):
        stranger.caller()
    with axon.connect(address, token="join") as guest:
        assert guest.caller() == ["guest", None, "127.0.0.1"]


def test_a_caller_downloads_only_its_own_files(
    address: str, tmp_path: Path, known: KnownCertificates
) -> None:
    (tmp_path / "pi-data").write_bytes(b"of pi")
    (tmp_path / "jetson-data").write_bytes(b"of jetson")
    for name in ("pi", "jetson"):
        known.names[axon.create_identity(tmp_path / f"{name}.pem")] = name
        with axon.connect(address, certificate=tmp_path / f"{name}.pem") as remote:
            assert b"".join(axon.fetch(remote, "data")) == f"of {name}".encode()
    with axon.connect(address) as stranger, pytest.raises(UnauthorizedError):
        list(axon.fetch(stranger, "data"))


def test_a_certificate_needs_its_key(
    address: str, tmp_path: Path, known: KnownCertificates
) -> None:
    known.names[axon.create_identity(tmp_path / "pi.pem")] = "pi"
    axon.create_identity(tmp_path / "other.pem")
    certificate = x509.load_pem_x509_certificate((tmp_path / "pi.pem").read_bytes())
    key = (tmp_path / "other.pem").read_bytes().partition(b"-----BEGIN CERTIFICATE")[0]
    stolen = tmp_path / "stolen.pem"
    stolen.write_bytes(key + certificate.public_bytes(serialization.Encoding.PEM))
    with (
        axon.connect(address, certificate=stolen) as remote,
        pytest.raises(SettingError, match=r"stolen\.pem does not contain"),
    ):
        remote.caller()


def test_a_certificate_reaches_the_worker_through_a_relay(
    tmp_path: Path, known: KnownCertificates
) -> None:
    fingerprint = axon.create_identity(tmp_path / "pi.pem")
    known.names[fingerprint] = "pi"
    with (
        axon.Relay(port=0).start() as relay,
        serve(tmp_path, known, relay=relay) as address,
        axon.connect(address, certificate=tmp_path / "pi.pem") as remote,
    ):
        assert remote.caller() == ["pi", fingerprint, None]


def test_a_certificate_is_presented_with_tls_only(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="use an https:// address"):
        axon.connect("http://127.0.0.1:1", certificate=tmp_path / "pi.pem")


def test_a_worker_has_a_token_or_an_authenticator(known: KnownCertificates) -> None:
    with pytest.raises(SettingError, match="exclude each other"):
        axon.Worker(token="sesame", authenticator=known)


def test_a_connection_without_tls_has_no_certificate(known: KnownCertificates) -> None:
    worker = axon.Worker(port=0, authenticator=known)
    worker.functions.rpc()(caller)
    with (
        worker.start() as address,
        axon.connect(address) as remote,
        pytest.raises(UnauthorizedError, match="no certificate"),
    ):
        remote.caller()
