"""The certificate file of workers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from melisma.axon.transport.tls import identity_fingerprint, server_context

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
