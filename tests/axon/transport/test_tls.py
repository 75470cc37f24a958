"""The certificate file of workers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from cryptography import x509

from melisma.axon.transport.tls import create_identity, identity_fingerprint, server_context
from melisma.errors import SettingError

WRITERS = 8


def test_workers_that_start_at_once_share_the_certificate_of_the_first(tmp_path: Path) -> None:
    identity, barrier = tmp_path / "melisma" / "identity.pem", Barrier(WRITERS)

    def start(_: int) -> str:
        barrier.wait()
        server_context(identity)
        return identity_fingerprint(identity)

    for _ in range(5):
        with ThreadPoolExecutor(WRITERS) as pool:
            fingerprints = set(pool.map(start, range(WRITERS)))
        assert len(fingerprints) == 1
        assert list(identity.parent.iterdir()) == [identity]
        assert identity.stat().st_mode & 0o077 == 0
        identity.unlink()


def test_an_identity_is_valid_whatever_the_clock_of_a_device_says(tmp_path: Path) -> None:
    create_identity(tmp_path / "identity.pem")
    certificate = x509.load_pem_x509_certificate((tmp_path / "identity.pem").read_bytes())
    assert certificate.not_valid_before_utc.year == 2000
    assert certificate.not_valid_after_utc.year == 2100


def test_an_identity_is_created_once(tmp_path: Path) -> None:
    identity = tmp_path / "identity.pem"
    assert create_identity(identity) == create_identity(identity) == identity_fingerprint(identity)
    assert create_identity(tmp_path / "other.pem") != identity_fingerprint(identity)


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "identity.pem").write_text("empty")
    with pytest.raises(SettingError, match=r"identity\.pem does not contain a certificate"):
        create_identity(tmp_path / "identity.pem")
