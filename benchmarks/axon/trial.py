"""One trial of one competitor: its server on one core, its client on the other."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.competitors import Competitor
from benchmarks.competitors.__main__ import OUTPUT_PREFIX
from benchmarks.harness import processes, quiet, usage

START_S, CLIENT_S = 60.0, 120.0


@dataclass(frozen=True)
class Trial:
    """Figures and errors by column.

    `callers`: the kind of concurrent callers, threads or tasks. `others_share`: the load of other
    processes in cores.
    """

    figures: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    callers: str | None = None
    others_share: float = 0.0


def run_trial(competitor: Competitor, python: str, quick: bool) -> Trial:
    """Start the server, measure, end it; a competitor that fails gives an error and no figures."""
    quiet.wait()
    try:
        with run_server(competitor, python) as (address, pid):
            idle_mb = usage.resident_mb(pid)
            watch, before_s = quiet.Watch(), usage.cpu_s(pid)
            results = measure_client(competitor, python, address, quick)
            others = watch.others_share(usage.cpu_s(pid) - before_s)
            memory = {"idle MB": idle_mb, "peak MB": usage.peak_mb(pid)}
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Trial(errors={"all": str(error)})
    figures = {column: round(figure, 1) for column, figure in (results["figures"] | memory).items()}
    return Trial(figures, results["errors"], results["callers"], round(others, 2))


@contextmanager
def run_server(competitor: Competitor, python: str) -> Iterator[tuple[str, int]]:
    """Start a server; yield its address and its process id."""
    command = [python, "-m", "benchmarks.competitors", "serve", competitor.module]
    with processes.run_pinned(command, processes.SERVER_CORE, competitor.variables) as process:
        timer = threading.Timer(START_S, process.popen.kill)
        timer.start()
        try:
            address = _read_result(process, iter(process.popen.stdout or ()))
        finally:
            timer.cancel()
        yield address, process.pid


def measure_client(
    competitor: Competitor, python: str, address: str, quick: bool
) -> dict[str, Any]:
    """Run the client and return the results of one round."""
    command = [python, "-m", "benchmarks.competitors", "measure", competitor.module, address]
    command += ["--quick"] if quick else []
    with processes.run_pinned(command, processes.CLIENT_CORE, competitor.variables) as process:
        output, _ = process.popen.communicate(timeout=CLIENT_S)
        results: dict[str, Any] = json.loads(_read_result(process, iter(output.splitlines())))
        return results


def _read_result(process: processes.Process, lines: Iterator[str]) -> str:
    """Return the line with the result; libraries may print other lines."""
    for line in lines:
        if line.startswith(OUTPUT_PREFIX):
            return line.removeprefix(OUTPUT_PREFIX).strip()
    raise process.failure()
