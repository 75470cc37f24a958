"""Reaching an orchestrator: the address that answers with the right certificate, and reasons."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from melisma import axon
from melisma.errors import SettingError, UnreachableError
from melisma.live.learner.reach import FailedAddress, ReachedOrchestrator, reach, reach_each

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[axon.Address]:
    with axon.Worker(host="127.0.0.1", port=0, tls=tmp_path / "id.pem").start() as address:
        yield axon.Address.parse(address)


def test_the_address_with_the_right_certificate_is_found(server: axon.Address) -> None:
    assert server.fingerprint is not None
    with socket.create_server(("127.0.0.2", server.port)):  # accepts and never answers
        began = time.monotonic()
        reached = reach(
            ["127.0.0.2", "127.0.0.3", "127.0.0.1"], server.port, server.fingerprint[:39]
        )
        assert time.monotonic() - began < 5.0
    assert reached.address == str(server)
    assert reached.fingerprint == server.fingerprint


def test_another_server_at_an_address_is_not_taken(server: axon.Address, tmp_path: Path) -> None:
    assert server.fingerprint is not None
    other = axon.Worker(host="127.0.0.2", port=server.port, tls=tmp_path / "other.pem")
    with other.start():
        reached = reach(["127.0.0.2", "127.0.0.1"], server.port, server.fingerprint)
        assert reached.address == str(server)
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.2:\d+: another server answers"):
            reach(["127.0.0.2"], server.port, server.fingerprint)


def test_each_address_is_listed_with_its_reason(server: axon.Address) -> None:
    with (
        axon.Worker(host="127.0.0.2", port=server.port, token="t").start(),
        socket.create_server(("127.0.0.4", server.port)),
        pytest.raises(UnreachableError) as caught,
    ):
        reach(HOSTS, server.port, "sha256:" + "0" * 32, timeout_s=2.0)
    message = str(caught.value)
    assert f"127.0.0.3:{server.port}: connection refused" in message
    assert f"127.0.0.2:{server.port}: answers without valid TLS" in message
    assert f"127.0.0.4:{server.port}: no answer within 2 s" in message
    assert f"TCP port {server.port}" in message


def test_the_result_of_each_address_is_returned_in_order(server: axon.Address) -> None:
    assert server.fingerprint is not None
    first, second = reach_each(["127.0.0.3", "127.0.0.1"], server.port, server.fingerprint)
    assert first == FailedAddress(f"127.0.0.3:{server.port}", "connection refused")
    assert second == ReachedOrchestrator(str(server), server.fingerprint, ())
    with pytest.raises(SettingError, match="at least 32 digits"):
        reach_each(["127.0.0.1"], server.port, "sha256:00")


def test_a_short_prefix_of_a_fingerprint_is_refused() -> None:
    with pytest.raises(SettingError, match="at least 32 digits"):
        reach(["127.0.0.1"], 1, "sha256:0123")
