"""Cost of HTTP stacks: one small keep-alive POST, and echoes of 10 and 100 MB.

Servers are measured with one client, a blocking socket, so that only the servers differ;
clients are measured against the server that answered the small call fastest. Bodies are raw
bytes, without a codec. Every server runs in its own process on one core, the client on the other.
All are measured in each of several rounds and the medians over the rounds are kept, so that a
slow minute of the machine affects all alike.
"""

import asyncio
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.harness import machine, processes, quiet, table, timing, usage
from benchmarks.harness.selection import select


class Stack(NamedTuple):
    """A module of benchmarks/axon/stacks, the imports of a program that uses it, and its client."""

    module: str
    imports: str
    client: str = "socket_client"


SERVERS = {
    "blocking socket, no HTTP": Stack("raw_server", "import socket", client="raw_client"),
    "aiohttp application": Stack("aiohttp_application", "import aiohttp.web"),
    "aiohttp bare server": Stack("aiohttp_server", "import aiohttp.web"),
    "uvicorn + httptools": Stack("uvicorn_server", "import uvicorn, httptools"),
    "uvicorn + httptools, uvloop": Stack(
        "uvicorn_uvloop_server", "import uvicorn, httptools, uvloop"
    ),
    "granian": Stack("granian_server", "import asyncio, granian.server"),
    "granian, uvloop": Stack("granian_uvloop_server", "import granian.server, uvloop"),
    "asyncio + h11": Stack("h11_server", "import asyncio, h11"),
    "asyncio + httptools": Stack("httptools_server", "import asyncio, httptools"),
    "asyncio + httptools, uvloop": Stack("httptools_uvloop_server", "import httptools, uvloop"),
}
CLIENTS = {
    "http.client": Stack("http_client_client", "import http.client"),
    "aiohttp": Stack("aiohttp_client", "import aiohttp"),
    "httpx": Stack("httpx_client", "import httpx"),
    "blocking socket + httptools": Stack("socket_client", "import socket, httptools"),
}
PACKAGES = ["aiohttp", "uvicorn", "httptools", "granian", "h11", "uvloop", "httpx"]
CLIENT_COLUMNS = ["median µs", "p99 µs", "CPU µs", "10 MB", "100 MB", "import ms"]
SERVER_COLUMNS = [*CLIENT_COLUMNS, "idle MB", "peak MB", "others %"]
SMALL = b'{"function":"small","arguments":["hello, this is a test"]}  '
PAYLOADS = {"10 MB": (10_000_000, 10), "100 MB": (100_000_000, 3)}


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure all stacks, print the tables and return the results for the JSON file."""
    os.sched_setaffinity(0, {processes.CLIENT_CORE})
    described = machine.describe(PACKAGES)
    print(machine.summary(described))
    rounds = 1 if quick else 3
    servers = _measure_rounds(list(select(SERVERS, only)), rounds, measure_server)
    http = [name for name in servers if SERVERS[name].client == "socket_client"]
    fastest = min(http, key=lambda name: servers[name]["median µs"])
    clients = _measure_rounds(list(CLIENTS), rounds, lambda name: measure_client(name, fastest))
    quiet.wait()
    for stacks, figures in ((SERVERS, servers), (CLIENTS, clients)):
        for name in figures:
            figures[name]["import ms"] = round(processes.import_ms(stacks[name].imports), 1)
    print(f"\nServers, each called by a blocking socket; echoes in MB/s; {rounds} rounds.")
    print("The median includes two wake-ups of an idle core. CPU is the processor time of the")
    print("process; others is the load of other processes in percent of one core.")
    print(table.render(SERVER_COLUMNS, servers))
    print(f"\nClients of '{fastest}'")
    print(table.render(CLIENT_COLUMNS, clients))
    return {"machine": described, "rounds": rounds, "servers": servers, "clients": clients}


def measure_server(name: str) -> dict[str, float]:
    """Measure one round of one server, with the blocking socket as its client."""
    quiet.wait()
    with run_server(name) as (port, pid):
        idle_mb = usage.resident_mb(pid)
        watch, before_s = quiet.Watch(), usage.cpu_s(pid)
        figures = asyncio.run(measure(SERVERS[name].client, port, pid))
        figures["others %"] = 100 * watch.others_share(usage.cpu_s(pid) - before_s)
        peak_mb = usage.peak_mb(pid)
    return {**figures, "idle MB": idle_mb, "peak MB": peak_mb}


def measure_client(name: str, server: str) -> dict[str, float]:
    """Measure one round of one client."""
    quiet.wait()
    with run_server(server) as (port, _):
        return asyncio.run(measure(CLIENTS[name].module, port, os.getpid()))


@contextmanager
def run_server(name: str) -> Iterator[tuple[int, int]]:
    """Start a server; yield its port and its process id."""
    port = processes.free_port()
    command = [sys.executable, "-m", "benchmarks.axon.stacks", SERVERS[name].module, str(port)]
    with processes.run_pinned(command, processes.SERVER_CORE) as process:
        processes.wait_for_port(port, process)
        yield port, process.pid


async def measure(client_module: str, port: int, pid: int) -> dict[str, float]:
    """Measure latency and processor time of the small call, then throughput of the echoes."""
    client = importlib.import_module(f"benchmarks.axon.stacks.{client_module}").Client(port)
    post = timing.as_coroutine(client.post)
    await timing.durations_s(post, SMALL, times=0, warm_up=200)
    before_s = usage.cpu_s(pid)
    figures = timing.latency(await timing.durations_s(post, SMALL, times=1000, warm_up=0))
    figures["CPU µs"] = (usage.cpu_s(pid) - before_s) / 1000 * 1e6
    for column, (payload_bytes, times) in PAYLOADS.items():
        body = os.urandom(payload_bytes)
        if bytes(await post(body)) != body:
            raise RuntimeError(f"{client_module} received other bytes than it sent")
        taken_s = await timing.durations_s(post, body, times, warm_up=1)
        figures[column] = timing.echo_mb_per_s(payload_bytes, taken_s)
    closing = client.close()
    if inspect.isawaitable(closing):
        await closing
    return figures


def _measure_rounds(
    names: list[str], rounds: int, measure_once: Callable[[str], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Measure every name once per round; return the medians over the rounds."""
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            print(f"  {name}", file=sys.stderr)
            rows[name].append(measure_once(name))
    return {name: timing.medians(figures) for name, figures in rows.items()}
