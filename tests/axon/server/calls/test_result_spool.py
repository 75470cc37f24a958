"""The spool stores results within its limits and frees their space."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.axon.server.calls.result_spool import ResultSpool, SpooledResult
from melisma.errors import StorageError


def read(kept: SpooledResult) -> bytes:
    return b"".join(kept.buffers())


@pytest.fixture
def spool(tmp_path: Path) -> ResultSpool:
    return ResultSpool(100, 1000, tmp_path)


actions = st.lists(
    st.lists(st.binary(max_size=60), max_size=3) | st.integers(0, 9),  # keep these, or discard
    max_size=30,
)


@given(actions)
def test_stored_results_are_read_back_and_the_sizes_add_up(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[bytes] | int]
) -> None:
    directory = tmp_path_factory.mktemp("spool")
    spool = ResultSpool(100, 200, directory)
    waiting: list[tuple[bytes, SpooledResult]] = []
    for action in history:
        if isinstance(action, int):
            if waiting:
                waiting.pop(action % len(waiting))[1].discard()
            continue
        data = b"".join(action)
        try:
            waiting.append((data, spool.keep(action)))
        except StorageError:
            assert spool.memory_bytes + len(data) > 100
            assert spool.disk_bytes + len(data) > 200
    assert all(read(kept) == data for data, kept in waiting)
    assert spool.memory_bytes + spool.disk_bytes == sum(len(data) for data, _ in waiting)
    assert list(directory.iterdir()) == []


def test_results_are_stored_in_memory_first_then_on_disk(
    spool: ResultSpool, tmp_path: Path
) -> None:
    first = spool.keep([b"a" * 60, memoryview(b"b" * 40)])
    second = spool.keep([b"c"])
    assert (read(first), read(second)) == (b"a" * 60 + b"b" * 40, b"c")
    assert (spool.memory_bytes, spool.disk_bytes) == (100, 1)


def test_a_stored_result_is_a_copy(spool: ResultSpool) -> None:
    for size in (10, 500):
        buffer = bytearray(size)
        kept = spool.keep([memoryview(buffer)])
        buffer[0] = 1
        assert read(kept) == bytes(size)


def test_over_both_limits_the_error_names_the_limit_and_reserves_nothing(
    spool: ResultSpool,
) -> None:
    spool.keep([b"x" * 900])
    with pytest.raises(StorageError, match=r"900 of 1000 bytes .* raise keep_disk_bytes"):
        spool.keep([b"x" * 101])
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 900)
    spool.keep([b"x" * 100])


def test_freed_space_can_be_used_again(spool: ResultSpool, tmp_path: Path) -> None:
    for _ in range(5):
        on_disk, in_memory = spool.keep([b"x" * 1000]), spool.keep([b"x" * 100])
        for kept in (on_disk, in_memory):
            kept.discard()
            kept.discard()  # once is enough, twice does no harm
        assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)


def test_a_result_can_be_discarded_while_it_is_sent(spool: ResultSpool) -> None:
    kept = spool.keep([b"x" * 500])
    (sending,) = kept.buffers()
    kept.discard()
    assert bytes(sending) == b"x" * 500


def test_an_empty_result_is_stored_without_any_space() -> None:
    assert read(ResultSpool(0, 0).keep([])) == b""


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    spool = ResultSpool(0, 1000, tmp_path / "missing")
    with pytest.raises(StorageError, match=r"No such file or directory in .*missing"):
        spool.keep([b"x"])
    assert spool.disk_bytes == 0


def test_the_sizes_add_up_with_many_threads(tmp_path: Path) -> None:
    spool = ResultSpool(300, 300, tmp_path)

    def work() -> None:
        for _ in range(50):
            try:
                spool.keep([b"x" * 100]).discard()
            except StorageError:
                continue

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (spool.memory_bytes, spool.disk_bytes) == (0, 0)


# A disk that is full, though the limit is not reached.


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    try:
        if (
            os.geteuid() != 0
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            pytest.skip("mounting a file system takes root")
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_is_a_storage_error_and_leaves_no_trace(tiny_disk: Path) -> None:
    spool = ResultSpool(0, 1 << 30, tiny_disk)
    kept = spool.keep([b"a" * 30_000])
    for _ in range(3):
        with pytest.raises(StorageError, match="No space left on device in"):
            spool.keep([b"b" * 30_000, b"c" * 30_000])
        assert spool.disk_bytes == 30_000
    assert read(kept) == b"a" * 30_000
    kept.discard()
    again = spool.keep([b"d" * 50_000])
    assert read(again) == b"d" * 50_000
    again.discard()


def test_a_file_that_may_not_grow_is_a_storage_error_and_leaves_no_trace(tmp_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from melisma.axon.server.calls.result_spool import ResultSpool
from melisma.errors import StorageError

resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
spool = ResultSpool(0, 1 << 30, Path({str(tmp_path)!r}))
for sizes in ([10_001], [9_000, 9_000], [100_000, 1]):
    try:
        spool.keep([bytes(size) for size in sizes])
    except StorageError as error:
        print(error)
assert spool.disk_bytes == 0
kept = spool.keep([bytes(10_000)])
assert kept.buffers()[0].nbytes == 10_000
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert run.stderr == ""
    assert run.stdout.count("File too large in") == 3
    assert list(tmp_path.iterdir()) == []
