"""Settings of every test."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.lanes import ALL_TESTS, cases

TESTS = Path(__file__).parent
SHARING = ("axon", "cli", "docs", "live")

# Each test sets the width of its terminal itself.
os.environ.pop("COLUMNS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run slow tests and all random cases too")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all"):
        # In the environment, so that worker processes see it too.
        os.environ[ALL_TESTS] = "1"
    # Benchmarks, not tests, measure how long things take: no deadline.
    settings.register_profile(
        "melisma",
        max_examples=cases(100),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("melisma")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get(ALL_TESTS):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    # Run the tests of a file in one process where they share servers, runs or ports; pages
    # take longest, so they begin.
    for item in items:
        if folder_of(item) in SHARING and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    items.sort(key=lambda item: folder_of(item) != "docs")


def folder_of(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


@pytest.fixture(scope="module")
def printed_ports() -> None:
    """The ports that the pages and listings print; what runs as printed needs them free."""
    for port in (8000, 8001, 8002, 8443):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            pytest.fail(f"port {port} is in use ({error}): end what listens there, then test again")
