"""How true emulated devices are on this machine: a paced process, and a shaped link.

The paced process multiplies small matrices for some seconds in a process of its own; its rate is
the processor time that it used over the time that passed, as the device asks for. Work is what it
got done beside the share of what it gets done unpaced. A link fetches a file over loopback, as
learners do; its rate is bits over time. Each is measured on an idle machine, beside one busy
process, and with every core busy.
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
COLUMNS = ["asked", "measured", "error %", "work error %"]
LIMIT_S = 60.0


def measure(quick: bool) -> dict[str, Any]:
    """A row for each device and load."""
    cores = os.cpu_count() or 1
    seconds = PACED_S / 4 if quick else PACED_S
    rows: dict[str, dict[str, float]] = {}
    alone = _child("pace", 1.0, seconds)
    for busy, title in ((0, "idle"), (1, "one busy process"), (cores, "every core busy")):
        with _busy(busy):
            for share in SHARES:
                rows[f"{share:g} of a core, {title}"] = _paced(share, seconds, alone)
            for bps in RATES_BPS:
                rows[f"{bps / 1e6:g} Mbit/s, {title}"] = _shaped(bps)
    return {"rows": rows, "own_s": 0.0}


def _paced(share: float, seconds: float, alone: dict[str, float]) -> dict[str, float]:
    found = _child("pace", share, seconds)
    measured = found["used_s"] / found["passed_s"]
    work = found["pieces"] / found["passed_s"]
    whole = alone["pieces"] / alone["used_s"]
    return {
        "asked": share,
        "measured": round(measured, 4),
        "error %": round(100 * (measured / share - 1), 2),
        "work error %": round(100 * (work / (share * whole) - 1), 2),
    }


def _shaped(bps: float) -> dict[str, float]:
    found = _child("link", bps, FETCHED_BYTES[bps])
    measured = 8 * found["bytes"] / found["passed_s"]
    return {
        "asked": round(bps / 1e6, 1),
        "measured": round(measured / 1e6, 3),
        "error %": round(100 * (measured / bps - 1), 2),
    }


def _child(*words: str | float) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.live.paced_device", *map(str, words)],
        cwd=processes.ROOT,
        env={**processes.environment(), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr.strip()[-600:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute; ended on leaving."""
    with ExitStack() as stack:
        for _ in range(count):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"], text=True)
            stack.callback(processes.end, spinning)
        time.sleep(0.2 if count else 0.0)
        yield
