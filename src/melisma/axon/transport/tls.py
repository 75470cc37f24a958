"""TLS with certificates that are pinned by their fingerprint, of workers and of callers.

An identity is a certificate and its key in one file, so that the address of a worker does not
change when it restarts. The address contains the fingerprint, and a caller accepts only that
certificate. A caller may present the certificate of an identity of its own: the worker's
authenticator decides by its fingerprint.

Servers of the standard library can request the certificate of a client only together with an
issuer to trust, and asyncio closes the connection without a reason if the issuer is unknown. All
identities are therefore issued with a key that everyone knows (`_ISSUER_KEY`). It is no secret and
proves nothing: TLS proves that the client has the key of its certificate, and a certificate means
something only where its exact fingerprint is known. An unknown or revoked one is refused like an
invalid token, with an error that says so.

Certificates are valid from 2000 to 2100, because the clocks of devices are often wrong.
"""

import hashlib
import os
import secrets
import ssl
import tempfile
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from melisma.errors import SettingError, UnauthorizedError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate

_ISSUER: Final = "melisma identities"
_ISSUER_KEY: Final = int.from_bytes(
    hashlib.sha256(b"melisma identities: no secret").digest(), "big"
)
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME, which the standard library does not name."""


def data_folder() -> Path:
    """Return the folder of this user's data: ``MELISMA_HOME``, or in ``XDG_DATA_HOME``."""
    if home := os.environ.get("MELISMA_HOME"):
        return Path(home)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "melisma"


def default_identity() -> Path:
    """Return the path of the certificate and key of this user's workers."""
    return data_folder() / "identity.pem"


def identity_file(tls: bool | str | Path) -> Path | None:
    """Return the file that a ``tls`` setting names, None without TLS."""
    if isinstance(tls, bool):
        return default_identity() if tls else None
    return Path(tls)


def server_context(identity: Path, *, request_certificates: bool = False) -> ssl.SSLContext:
    """Return a context with the certificate in ``identity``; create the file if it is missing.

    With ``request_certificates`` clients may present a certificate created by `create_identity`,
    by any device: check its fingerprint.
    """
    create_identity(identity)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(identity)
    except (ssl.SSLError, OSError) as error:
        raise SettingError(
            f"{identity} does not contain a certificate and its key ({error}): "
            "delete the file to create a new one"
        ) from error
    if request_certificates:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= _NO_CHECK_TIME
        context.load_verify_locations(cadata=_issuer_certificate())
    return context


def create_identity(identity: Path) -> str:
    """Create a key and its certificate unless the file exists; return the fingerprint."""
    if not identity.exists():
        _create_identity(identity)
    return identity_fingerprint(identity)


def identity_fingerprint(identity: Path) -> str:
    """Return the fingerprint of the certificate in a file."""
    pem = identity.read_text()
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        start, stop = pem.index(begin), pem.index(end) + len(end)
        return fingerprint(ssl.PEM_cert_to_DER_cert(pem[start:stop]))
    except ValueError as error:
        raise SettingError(
            f"{identity} does not contain a certificate: delete the file to create a new one"
        ) from error


def fingerprint(certificate: bytes) -> str:
    """Return the fingerprint of a certificate (DER), as in addresses."""
    return f"sha256:{hashlib.sha256(certificate).hexdigest()}"


def describe_failed_handshake(error: ssl.SSLError) -> str:
    """Return the reason for which the TLS handshake with a client failed."""
    if error.reason == "HTTP_REQUEST":
        return "it sent plain HTTP, and only TLS is served here: use an address with https://"
    return f"the TLS handshake failed: {(error.reason or 'unknown').replace('_', ' ').lower()}"


def client_context(pinned: str | None, certificate: Path | None = None) -> ssl.SSLContext:
    """Return a client context that presents the identity in the file ``certificate``.

    With a pinned fingerprint, the caller checks the certificate of the server.
    """
    if pinned:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = ssl.create_default_context()
    if certificate is not None:
        try:
            context.load_cert_chain(certificate)
        except (ssl.SSLError, OSError) as error:
            raise SettingError(
                f"{certificate} does not contain a certificate and its key ({error}): "
                "pass the file of an identity"
            ) from error
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
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _issue(f"melisma-{secrets.token_hex(8)}", key.public_key(), is_issuer=False)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    _write_private(identity, pem)


def _issuer_certificate() -> bytes:
    """Return a certificate (DER) of the issuer; only its name and key matter."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    key = ec.derive_private_key(_ISSUER_KEY, ec.SECP256R1())
    return _issue(_ISSUER, key.public_key(), is_issuer=True).public_bytes(Encoding.DER)


def _issue(name: str, key: "EllipticCurvePublicKey", *, is_issuer: bool) -> "Certificate":
    """Return a certificate of ``key`` by the issuer whose key everyone knows."""
    # Imported here: an agent needs them only to create its identity.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    issuer = ec.derive_private_key(_ISSUER_KEY, ec.SECP256R1())
    subject, by = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, _ISSUER)
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=timezone.utc))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=timezone.utc))
        .add_extension(x509.BasicConstraints(ca=is_issuer, path_length=None), critical=True)
        .sign(issuer, hashes.SHA256())
    )


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
