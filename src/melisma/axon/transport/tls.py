"""TLS without an authority: a certificate made here, known by its fingerprint.

The certificate and its key stay in one file, so that the address of a worker stays the same when
it is started again. Whoever has the address has the fingerprint, and talks to that key alone.
"""

import hashlib
import os
import ssl
import tempfile
from pathlib import Path

from melisma.errors import SettingError, UnauthorizedError


def default_identity() -> Path:
    """Where the certificate of this user's workers is kept."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "melisma" / "identity.pem"


def identity_file(tls: bool | str | Path) -> Path | None:
    """The file that a ``tls`` setting means; None without TLS."""
    if isinstance(tls, bool):
        return default_identity() if tls else None
    return Path(tls)


def server_context(identity: Path) -> ssl.SSLContext:
    """A context that shows the certificate in ``identity``, which is made if it is missing."""
    if not identity.exists():
        _make_identity(identity)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(identity)
    except (ssl.SSLError, OSError) as error:
        raise SettingError(
            f"{identity} does not hold a certificate and its key ({error}): "
            "delete it to have a new one made"
        ) from error
    return context


def identity_fingerprint(identity: Path) -> str:
    """The fingerprint of the certificate in a file made by `server_context`."""
    pem = identity.read_text()
    end = "-----END CERTIFICATE-----"
    start = pem.index("-----BEGIN CERTIFICATE-----")
    return fingerprint(ssl.PEM_cert_to_DER_cert(pem[start : pem.index(end) + len(end)]))


def fingerprint(certificate: bytes) -> str:
    """How a certificate (DER) is named in an address."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def client_context(pinned: str | None) -> ssl.SSLContext:
    """A context for calling: by authority, or unverified where a fingerprint will be checked."""
    context = ssl.create_default_context()
    if pinned:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def check_fingerprint(pinned: str | None, certificate: bytes | None, where: str) -> None:
    """Refuse a certificate that is not the pinned one, before anything is sent."""
    if pinned is None:
        return
    shown = fingerprint(certificate or b"")
    if shown != pinned:
        raise UnauthorizedError(
            f"the worker at {where} shows certificate {shown}, its address says {pinned}: "
            "someone else answers there, or it has a new certificate and a new address"
        )


def _make_identity(identity: Path) -> None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise SettingError(
            'making a certificate takes one more package: pip install "melisma[tls]" '
            f"(or put a certificate and its key into {identity})"
        ) from error
    from datetime import UTC, datetime, timedelta

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "melisma")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=36500))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    _write_private(identity, pem)


def _write_private(path: Path, data: bytes) -> None:
    """Whole or not at all, and readable by the owner only (mkstemp sees to that)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    Path(temporary).replace(path)
