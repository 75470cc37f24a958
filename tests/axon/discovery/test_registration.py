"""Registration at a notice board, by multicast DNS and at a relay."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from melisma import axon
from melisma.axon.discovery.multicast import announce
from melisma.axon.worker import board_worker
from melisma.errors import RefusedError, SettingError, UnauthorizedError, UnreachableError
from tests.axon.served_functions import a_worker


@pytest.fixture
def relay() -> Iterator[str]:
    with axon.Relay(port=0, token="dial").start() as address:
        yield address.replace("://", "://dial@")


def test_a_worker_signs_in_and_out() -> None:
    with board_worker(port=0).start() as board:
        with a_worker(name="kitchen", board=board).start() as address:
            [notice] = axon.workers(board)
            assert notice.name == "kitchen"
            assert notice.address == address
            assert "echo" in notice.functions
            with axon.connect(notice.address) as remote:
                assert remote.echo(1) == 1
        assert axon.workers(board) == []


def test_a_notice_that_is_not_renewed_expires() -> None:
    now = 0.0
    board = axon.NoticeBoard(clock=lambda: now)
    ticket = board.sign_in("pi", "http://pi:8000", ["f"], lifetime_s=10)
    now = 9.0
    board.sign_in("pi", "http://pi:8000", ["f"], lifetime_s=10, ticket=ticket)
    now = 18.0
    assert [notice.name for notice in board.workers()] == ["pi"]
    now = 20.0
    assert board.workers() == []


def test_a_name_on_the_board_belongs_to_the_first_worker() -> None:
    board = axon.NoticeBoard()
    ticket = board.sign_in("pi", "http://pi:8000", [])
    with pytest.raises(ValueError, match="another name"):
        board.sign_in("pi", "http://thief:8000", [])
    board.sign_out("pi", "guess")
    assert [notice.address for notice in board.workers()] == ["http://pi:8000"]
    board.sign_out("pi", ticket)
    assert board.workers() == []


def test_a_board_requires_its_token() -> None:
    with board_worker(port=0, token="pin").start() as board:
        with pytest.raises(UnauthorizedError):
            axon.workers(board)
        with pytest.raises(UnauthorizedError), a_worker(board=board).start():
            pass
        with a_worker(board=board.replace("://", "://pin@")).start():
            assert len(axon.workers(board, token="pin")) == 1


def test_a_worker_is_discovered_on_the_local_network() -> None:
    name = f"melisma-test-{socket.gethostname()}-{time.time_ns()}"
    with a_worker(name=name, announce=True).start() as address:
        found = axon.discover(1.5, interfaces=["127.0.0.1"])
        assert axon.DiscoveredWorker(name, address) in found
    assert name not in [f.name for f in axon.discover(0.5, interfaces=["127.0.0.1"])]


async def test_a_worker_is_discovered_with_the_kind_that_it_announced() -> None:
    name = f"melisma-test-{socket.gethostname()}-{time.time_ns()}"
    async with announce(name, axon.Address("127.0.0.1", 1), "a-program"):
        found = await asyncio.to_thread(axon.discover, 1.5, interfaces=["127.0.0.1"])
    assert axon.DiscoveredWorker(name, "http://127.0.0.1:1", "a-program") in found


def test_a_worker_is_called_through_a_relay(relay: str) -> None:
    array = np.arange(3_000_000, dtype=np.float32)
    with a_worker(name="behind", relay=relay).start() as address:
        assert "/via/behind" in address
        assert "dial" not in address
        with axon.connect(address) as remote:
            assert np.array_equal(remote.echo(array), array)
            assert list(remote.count_to(3)) == [0, 1, 2]
            assert remote.long_echo("x") == "x"
            futures = [remote.submit.echo(i) for i in range(12)]
            assert [future.result(10) for future in futures] == list(range(12))
    with axon.connect(address) as remote, pytest.raises(RefusedError, match="no worker 'behind'"):
        remote.echo(1)


def test_tls_runs_through_a_relay_from_caller_to_worker(relay: str, tmp_path: Path) -> None:
    array = np.arange(1_000_000)
    with (
        a_worker(
            name="safe", relay=relay, tls=tmp_path / "id.pem", token="inner"
        ).start() as address,
        axon.connect(address, token="inner") as remote,
    ):
        assert "#sha256:" in address
        assert np.array_equal(remote.echo(array), array)
        assert remote.submit.echo("async").result(10) == "async"
        with axon.connect(address) as stranger, pytest.raises(UnauthorizedError):
            stranger.echo(1)
        other = address[:-1] + ("0" if address[-1] != "0" else "1")
        with axon.connect(other, token="inner") as misled:
            with pytest.raises(UnauthorizedError, match="the address expects"):
                misled.echo(1)
            with pytest.raises(UnauthorizedError, match="the address expects"):
                misled.submit.echo(1).result(10)


def test_a_relay_can_use_tls(tmp_path: Path) -> None:
    with (
        axon.Relay(port=0, tls=tmp_path / "relay.pem").start() as relay,
        a_worker(name="hop", relay=relay).start() as address,
        axon.connect(address) as remote,
    ):
        assert remote.echo("through") == "through"
        assert remote.submit.echo("through").result(10) == "through"
        with (
            pytest.raises(SettingError, match="relay without"),
            a_worker(relay=relay, tls=tmp_path / "id.pem").start(),
        ):
            pass


def test_a_relay_requires_its_token_and_unique_names(relay: str) -> None:
    thief = a_worker(name="thief", relay=relay.replace("dial@", ""))
    with pytest.raises(UnauthorizedError), thief.start():
        pass
    with a_worker(name="mine", relay=relay).start() as address:
        twin = a_worker(name="mine", relay=relay)
        with pytest.raises(RefusedError, match="another worker is called 'mine'"), twin.start():
            pass
        with axon.connect(address) as remote:
            assert remote.echo(1) == 1


def test_a_missing_relay_is_named() -> None:
    lost = a_worker(relay="http://127.0.0.1:1")
    with (
        pytest.raises(UnreachableError, match=r"no relay answers at http://127\.0\.0\.1:1"),
        lost.start(),
    ):
        pass


def test_a_worker_reconnects_to_a_restarted_relay() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with contextlib.ExitStack() as stack:
        with axon.Relay(port=port).start() as relay:
            address = stack.enter_context(a_worker(name="back", relay=relay).start())
            with axon.connect(address) as remote:
                assert remote.echo(1) == 1
        stack.enter_context(axon.Relay(port=port).start())
        limit = time.monotonic() + 10
        while time.monotonic() < limit:
            try:
                with axon.connect(address) as remote:
                    assert remote.echo(2) == 2
                    return
            except RefusedError:
                time.sleep(0.05)
        pytest.fail("the worker did not dial again")
