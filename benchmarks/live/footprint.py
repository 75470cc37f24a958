"""What an agent weighs: in memory before it trains, and on disk as it is installed."""

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
SIZE_COLUMNS = ["packages", "MB", "of it NumPy MB"]
(FLWR,) = [each for each in environments.pinned(flower_deployment.REQUIREMENTS) if "flwr" in each]
NUMPY = ("numpy", "numpy.libs")
_COMES_WITH = 2  # pip and setuptools


def memory(quick: bool) -> dict[str, Any]:
    """Resident MB of one learner of ours and of one SuperNode, pages that are shared included."""
    del quick
    empty = melisma_run.run(cycle.task(4_096, 2), 4, LIMIT_S)["before_mb"]
    torch = melisma_run.run({**accuracy.TASK, "cycles": 1}, 4, LIMIT_S)["before_mb"]
    idle_mb, working_mb, own_s = _theirs_mb()
    rows = {
        "our agent, before its framework is loaded": _resident(1, empty),
        "our agent, PyTorch loaded": _resident(1, torch),
        "Flower SuperNode, idle (with its SuperExec)": _resident(2, [idle_mb]),
        "Flower SuperNode, while its app runs (without PyTorch)": _resident(3, [working_mb]),
    }
    return {"rows": rows, "own_s": own_s}


def size(quick: bool) -> dict[str, Any]:
    """What `pip install` adds to a fresh environment, files of bytecode included."""
    del quick
    with TemporaryDirectory(prefix="beside-size-") as name:
        folder = Path(name)
        wheel = _wheel(folder)
        python, ours = _installed(folder / "ours", wheel, "constraints.txt")
        theirs = _installed(folder / "theirs", FLWR, None)[1]
        imports = _said(
            python,
            "import melisma.cli, melisma.live.training, melisma.live.learner.learner_process",
        )
    return {"rows": {"melisma, core": ours, FLWR: theirs}, "imports": imports, "own_s": 0.0}


def _resident(count: int, each_mb: list[float]) -> dict[str, float]:
    return {"processes": count, "resident MB": round(statistics.median(each_mb), 1)}


def _theirs_mb() -> tuple[float, float, float]:
    """One SuperNode: idle, and the median while its app runs, over two rounds of nothing."""
    seen: list[float] = []
    with flower_deployment.deployed(1) as flower:
        time.sleep(2.0)  # What it loads late is loaded.
        idle_mb, done = flower.memory_mb(), threading.Event()

        def look() -> None:
            while not done.wait(0.05):
                # Between fork and exec a process counts twice; the median does not mind.
                if flower.processes() == 3:
                    seen.append(flower.memory_mb())

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            told = flower.run({"what": "empty", "model-bytes": 4_096, "rounds": 2})
            flower.rounds(told, lambda last: last["round"] >= 2, LIMIT_S)
        finally:
            done.set()
            watcher.join()
        own_s = flower.unseen_cpu_s()
    return idle_mb, statistics.median(seen), own_s


def _wheel(folder: Path) -> str:
    """Built from a copy of the files that it is made of: nothing is left in the repository."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    _ran([*command, "--wheel-dir", str(folder), str(processes.ROOT)])
    (wheel,) = folder.glob("melisma-*.whl")
    return str(wheel)


def _installed(folder: Path, what: str, constraints: str | None) -> tuple[str, dict[str, float]]:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    (packages,) = folder.glob("lib/python*/site-packages")
    before = _bytes(packages)
    limits = ["--constraint", str(processes.ROOT / constraints)] if constraints else []
    _ran([python, "-m", "pip", "install", "--quiet", *limits, what])
    return python, {
        "packages": len(list(packages.glob("*.dist-info"))) - _COMES_WITH,
        "MB": round((_bytes(packages) - before) / 1e6, 1),
        "of it NumPy MB": round(sum(_bytes(packages / part) for part in NUMPY) / 1e6, 1),
    }


def _bytes(folder: Path) -> int:
    return sum(
        path.lstat().st_size for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()
    )


def _ran(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=LIMIT_S)


def _said(python: str, statement: str) -> str:
    """Whether what was installed can be imported, in the words of Python if it cannot."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", statement]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-1] if done.returncode else "everything"
