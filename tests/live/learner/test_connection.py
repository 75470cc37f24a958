"""Calls and downloads of a learner while its line is cut or the orchestrator is busy."""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from melisma import axon
from melisma.axon import Limits
from melisma.axon.address import Address
from melisma.errors import RefusedError, UnauthorizedError, UnreachableError
from melisma.live.learner import connection as connection_module
from melisma.live.learner.connection import Connection

TOKEN = "t" * 24


class Line:
    """A TCP line to a worker that can be cut: connections break and new ones are refused."""

    def __init__(self, target: str) -> None:
        self._target = Address.parse(target)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            if self.cut:
                caller.close()
                continue
            threading.Thread(target=self._forward, args=(caller,), daemon=True).start()

    def _forward(self, caller: socket.socket) -> None:
        worker = socket.create_connection((self._target.host, self._target.port))
        with caller, worker:
            self._open += [caller, worker]
            back = threading.Thread(target=_pump, args=(worker, caller), daemon=True)
            back.start()
            _pump(caller, worker)
            back.join()

    def cut_for(self, seconds: float) -> None:
        """Cut the line now, and restore it after some seconds."""
        self.cut = True
        for end in self._open:
            _shut(end)
        self._open.clear()
        time.sleep(seconds)
        self.cut = False

    def close(self) -> None:
        self.cut = True
        self._server.close()
        for end in self._open:
            _shut(end)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
    except OSError:
        pass
    _shut(target)


class Counter:
    """Counts how often each call ran."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def count(self, number: int) -> int:
        time.sleep(0.05)
        self.ran.append(number)
        return number

    def refuse(self) -> None:
        raise RefusedError("never")


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture
def line(counter: Counter, tmp_path: Path) -> Iterator[Line]:
    (tmp_path / "file").write_bytes(secrets.token_bytes(8 << 20))
    worker = axon.Worker(port=0, token=TOKEN, files=lambda name, _: tmp_path / name)
    worker.expose(counter, ["count", "refuse"], name="")
    with worker.start() as address:
        line = Line(address)
        yield line
        line.close()


def record_retries(reasons: list[str]) -> Callable[[str, float], None]:
    return lambda reason, _: reasons.append(reason)


def test_calls_go_on_after_the_line_was_cut_and_run_once(line: Line, counter: Counter) -> None:
    reasons: list[str] = []
    cutter = threading.Timer(0.3, line.cut_for, (1.0,))
    with Connection([line.address], token=TOKEN, on_retry=record_retries(reasons)) as connection:
        cutter.start()
        results = [connection.call("count", number) for number in range(20)]
        cutter.join()
    assert results == list(range(20))
    assert counter.ran == list(range(20))
    assert reasons
    assert all(line.address in reason for reason in reasons)


def test_a_download_goes_on_where_the_line_was_cut(line: Line, tmp_path: Path) -> None:
    with Connection([line.address], token=TOKEN) as connection:
        pieces = connection.fetch("file")
        content = bytearray(next(pieces))
        cutter = threading.Thread(target=line.cut_for, args=(0.5,))
        cutter.start()
        for piece in pieces:
            content += piece
        cutter.join()
    assert content == (tmp_path / "file").read_bytes()


def test_another_address_is_used_when_one_does_not_answer(line: Line) -> None:
    reasons: list[str] = []
    dead = "http://127.0.0.1:9"
    addresses = [dead, line.address]
    with Connection(addresses, token=TOKEN, on_retry=record_retries(reasons)) as connection:
        assert [connection.call("count", number) for number in range(3)] == [0, 1, 2]
    assert len(reasons) == 1
    assert dead in reasons[0]


def test_threads_that_wait_for_the_same_address_report_it_once(line: Line) -> None:
    reasons: list[str] = []
    threads = 8
    together = threading.Barrier(threads)
    addresses = ["http://127.0.0.1:9", line.address]

    def count(connection: Connection, number: int) -> None:
        together.wait()
        connection.call("count", number)

    with (
        Connection(addresses, token=TOKEN, on_retry=record_retries(reasons)) as connection,
        ThreadPoolExecutor(threads) as pool,
    ):
        for done in [pool.submit(count, connection, number) for number in range(threads)]:
            done.result()
    assert 1 <= len(reasons) < threads


def test_the_time_of_attempts_without_an_answer_is_told_from_that_of_the_call(line: Line) -> None:
    least_s = connection_module.FIRST_PAUSE_S * (1 - connection_module.PAUSE_SPREAD)
    with Connection(["http://127.0.0.1:9", line.address], token=TOKEN) as connection:
        began_at = time.monotonic()
        result, unanswered_s = connection.call_timed("count", 1)
        assert result == 1
        assert least_s <= unanswered_s < time.monotonic() - began_at


def test_a_busy_orchestrator_is_asked_again(counter: Counter) -> None:
    worker = axon.Worker(port=0, limits=Limits(max_calls=1))
    worker.expose(counter, ["count"], name="")
    with (
        worker.start() as address,
        Connection([address]) as connection,
        ThreadPoolExecutor(8) as pool,
    ):
        results = list(pool.map(lambda number: connection.call("count", number), range(8)))
    assert results == list(range(8))
    assert sorted(counter.ran) == list(range(8))


def test_refusals_are_final(line: Line) -> None:
    reasons: list[str] = []
    retried = record_retries(reasons)
    with Connection([line.address], token=TOKEN, on_retry=retried) as connection:
        with pytest.raises(RefusedError, match="never"):
            connection.call("refuse")
        with pytest.raises(RefusedError, match="no file"):
            list(connection.fetch("missing"))
    with (
        Connection([line.address], token="wrong", on_retry=retried) as connection,
        pytest.raises(UnauthorizedError),
    ):
        connection.call("count", 1)
    assert not reasons


def test_an_orchestrator_that_never_answers_is_given_up_with_the_time(line: Line) -> None:
    line.cut = True
    with (
        Connection([line.address], give_up_s=1.0) as connection,
        pytest.raises(UnreachableError, match=r"has not answered for \d+ s"),
    ):
        connection.call("count", 1)


def test_a_call_that_the_orchestrator_has_forgotten_is_made_anew(
    line: Line, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is cut for longer than a call keeps its id."""
    monkeypatch.setattr(connection_module, "SAME_CALL_S", 0.2)
    line.cut = True
    restore = threading.Timer(1.0, lambda: setattr(line, "cut", False))
    restore.start()
    with Connection([line.address], token=TOKEN) as connection:
        assert connection.call("count", 5) == 5
    restore.join()
    assert counter.ran == [5]
