"""A whole worker: authentication, TLS, limits, metrics, restarts and shutdown."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import Future, as_completed
from pathlib import Path

import numpy as np
import pytest

from melisma import axon
from melisma.errors import (
    BusyError,
    LostError,
    SettingError,
    StorageError,
    TooLargeError,
    UnauthorizedError,
    UnreachableError,
)
from tests.axon.served_functions import RELEASED, RUNS, WAIT_S, a_worker, wait_for_run

SCRIPT = """
import sys, time
from melisma import axon
worker = axon.Worker(port=int(sys.argv[1]))
@worker.rpc()
def slow(key):
    with open(sys.argv[2], "a") as file:
        file.write(key + "\\n")
    time.sleep(float(sys.argv[3]))
    return key
@worker.rpc(name="quick")
def quick():
    return "quick"
with worker.start() as address:
    print(address, flush=True)
    sys.stdin.read()
"""


def start_script(port: int, log: Path, seconds: float) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(port), str(log), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def stop(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def test_a_worker_listens_on_loopback_by_default() -> None:
    assert axon.Worker().host == "127.0.0.1"


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"127.0.0.1:{port}"), axon.Worker(port=port).start():
            pass


def test_a_token_is_required() -> None:
    with a_worker(token="sesame").start() as address:
        for wrong in (None, "sesam", "sesame!", "x" * 500):
            with axon.connect(address, token=wrong) as remote:
                with pytest.raises(UnauthorizedError):
                    remote.once("refused")
                with pytest.raises(UnauthorizedError):
                    axon.describe(remote)
        with axon.connect(address, token="sesame") as remote:
            assert remote.call_facts()["caller"] == "owner"
        with axon.connect(address.replace("://", "://sesame@")) as remote:
            assert remote.echo(1) == 1
        assert RUNS["refused"] == 0


def test_issued_tokens_have_a_name_a_lifetime_and_uses() -> None:
    with a_worker(token="sesame").start() as address:
        named = axon.issue_token("sesame", "pi-kitchen")
        with axon.connect(address, token=named) as remote:
            assert remote.call_facts()["caller"] == "pi-kitchen"
            assert remote.echo(1) == 1
        expired = axon.issue_token("sesame", "pi", lifetime_s=-5)
        with (
            axon.connect(address, token=expired) as remote,
            pytest.raises(UnauthorizedError, match="expired"),
        ):
            remote.echo(1)
        single = axon.issue_token("sesame", "pi", once=True)
        with axon.connect(address, token=single) as remote:
            assert remote(call_id="first").once("single") == 1
            with pytest.raises(UnauthorizedError, match="has been used"):
                remote.once("single")
        forged = named.replace("pi-kitchen", "owner")
        with (
            axon.connect(address, token=forged) as remote,
            pytest.raises(UnauthorizedError, match="the token is invalid for this worker"),
        ):
            remote.once("forged")
        assert RUNS == {"single": 1}


def test_a_single_call_token_is_valid_for_a_whole_duplex_call() -> None:
    with a_worker(token="sesame").start() as address:
        single = axon.issue_token("sesame", "pi", once=True)
        with axon.connect(address, token=single) as remote:
            assert remote.long_echo("result") == "result"
            with pytest.raises(UnauthorizedError, match="has been used"):
                remote.long_echo("result")


def test_a_result_is_delivered_only_to_its_caller() -> None:
    with a_worker(token="sesame").start() as address:
        mine, yours = (axon.issue_token("sesame", name) for name in ("mine", "yours"))
        with (
            axon.connect(address, token=mine) as remote,
            axon.connect(address, token=yours) as other,
            axon.connect(address, token="sesame") as owner,
        ):
            running = remote(call_id="secret-1").submit.long_blocked("secret")
            wait_for_run("secret")
            with pytest.raises(UnauthorizedError, match="does not belong to yours"):
                axon.resume(other, "secret-1").result(WAIT_S)
            with pytest.raises(UnauthorizedError, match="does not belong to yours"):
                other(call_id="secret-1").long_blocked("secret")
            fetched = axon.resume(owner, "secret-1")
            RELEASED.set()
            assert "secret" in {
                f.result(WAIT_S) for f in (running, fetched) if not f.exception(WAIT_S)
            }


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    return tmp_path / "identity.pem"


def test_tls_pins_the_certificate_by_the_address(identity: Path) -> None:
    array = np.arange(2_000_000, dtype=np.int64)
    with a_worker(tls=identity).start() as address:
        assert address.startswith("https://127.0.0.1:")
        with axon.connect(address) as remote:
            assert np.array_equal(remote.echo(array), array)
            assert list(remote.count_to(3)) == [0, 1, 2]

            async def both() -> None:
                assert np.array_equal(await remote.aio.echo(array), array)
                assert await remote.aio.long_echo(2) == 2

            asyncio.run(both())
        wrong = address[:-1] + ("0" if address[-1] != "0" else "1")
        with axon.connect(wrong) as remote:
            with pytest.raises(UnauthorizedError, match="the address expects"):
                remote.once("key")
            with pytest.raises(UnauthorizedError, match="the address expects"):
                remote.submit.once("key").result(WAIT_S)
        with axon.connect(address.partition("#")[0]) as remote:
            with pytest.raises(UnauthorizedError, match="fingerprint"):
                remote.once("key")
            with pytest.raises(UnauthorizedError, match="fingerprint"):
                remote.submit.once("key").result(WAIT_S)
        plain = address.partition("#")[0].replace("https", "http")
        with axon.connect(plain) as remote, pytest.raises(UnreachableError):
            remote.once("key")
    assert not RUNS


def test_a_certificate_survives_a_restart_and_its_key_is_private(identity: Path) -> None:
    with a_worker(tls=identity).start() as address:
        first = address.partition("#")[2]
    with a_worker(tls=identity).start() as address:
        assert address.partition("#")[2] == first
    assert identity.stat().st_mode & 0o077 == 0


def test_results_of_tls_calls_are_posted_with_tls(
    identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with (
        a_worker(tls=identity).start() as address,
        axon.connect(address, callbacks="127.0.0.1:0") as remote,
    ):
        assert remote.long_echo("posted") == "posted"


def test_two_hundred_calls_over_a_limit_of_ten_are_answered_and_run_once_at_most() -> None:
    with a_worker(limits=axon.Limits(max_calls=10)).start() as address:
        with axon.connect(address) as remote:
            calls = [remote.submit.blocked(f"key {i}") for i in range(200)]
            while sum(RUNS.values()) < 10:
                time.sleep(0.005)
            refused: list[Future[str]] = []
            for call in as_completed(calls, timeout=WAIT_S):
                refused.append(call)
                if len(refused) == 190:
                    break
            running = [call for call in calls if not call.done()]
            assert len(running) == 10
            for call in refused:
                with pytest.raises(BusyError, match="limit of 10 concurrent calls"):
                    call.result()
            RELEASED.set()
            assert all(call.result(WAIT_S) for call in running)
            assert remote.echo("after") == "after"
        assert set(RUNS.values()) == {1}
        assert len(RUNS) == 10


def test_a_request_over_the_limit_is_refused_before_it_is_sent() -> None:
    limits = axon.Limits(max_body_bytes=2_000_000, max_tree_bytes=10_000)
    with a_worker(limits=limits).start() as address, axon.connect(address) as remote:
        with pytest.raises(TooLargeError, match="max_body_bytes"):
            remote.echo(np.zeros(50_000_000, np.uint8))
        with pytest.raises(TooLargeError, match="max_tree_bytes"):
            remote.echo(list(range(20_000)))
        assert remote.echo(np.zeros(1000)).shape == (1000,)


def test_the_error_for_a_result_without_space_names_the_limit() -> None:
    limits = axon.Limits(keep_memory_bytes=1000, keep_disk_bytes=100_000)
    with a_worker(limits=limits).start() as address, axon.connect(address) as remote:
        assert remote.long_echo(b"x" * 50_000) == b"x" * 50_000
        with pytest.raises(StorageError, match="keep_disk_bytes"):
            remote.long_echo(b"x" * 200_000)
        assert remote.long_echo(b"x" * 90_000) == b"x" * 90_000


def test_a_worker_survives_an_array_that_does_not_fit_into_memory() -> None:
    code = (
        "import resource, sys\n"
        "import numpy\n"
        "from tests.axon.served_functions import a_worker\n"
        "with a_worker().start() as address:\n"
        "    size = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)\n"
        "    print(address, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with axon.connect(process.stdout.readline().strip()) as remote:
            with pytest.raises(TooLargeError, match="not enough memory"):
                remote.inline_echo(np.zeros(800 << 20, np.uint8))
            assert remote.inline_echo(np.arange(3)).tolist() == [0, 1, 2]
    finally:
        stop(process)


def test_metrics_are_in_the_prometheus_format() -> None:
    with a_worker().start() as address:
        with axon.connect(address) as remote:
            remote.echo(1)
            remote.echo(2)
            with pytest.raises(ValueError, match="no"):
                remote.fail("no")
        with urllib.request.urlopen(f"{address}/metrics") as response:
            text = response.read().decode()
    assert 'axon_calls_total{function="echo",outcome="returned"} 2' in text
    assert 'axon_calls_total{function="fail",outcome="raised"} 1' in text
    assert "axon_calls_active 0" in text


def test_the_trace_hook_receives_each_call_and_may_raise() -> None:
    records: list[axon.CallRecord] = []

    def hook(record: axon.CallRecord) -> None:
        records.append(record)
        raise RuntimeError("a bad hook")

    with a_worker(trace=hook).start() as address, axon.connect(address) as remote:
        assert remote(call_id="seen").echo(b"x" * 2000) == b"x" * 2000
        assert list(remote.count_to(2)) == [0, 1]
    assert [(r.function, r.outcome) for r in records] == [
        ("echo", "returned"),
        ("count_to", "returned"),
    ]
    assert records[0].id == "seen"
    assert records[0].bytes_in > 2000
    assert records[0].bytes_out > 2000


def test_a_worker_killed_in_the_middle_of_a_call_runs_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "runs"
    process, address = start_script(0, log, 30)
    with axon.connect(address) as remote:
        call = remote.submit.slow("once")
        while not log.exists() or not log.read_text():
            time.sleep(0.01)
        stop(process)
        with pytest.raises(UnreachableError):
            call.result(20)
    assert log.read_text() == "once\n"


def test_a_restarted_worker_does_not_run_a_call_that_it_may_have_run_before(
    tmp_path: Path,
) -> None:
    log = tmp_path / "runs"
    process, address = start_script(0, log, 30)
    port = int(address.rpartition(":")[2])
    with axon.connect(address) as remote:
        call = remote(retries=30).submit.slow("once")
        while not log.exists() or not log.read_text():
            time.sleep(0.01)
        stop(process)
        process, _ = start_script(port, log, 0)
        try:
            with pytest.raises(LostError, match="may have run on this worker"):
                call.result(30)
            assert remote.quick() == "quick"
        finally:
            stop(process)
    assert log.read_text() == "once\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_served_script_ends_without_output_on_a_signal(tmp_path: Path, number: int) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import logging\n"
        "logging.basicConfig(level='INFO')\n"
        "from melisma import axon\n"
        "@axon.worker.rpc()\n"
        "def f():\n    return 1\n"
        "axon.worker.init(port=0)\n"
        "print('after')\n"
    )
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "serving f at http://127.0.0.1:" in process.stderr.readline()
        os.kill(process.pid, number)
        output, errors = process.communicate(timeout=20)
    assert output == "after\n"
    assert errors == ""
    assert process.returncode == 0


def test_stopping_waits_for_running_calls_up_to_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with a_worker(limits=axon.Limits(shutdown_s=0.2)).start() as address:
        remote = axon.connect(address)
        future = remote.submit.blocked("stuck")
        wait_for_run("stuck")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    with pytest.raises(Exception, match=r"stopping|no answer"):
        future.result(WAIT_S)
    assert [each.getMessage() for each in caplog.records] == [
        "waiting up to 0.1 s for 1 calls to end"
    ]


async def test_calls_that_end_when_a_worker_stops_are_waited_for_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began, over = asyncio.Event(), asyncio.Event()

    async def poll() -> str:
        began.set()
        # As long as `wait_for` takes to notice that its event was set, and longer.
        await over.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return "over"

    worker = axon.Worker(port=0)
    worker.rpc()(poll)
    with contextlib.ExitStack() as stack:
        async with worker.listening() as address:
            remote = stack.enter_context(axon.connect(address))
            poll_ended = asyncio.ensure_future(remote.aio.poll())
            await began.wait()
            over.set()
        assert await poll_ended == "over"
    assert caplog.records == []
