"""The worker that serves learners: its limits, and who may call it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from melisma.axon import Authenticator, Limits, Worker
from melisma.axon.server.authentication import OnRefused

MAX_CALLS_PER_LEARNER: Final = 16
FindFile = Callable[[str, str], Path | None]
"""Takes the name of a file and that of a caller, which may download it."""


def learner_worker(  # noqa: PLR0913 - each is a setting of its own
    authenticator: Authenticator,
    files: FindFile,
    max_learners: int,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: bool | Path = False,
    on_refused: OnRefused = lambda _host, _reason: None,
    max_tasks: int = 1,
) -> Worker:
    """Return a worker without methods, for learners that each call for up to `max_tasks` tasks.

    `authenticator` names the caller of each request. `on_refused` receives those whose TLS
    handshake fails.
    """
    limits = Limits(
        max_calls=4 * max_learners * max_tasks + 64,
        max_calls_per_caller=MAX_CALLS_PER_LEARNER * max_tasks,
        # Duplex results, which no learner asks for, displace no other remembered calls.
        keep_s=Limits.remember_s,
    )
    return Worker(
        host=host,
        port=port,
        authenticator=authenticator,
        prefer_credentials=True,
        tls=tls,
        limits=limits,
        files=files,
        on_refused=on_refused,
    )
