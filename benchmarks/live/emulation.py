"""Accuracy of emulated devices on this machine: a paced process, and a shaped link.

The paced process multiplies small matrices for some seconds; its rate is its processor time divided
by the elapsed time. *Work* compares the work done with that share of the work done unpaced. A link
fetches a file over loopback, as learners do; its rate is bits divided by time. Each is measured on
an idle machine, with one busy process, and with every core busy.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.harness import processes
from benchmarks.live.paced_device import FETCHED_BYTES, PACED_S

SHARES, RATES_BPS = (0.1, 0.25, 0.6), (15e6, 300e6)
COLUMNS = ["requested", "measured", "error %", "work error %"]
LIMIT_S = 60.0


def measure(quick: bool) -> dict[str, Any]:
    """Return a row for each device and load."""
    cores = os.cpu_count() or 1
    seconds = PACED_S / 4 if quick else PACED_S
    rows: dict[str, dict[str, float]] = {}
    unpaced = _run_device("pace", 1.0, seconds)
    for busy, title in ((0, "idle"), (1, "one busy process"), (cores, "every core busy")):
        with _busy(busy):
            for share in SHARES:
                rows[f"{share:g} of a core, {title}"] = _paced(share, seconds, unpaced)
            for bps in RATES_BPS:
                rows[f"{bps / 1e6:g} Mbit/s, {title}"] = _shaped(bps)
    return {"rows": rows, "own_s": 0.0}


def _paced(share: float, seconds: float, unpaced: dict[str, float]) -> dict[str, float]:
    result = _run_device("pace", share, seconds)
    measured = result["used_s"] / result["passed_s"]
    work = result["pieces"] / result["passed_s"]
    whole = unpaced["pieces"] / unpaced["used_s"]
    return {
        "requested": share,
        "measured": round(measured, 4),
        "error %": round(100 * (measured / share - 1), 2),
        "work error %": round(100 * (work / (share * whole) - 1), 2),
    }


def _shaped(bps: float) -> dict[str, float]:
    result = _run_device("link", bps, FETCHED_BYTES[bps])
    measured = 8 * result["bytes"] / result["passed_s"]
    return {
        "requested": round(bps / 1e6, 1),
        "measured": round(measured / 1e6, 3),
        "error %": round(100 * (measured / bps - 1), 2),
    }


def _run_device(*arguments: str | float) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.live.paced_device", *map(str, arguments)],
        cwd=processes.ROOT,
        env={**processes.environment(), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"paced_device {arguments}: {done.stderr.strip()[-600:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Run `count` processes that only compute; end them on exit."""
    with ExitStack() as stack:
        for _ in range(count):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"], text=True)
            stack.callback(processes.end, spinning)
        time.sleep(0.2 if count else 0.0)
        yield
