"""A clock that the test moves."""

import time

import pytest

from tests.live.learner.manual_clock import ManualClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Replace the wall clock and the processor clock of this thread."""
    manual = ManualClock()
    monkeypatch.setattr(time, "monotonic", lambda: manual.now_s)
    monkeypatch.setattr(time, "thread_time", lambda: manual.used_s)
    monkeypatch.setattr(time, "sleep", manual.sleep)
    return manual
