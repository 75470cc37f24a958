"""One visit to one peer: its server on one core, its client on the other, and what both showed."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.competitors import Peer
from benchmarks.competitors.__main__ import SAYS
from benchmarks.harness import processes, quiet, usage

START_S, CLIENT_S = 60.0, 120.0


@dataclass(frozen=True)
class Visit:
    """Figures and errors by column, and how they were taken.

    `callers`: many callers were threads or tasks. `others_share`: what the rest of the machine
    used meanwhile, in cores.
    """

    figures: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    callers: str | None = None
    others_share: float = 0.0


def visit(peer: Peer, python: str, quick: bool) -> Visit:
    """Serve, measure, end. A peer that fails altogether is a visit with an error and no figures."""
    quiet.wait()
    try:
        with serving(peer, python) as (address, pid):
            idle_mb = usage.resident_mb(pid)
            watch, before_s = quiet.Watch(), usage.cpu_s(pid)
            seen = measured(peer, python, address, quick)
            others = watch.others_share(usage.cpu_s(pid) - before_s)
            memory = {"idle MB": idle_mb, "peak MB": usage.peak_mb(pid)}
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Visit(errors={"all": str(error)})
    figures = {column: round(figure, 1) for column, figure in (seen["figures"] | memory).items()}
    return Visit(figures, seen["errors"], seen["callers"], round(others, 2))


@contextmanager
def serving(peer: Peer, python: str) -> Iterator[tuple[str, int]]:
    """A server that listens: its address and its process id."""
    command = [python, "-m", "benchmarks.competitors", "serve", peer.module]
    with processes.pinned(command, processes.SERVER_CORE, peer.variables) as process:
        too_late = threading.Timer(START_S, process.popen.kill)
        too_late.start()
        try:
            address = _said(process, iter(process.popen.stdout or ()))
        finally:
            too_late.cancel()
        yield address, process.pid


def measured(peer: Peer, python: str, address: str, quick: bool) -> dict[str, Any]:
    """What the client says about one round."""
    command = [python, "-m", "benchmarks.competitors", "measure", peer.module, address]
    command += ["--quick"] if quick else []
    with processes.pinned(command, processes.CLIENT_CORE, peer.variables) as process:
        output, _ = process.popen.communicate(timeout=CLIENT_S)
        seen: dict[str, Any] = json.loads(_said(process, iter(output.splitlines())))
        return seen


def _said(process: processes.Process, lines: Iterator[str]) -> str:
    """The one line that is meant for us; libraries print others."""
    for line in lines:
        if line.startswith(SAYS):
            return line.removeprefix(SAYS).strip()
    raise process.failure()
