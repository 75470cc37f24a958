"""`melisma run`: a function served by one process and called from another.

The worker is a child process of its own, so that the call really crosses a process
boundary; closing its standard input ends it, however this process ends.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from melisma import axon
from melisma.errors import MelismaError


@contextmanager
def worker_process() -> Iterator[tuple[int, str]]:
    """Start the worker and yield its process number and its address."""
    arguments = [sys.executable, "-m", "melisma.cli.hello_worker"]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise MelismaError("the worker process ended before it served; see its message above")
        yield process.pid, address


@click.command("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("--name", default="John", show_default=True, help="Whom the worker greets.")
def command(as_json: bool, name: str) -> None:
    """Serve a function from a worker process and call it from this one."""
    with worker_process() as (pid, address):
        started = time.perf_counter()
        answer = axon.connect(address).simple_hello(name)
        seconds = time.perf_counter() - started
    if as_json:
        report = {"worker_pid": pid, "address": address, "answer": answer, "seconds": seconds}
        click.echo(json.dumps(report))
        return
    click.echo(f"worker   process {pid} serves simple_hello at {address}")
    click.echo(f"call     axon.connect({address!r}).simple_hello({name!r})")
    click.echo(f"answer   {answer}   ({seconds * 1e3:.1f} ms, connection included)")
