"""A served run and a connection to it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from melisma import axon
from tests.live.orchestrator.served_run import ServedRun


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ServedRun, axon.Remote]]:
    """Return a run that has started, and a connection to its learner service."""
    run = ServedRun(tmp_path)
    run.orchestrator.start()
    async with run.service.worker().listening() as address:
        with axon.connect(address, token=run.service.token) as remote:
            yield run, remote.aio
    run.close()
