"""Memory of an agent before it trains, and size of its installation."""

import os
import statistics
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import environments, processes
from benchmarks.live import accuracy, cycle, flower_deployment, melisma_run

LIMIT_S = 300.0
MEMORY_COLUMNS = ["processes", "resident MB"]
SIZE_COLUMNS = ["packages", "MB", "NumPy MB"]
(FLWR,) = [
    each for each in environments.pinned_packages(flower_deployment.REQUIREMENTS) if "flwr" in each
]
NUMPY = ("numpy", "numpy.libs")
_PREINSTALLED = 2  # pip and setuptools


def memory(quick: bool) -> dict[str, Any]:
    """Return resident MB of one Melisma learner and of one SuperNode, including shared pages."""
    del quick
    empty = melisma_run.run(cycle.task(4_096, 2), 4, LIMIT_S)["before_mb"]
    torch = melisma_run.run({**accuracy.TASK, "cycles": 1}, 4, LIMIT_S)["before_mb"]
    idle_mb, working_mb, own_s = _flower_mb()
    rows = {
        "Melisma agent, before its framework is loaded": _resident(1, empty),
        "Melisma agent, PyTorch loaded": _resident(1, torch),
        "Flower SuperNode, idle (with its SuperExec)": _resident(2, [idle_mb]),
        "Flower SuperNode, while its app runs (without PyTorch)": _resident(3, [working_mb]),
    }
    return {"rows": rows, "own_s": own_s}


def size(quick: bool) -> dict[str, Any]:
    """Return what `pip install` adds to a new environment, including bytecode."""
    del quick
    with TemporaryDirectory(prefix="benchmark-size-") as name:
        folder = Path(name)
        wheel = _wheel(folder)
        python, melisma = _install(folder / "melisma", wheel, "constraints.txt")
        flower = _install(folder / "flower", FLWR, None)[1]
        imports = _try_import(
            python,
            "import melisma.cli, melisma.live.training, melisma.live.learner.learner_process",
        )
    return {"rows": {"melisma, core": melisma, FLWR: flower}, "imports": imports, "own_s": 0.0}


def _resident(count: int, each_mb: list[float]) -> dict[str, float]:
    return {"processes": count, "resident MB": round(statistics.median(each_mb), 1)}


def _flower_mb() -> tuple[float, float, float]:
    """Return MB of one SuperNode: idle, and the median while its app runs two empty rounds."""
    samples_mb: list[float] = []
    with flower_deployment.deploy(1) as flower:
        time.sleep(2.0)  # Wait for modules that it loads late.
        idle_mb, done = flower.memory_mb(), threading.Event()

        def sample() -> None:
            while not done.wait(0.05):
                # Between fork and exec a process counts twice; the median is robust to that.
                if flower.processes() == 3:
                    samples_mb.append(flower.memory_mb())

        watcher = threading.Thread(target=sample)
        watcher.start()
        try:
            results = flower.run({"task": "empty", "model-bytes": 4_096, "rounds": 2})
            flower.rounds(results, lambda last: last["round"] >= 2, LIMIT_S)
        finally:
            done.set()
            watcher.join()
        own_s = flower.unseen_cpu_s()
    return idle_mb, statistics.median(samples_mb), own_s


def _wheel(folder: Path) -> str:
    """Build the wheel from a copy, so that no files are left in the repository."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    _run([*command, "--wheel-dir", str(folder), str(processes.ROOT)])
    (wheel,) = folder.glob("melisma-*.whl")
    return str(wheel)


def _install(folder: Path, package: str, constraints: str | None) -> tuple[str, dict[str, float]]:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    (packages,) = folder.glob("lib/python*/site-packages")
    before = _bytes(packages)
    limits = ["--constraint", str(processes.ROOT / constraints)] if constraints else []
    _run([python, "-m", "pip", "install", "--quiet", *limits, package])
    return python, {
        "packages": len(list(packages.glob("*.dist-info"))) - _PREINSTALLED,
        "MB": round((_bytes(packages) - before) / 1e6, 1),
        "NumPy MB": round(sum(_bytes(packages / part) for part in NUMPY) / 1e6, 1),
    }


def _bytes(folder: Path) -> int:
    return sum(
        path.lstat().st_size for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()
    )


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=LIMIT_S)


def _try_import(python: str, statement: str) -> str:
    """Return "everything" if the statement runs, else Python's error message."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", statement]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else "everything"
