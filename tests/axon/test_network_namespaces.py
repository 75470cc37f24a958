"""A worker and a caller in two network namespaces, like two machines.

Creating a namespace needs root and the `ip` command; without them these tests are skipped.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

WORKER = """
import sys
from melisma import axon

@axon.worker.rpc()
def add(a, b):
    return a + b

worker = axon.Worker(host="10.77.0.1", port=8000, token="sesame", tls=sys.argv[1])
worker.rpc()(add)
with worker.start() as address:
    print(address, flush=True)
    sys.stdin.read()
"""
CALLER = """
import sys
import numpy as np
from melisma import axon
from melisma.errors import UnauthorizedError

with axon.connect(sys.argv[1], token="sesame") as worker:
    total = worker.add(np.ones(1_000_000), 2)
    print(total.shape, total[0], worker(comms_pattern="duplex").add("a", "b"))
with axon.connect(sys.argv[1]) as stranger:
    try:
        stranger.add(1, 2)
    except UnauthorizedError as error:
        print("refused:", error)
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="creating network namespaces needs root and the ip command",
)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def two_hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Connect two namespaces; return the command prefix that runs a command in each."""
    names = [f"axon-{side}-{os.getpid()}" for side in "ab"]
    cable = [f"ax{side}{os.getpid() % 100000}" for side in "ab"]
    for name in names:
        ip("netns", "add", name)
    try:
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for number, (name, end) in enumerate(zip(names, cable, strict=True), 1):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield ["ip", "netns", "exec", names[0]], ["ip", "netns", "exec", names[1]]
    finally:
        for name in names:
            ip("netns", "del", name)


def test_a_function_is_called_across_machines_with_tls_and_a_token(
    two_hosts: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    there, here = two_hosts
    identity = str(tmp_path / "identity.pem")
    with subprocess.Popen(
        [*there, sys.executable, "-c", WORKER, identity],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        address = worker.stdout.readline().strip()
        assert address.startswith("https://10.77.0.1:8000#sha256:")
        called = subprocess.run(
            [*here, sys.executable, "-c", CALLER, address],
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
    assert called.stderr == ""
    assert called.stdout.splitlines() == [
        "(1000000,) 3.0 ab",
        "refused: this worker requires a token: connect(address, token=...)",
    ]
