"""TLS with self-signed certificates that are pinned by their fingerprint.

The certificate and its key are stored in one file, so that the address of a worker does not change
when it restarts. The address contains the fingerprint, and a caller accepts only that certificate.
"""

import hashlib
import os
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path

from melisma.errors import SettingError, UnauthorizedError


def default_identity() -> Path:
    """Return the path of the certificate and key of this user's workers."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "melisma" / "identity.pem"


def identity_file(tls: bool | str | Path) -> Path | None:
    """Return the file that a ``tls`` setting names, None without TLS."""
    if isinstance(tls, bool):
        return default_identity() if tls else None
    return Path(tls)


def server_context(identity: Path) -> ssl.SSLContext:
    """Return a context with the certificate in ``identity``; create the file if it is missing."""
    if not identity.exists():
        _create_identity(identity)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(identity)
    except (ssl.SSLError, OSError) as error:
        raise SettingError(
            f"{identity} does not contain a certificate and its key ({error}): "
            "delete the file to create a new one"
        ) from error
    return context


def identity_fingerprint(identity: Path) -> str:
    """Return the fingerprint of the certificate in a file."""
    pem = identity.read_text()
    end = "-----END CERTIFICATE-----"
    start = pem.index("-----BEGIN CERTIFICATE-----")
    return fingerprint(ssl.PEM_cert_to_DER_cert(pem[start : pem.index(end) + len(end)]))


def fingerprint(certificate: bytes) -> str:
    """Return the fingerprint of a certificate (DER), as in addresses."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def client_context(pinned: str | None) -> ssl.SSLContext:
    """Return a client context; with a pinned fingerprint, the caller checks the certificate."""
    context = ssl.create_default_context()
    if pinned:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def check_fingerprint(pinned: str | None, certificate: bytes | None, address: str) -> None:
    """Raise `UnauthorizedError` if the certificate is not the pinned one."""
    if pinned is None:
        return
    actual = fingerprint(certificate or b"")
    if actual != pinned:
        raise UnauthorizedError(
            f"the certificate at {address} is {actual}, the address expects {pinned}: use the "
            "worker's current address, or check for another server at this host"
        )


def _create_identity(identity: Path) -> None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise SettingError(
            'creating a certificate needs another package: pip install "melisma[tls]" '
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
    """Write a file that only its owner may read; if others write it too, the first one stays.

    Replacing a file that another process has just created would change its certificate between
    two reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
    except OSError:  # Not every file system has hard links.
        Path(temporary).replace(path)
    else:
        Path(temporary).unlink()
