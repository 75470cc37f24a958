"""The listings of the thesis (Algorithms 4, 5, 8 and 9), with only the import changed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

ALGORITHM_4 = """
from melisma import axon

@axon.worker.rpc()
def simple_hello(name):
    greeting = f"Hello {name}!!"
    print(greeting)
    return greeting

axon.worker.init()
"""
ALGORITHM_5 = """
from melisma import axon

stub = axon.client.Sync{pattern}Stub(worker_ip="127.0.0.1", rpc_name="simple_hello")

greeting = stub("John")
"""
ALGORITHM_8 = """
from melisma import axon
import asyncio

stub = axon.client.Coro{pattern}Stub(worker_ip="127.0.0.1", rpc_name="simple_hello")

async def main():
    await stub("John")

asyncio.run(main())
"""
ALGORITHM_9 = """
from melisma import axon

stub = axon.client.Async{pattern}Stub(worker_ip="127.0.0.1", rpc_name="simple_hello")

handle = stub("John")

result = handle.join()
"""


@pytest.fixture
def worker(tmp_path: Path, printed_ports: None) -> Iterator[Path]:
    """Run Algorithm 4 in a process; yield the file with its output."""
    script, printed = tmp_path / "service.py", tmp_path / "printed"
    script.write_text(ALGORITHM_4)
    with (
        printed.open("w") as output,
        subprocess.Popen([sys.executable, "-u", script], stdout=output) as process,
    ):
        while not any(
            connection.status == psutil.CONN_LISTEN
            for connection in psutil.Process(process.pid).net_connections()
        ):
            assert process.poll() is None
        yield printed
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.parametrize("pattern", ["Simplex", "Duplex"])
@pytest.mark.parametrize("listing", [ALGORITHM_5, ALGORITHM_8, ALGORITHM_9])
def test_a_listing_runs_with_only_its_import_changed(
    worker: Path, tmp_path: Path, listing: str, pattern: str
) -> None:
    before = worker.read_text().count("Hello John!!")
    script = tmp_path / "caller.py"
    script.write_text(listing.format(pattern=pattern))
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=30, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert worker.read_text().count("Hello John!!") == before + 1


@pytest.mark.parametrize("pattern", ["Simplex", "Duplex"])
@pytest.mark.parametrize(
    ("listing", "result"), [(ALGORITHM_5, "greeting"), (ALGORITHM_9, "result")]
)
def test_a_listing_gets_the_greeting(worker: Path, listing: str, result: str, pattern: str) -> None:
    names: dict[str, object] = {}
    exec(listing.format(pattern=pattern), names)
    assert names[result] == "Hello John!!"
