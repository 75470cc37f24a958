"""Settings of every test."""

import os
import socket

import pytest
from hypothesis import HealthCheck, settings

# Tests say themselves how wide a terminal is; those that run side by side are told of one.
os.environ.pop("COLUMNS", None)

# How long things take is for the benchmarks to say.
settings.register_profile("melisma", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("melisma")


@pytest.fixture(scope="module")
def printed_ports() -> None:
    """The ports that the pages and listings print; what runs as printed needs them free."""
    for port in (8000, 8001, 8002, 8443):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            pytest.fail(f"port {port} is in use ({error}): end what listens there, then test again")
