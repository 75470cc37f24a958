import asyncio
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from melisma import axon
from melisma.axon.client import caller
from melisma.errors import (
    CallCancelledError,
    DeadlineError,
    EncodingError,
    LostError,
    MalformedError,
    RefusedError,
    RemoteError,
    SettingError,
    UnreachableError,
)
from tests.axon.served_functions import (
    CANCELLED,
    DEADLINES_S,
    RELEASED,
    RUNS,
    WAIT_S,
    Point,
    wait_for_run,
)


def test_a_call_blocks_until_its_result_arrives(remote: axon.Remote) -> None:
    assert remote.echo({"a": (1, 2.5, {3})}) == {"a": (1, 2.5, {3})}


async def test_a_call_can_be_awaited(remote: axon.Remote) -> None:
    assert await remote.aio.add(1, b=2) == 3
    assert await asyncio.gather(*(remote.aio.echo(i) for i in range(40))) == list(range(40))


def test_a_call_can_return_a_future(remote: axon.Remote) -> None:
    futures = [remote.submit.echo(i) for i in range(40)]
    assert [future.result(WAIT_S) for future in futures] == list(range(40))


def test_callers_in_many_threads_share_a_worker(remote: axon.Remote) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(remote.echo, range(200))) == list(range(200))


def test_a_large_array_arrives_whole_and_writable(remote: axon.Remote) -> None:
    array = np.arange(3_000_000, dtype=np.float32).reshape(1000, 3000)
    echoed = remote.echo(array)
    assert np.array_equal(echoed, array)
    echoed[0, 0] = 1


def test_a_built_in_exception_arrives_as_itself_with_the_remote_traceback(
    remote: axon.Remote,
) -> None:
    with pytest.raises(ValueError, match="no") as caught:
        remote.fail("no")
    assert caught.value.args == ("no", 7)
    assert isinstance(caught.value.__cause__, RemoteError)
    assert "in fail" in caught.value.__cause__.remote_traceback


def test_an_os_error_of_the_function_is_not_retried(remote: axon.Remote) -> None:
    for call in (remote.open_missing, remote(comms_pattern="duplex").open_missing):
        with pytest.raises(FileNotFoundError) as caught:
            call("key")
        assert caught.value.filename == "/missing/key"
    items = remote.stream_missing()
    assert next(items) == 1
    with pytest.raises(ConnectionResetError, match="mine"):
        next(items)
    assert RUNS == {"key": 2}


def test_a_name_need_not_be_ascii(remote: axon.Remote) -> None:
    assert remote.größe(3) == 3


def test_another_exception_arrives_as_a_remote_error(remote: axon.Remote) -> None:
    with pytest.raises(RemoteError, match="odd") as caught:
        remote.fail_oddly()
    assert caught.value.type_name == "tests.axon.served_functions.OddError"


def test_a_function_that_exits_does_not_end_its_worker(remote: axon.Remote) -> None:
    with pytest.raises(RemoteError, match="SystemExit"):
        remote.leave()
    assert remote.echo(1) == 1


def test_the_error_for_a_result_that_cannot_be_sent_contains_its_path(remote: axon.Remote) -> None:
    with pytest.raises(EncodingError, match=r"result\['inside'\]\[0\]"):
        remote.unsendable()


def test_an_argument_that_cannot_be_sent_is_refused_before_it_is_sent(remote: axon.Remote) -> None:
    with pytest.raises(EncodingError, match=r"argument \[1\]\['k'\] cannot be sent"):
        remote.echo(0, {"k": object()})


def test_wrong_arguments_raise_the_type_error_of_python(remote: axon.Remote) -> None:
    with pytest.raises(TypeError, match="missing 1 required"):
        remote.echo()


def test_a_dataclass_arrives_where_it_is_named(remote: axon.Remote, address: str) -> None:
    assert remote.mirror(Point(1, 2)) == Point(2, 1)
    assert remote.process_mirror(Point(1, 2)) == Point(2, 1)
    with pytest.raises(MalformedError, match="annotations"):
        remote.echo(Point(1, 2))
    with axon.connect(address) as unaware, pytest.raises(MalformedError, match="types="):
        unaware.mirror(Point(1, 2))


def test_the_named_methods_of_an_object_are_exposed_and_no_others(remote: axon.Remote) -> None:
    remote.store.put("key", [1])
    assert remote.store.get("key") == [1]
    for hidden in ("store.secret", "store.values", "store.__init__", "Store.put", "nothing"):
        with pytest.raises(RefusedError, match="no function"):
            remote[hidden]()


def test_generators_stream_their_items(remote: axon.Remote) -> None:
    assert list(remote.count_to(5)) == [0, 1, 2, 3, 4]
    assert list(remote.count_async(3)) == [0, 1, 2]
    assert remote.submit.count_to(3).result(WAIT_S) == [0, 1, 2]


async def test_streams_can_be_iterated_on_an_event_loop(remote: axon.Remote) -> None:
    assert [item async for item in remote.aio.count_to(3)] == [0, 1, 2]
    assert [item async for item in await remote.aio.count_async(3)] == [0, 1, 2]


def test_a_generator_that_raises_ends_its_stream_with_the_exception(remote: axon.Remote) -> None:
    items = remote.count_and_fail()
    assert next(items) == 1
    with pytest.raises(KeyError, match="two"):
        next(items)
    assert list(items) == []


def test_leaving_a_stream_closes_the_generator(remote: axon.Remote) -> None:
    items = remote.count_until_closed()
    assert next(items) == 0
    items.close()
    assert CANCELLED.wait(WAIT_S)


def test_a_deadline_ends_a_stream(remote: axon.Remote) -> None:
    with pytest.raises(DeadlineError):
        list(remote(deadline_s=0.3).count_slowly())


@pytest.mark.parametrize("name", ["sleep_for_ever", "notice_cancel"])
def test_a_deadline_is_sent_and_cancels_on_the_worker(remote: axon.Remote, name: str) -> None:
    for deadline_s in DEADLINES_S:
        began = time.monotonic()
        with pytest.raises(DeadlineError):
            remote(deadline_s=deadline_s)[name]()
        assert time.monotonic() - began < deadline_s + WAIT_S
        if RUNS[name]:
            break
    assert CANCELLED.wait(WAIT_S)


def test_a_deadline_kills_a_busy_process(remote: axon.Remote) -> None:
    remote.process_id()
    with pytest.raises(DeadlineError):
        remote(deadline_s=0.3).spin()
    assert remote.process_id() != os.getpid()


async def test_cancelling_an_awaited_call_cancels_it_on_the_worker(remote: axon.Remote) -> None:
    call = asyncio.ensure_future(remote.aio.sleep_for_ever())
    await asyncio.to_thread(wait_for_run, "sleep_for_ever")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await asyncio.to_thread(CANCELLED.wait, WAIT_S)


def test_cancelling_a_future_cancels_the_call_on_the_worker(remote: axon.Remote) -> None:
    future = remote.submit.notice_cancel()
    wait_for_run("notice_cancel")
    assert future.cancel()
    assert CANCELLED.wait(WAIT_S)


def test_a_process_that_dies_fails_its_own_call_only(remote: axon.Remote) -> None:
    with pytest.raises(Exception, match="died"):
        remote.die()
    assert remote.process_id() != os.getpid()


def test_processes_run_beside_the_worker_and_take_arrays(remote: axon.Remote) -> None:
    assert remote.process_id() != os.getpid()
    array = np.arange(500_000).reshape(-1, 5).T
    assert np.array_equal(remote.process_echo(array), array)


def test_a_slow_call_does_not_delay_others(remote: axon.Remote) -> None:
    slow = [remote.submit.blocked(f"slow {i}") for i in range(20)]
    assert remote.echo("quick") == "quick"
    assert not any(future.done() for future in slow)
    RELEASED.set()
    assert [future.result(WAIT_S) for future in slow] == [f"slow {i}" for i in range(20)]


def test_a_repeated_id_is_answered_from_memory(remote: axon.Remote) -> None:
    first = remote(call_id="same-1").submit.blocked("key")
    second = remote(call_id="same-1").submit.blocked("key")
    wait_for_run("key")
    RELEASED.set()
    assert first.result(WAIT_S) == second.result(WAIT_S) == "key"
    assert RUNS["key"] == 1


def test_an_id_belongs_to_one_function(remote: axon.Remote) -> None:
    remote(call_id="mine-1").echo(1)
    with pytest.raises(MalformedError, match="is in use for echo"):
        remote(call_id="mine-1").once("key")


def test_a_duplex_call_is_called_like_any_other(remote: axon.Remote) -> None:
    assert remote.long_echo([1, 2]) == [1, 2]
    assert remote.submit.long_echo(3).result(WAIT_S) == 3
    with pytest.raises(ValueError, match="no"):
        remote.long_fail("no")


async def test_a_duplex_call_can_be_awaited(remote: axon.Remote) -> None:
    assert await remote.aio.long_echo("x") == "x"


def test_any_function_can_be_called_duplex(remote: axon.Remote) -> None:
    assert remote(comms_pattern="duplex").echo(np.arange(3)).tolist() == [0, 1, 2]


def test_a_restarted_caller_gets_the_result_once_by_its_id(
    address: str,
) -> None:
    code = (
        "import sys; from melisma import axon\n"
        "axon.connect(sys.argv[1])(call_id='job-7').long_blocked('job')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, address]) as caller:
        wait_for_run("job")
        caller.kill()
    with axon.connect(address) as later:
        result = axon.resume(later, "job-7")
        RELEASED.set()
        assert result.result(WAIT_S) == "job"
    with axon.connect(address) as late, pytest.raises(LostError, match="job-7"):
        axon.resume(late, "job-7").result(WAIT_S)
    assert RUNS["job"] == 1


def test_an_unknown_call_cannot_be_resumed(remote: axon.Remote) -> None:
    with pytest.raises(LostError, match="unknown call never-was"):
        axon.resume(remote, "never-was").result(WAIT_S)


def test_a_result_is_posted_to_a_listening_caller(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "FIRST_POLL_S", caller.POLL_S)
    with axon.connect(address, callbacks="127.0.0.1:0") as listening:
        began = time.monotonic()
        assert listening.long_echo(np.arange(4)).tolist() == [0, 1, 2, 3]
        assert time.monotonic() - began < caller.POLL_S / 2
        with pytest.raises(ValueError, match="no"):
            listening.long_fail("no")


async def test_a_posted_result_can_be_awaited(address: str) -> None:
    with axon.connect(address, callbacks="127.0.0.1:0") as listening:
        assert await listening.aio.long_echo(1) == 1


def test_a_call_before_the_worker_starts_is_retried(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    script = tmp_path / "late.py"
    script.write_text(
        "import sys; from melisma import axon\n"
        "@axon.worker.rpc()\n"
        "def f():\n    return 'late'\n"
        "axon.worker.init(port=int(sys.argv[1]))\n"
    )
    with subprocess.Popen([sys.executable, script, str(port)]) as process:
        with axon.connect(f"http://127.0.0.1:{port}") as remote:
            assert remote(retries=8).f() == "late"
        process.terminate()


def test_https_to_a_worker_without_tls_fails_at_once(address: str) -> None:
    pinned = address.replace("http", "https") + "#sha256:" + "0" * 64
    began = time.monotonic()
    with (
        axon.connect(pinned, deadline_s=8) as remote,
        pytest.raises(UnreachableError, match="both https"),
    ):
        remote(retries=0).echo(1)
    assert time.monotonic() - began < 5


def test_invalid_names_and_ids_are_refused_by_the_caller(remote: axon.Remote) -> None:
    with pytest.raises(SettingError, match="not a call id"):
        remote(call_id="bad id!")
    with pytest.raises(SettingError, match="not a call id"):
        axon.resume(remote, "bad/id")
    with pytest.raises(SettingError, match="not a name for a worker"):
        axon.Worker(name="my pi")
    with pytest.raises(SettingError, match="is not an address: pass a str"):
        axon.connect(None)  # type: ignore[arg-type]


def test_an_unreachable_worker_is_reported() -> None:
    with pytest.raises(UnreachableError, match="check that the worker is running"):
        axon.connect("http://127.0.0.1:1").echo(1)


def test_describe_lists_the_exposed_functions(remote: axon.Remote) -> None:
    functions = {function["name"]: function for function in axon.describe(remote)}
    assert functions["count_to"]["kind"] == "generator"
    assert functions["long_echo"]["pattern"] == "duplex"
    assert functions["mirror"]["signature"].startswith("(point: ")
    assert "store.get" in dir(remote)


def test_a_function_can_read_its_call(remote: axon.Remote) -> None:
    facts = remote(call_id="known-1", deadline_s=9).call_facts()
    assert facts["id"] == "known-1"
    assert 0 < facts["left"] <= 9
    with pytest.raises(LookupError):
        axon.current_call()


def test_bad_options_are_named(remote: axon.Remote) -> None:
    with pytest.raises(SettingError, match="deadline_s"):
        remote(deadline_s=-1)
    with pytest.raises(SettingError, match="contains unknown call options"):
        remote(deadlin_s=1)


def test_the_trace_hook_of_the_caller_receives_sizes_and_times(address: str) -> None:
    records: list[axon.CallRecord] = []
    with axon.connect(address, trace=records.append) as traced:
        traced(call_id="seen-1").echo(b"x" * 100)
        with pytest.raises(ValueError, match="no"):
            traced.fail("no")
    assert [record.outcome for record in records] == ["returned", "raised"]
    assert records[0].id == "seen-1"
    assert records[0].bytes_out > 100
    assert records[0].seconds > 0


def test_cancelled_calls_have_their_own_error(remote: axon.Remote) -> None:
    running = remote(call_id="stop-1").submit.blocked("stop")
    wait_for_run("stop")
    twin = remote(call_id="stop-1").submit.blocked("stop")  # Before or after it is cancelled.
    running.cancel()
    with pytest.raises(CallCancelledError):
        twin.result(WAIT_S)
