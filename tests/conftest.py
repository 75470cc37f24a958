"""Settings of every test."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.lanes import ALL_TESTS, cases
from tests.ports import claimed_ports

# Each test sets the width of its terminal itself.
os.environ.pop("COLUMNS", None)
# Shells start background jobs with Ctrl-C ignored, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run slow tests and all random cases too")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        # In the environment, so that worker processes see it too.
        os.environ[ALL_TESTS] = "1"
    # Benchmarks, not tests, measure how long things take: no deadline.
    settings.register_profile(
        "melisma",
        max_examples=max(25, cases(100)),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("melisma")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get(ALL_TESTS):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture
def printed_ports() -> Iterator[None]:
    """Claim the ports that the pages of the docs print, because they run as printed."""
    with claimed_ports():
        yield
