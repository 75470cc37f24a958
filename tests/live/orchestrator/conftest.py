"""A served run and its learners."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.live.orchestrator.served_run import Learners, ServedRun


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ServedRun, Learners]]:
    """Return a run that has started, and its learners, which have not registered."""
    run = ServedRun(tmp_path)
    run.orchestrator.start()
    async with run.serving() as learners:
        yield run, learners
    run.close()
